"""Quantised networks on targets ethos-u*: Vela compiles them, and the .pte is packed as by ExecuTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("ethosu.vela")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from dimorder.cli import main
from dimorder.errors import UnsupportedError, UsageError
from dimorder.lowered import Lowered
from dimorder.targets.ethos_u import ACCELERATORS
from dimorder.targets.ethos_u.target import target
from tests.marks import slow_but
from tests.small_networks import OneInput
from tests.targets.quantised import Between, by_arm
from tests.targets.quantised import quantised as quantised_to
from tests.targets.test_tosa_integers import Net
from tests.targets.vela import handed_over

SHAPE = (1, 3, 10, 14)


def inputs() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def quantised() -> nn.Module:
    return by_arm(Net().eval(), inputs())


@pytest.fixture(scope="module")
def lowered(quantised: nn.Module) -> Lowered:
    return dimorder.lower(quantised, (inputs(),), target="ethos-u85-256", input_orders="NHWC")


def delegate(pte: bytes) -> Any:
    """The one delegate of a program: its name, its bytes, and what the runtime is told besides."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    program = deserialize_pte_binary(pte).program
    (forward,) = [plan for plan in program.execution_plan if plan.name == "forward"]
    (found,) = forward.delegates
    data = program.backend_delegate_data[found.processed.index].data
    return found.id, bytes(data), [(spec.key, bytes(spec.value)) for spec in found.compile_specs]


# -- what it writes ----------------------------------------------------------------------------------------


def test_the_file_is_one_delegate_of_the_ethos_u_runtime(lowered: Lowered, tmp_path: Path) -> None:
    name, stream, options = delegate(lowered.artifact.data)
    assert name == "EthosUBackend"
    assert stream.startswith(b"vela_bin_stream\0")
    assert b"vela_end_stream\0" in stream[-64:]
    assert dict(options)["target"] == b"ethos-u85-256"
    assert lowered.artifact.delegates == 1
    assert not lowered.artifact.outside


def test_its_contract_is_inside_and_check_reads_it(
    lowered: Lowered, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = lowered.save(tmp_path / "net.pte")
    assert main(["check", str(file), "--json", "-"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["boundaries"] == lowered.contract.to_dict()
    assert [spec["dtype"] for spec in told["boundaries"]["inputs"]] == ["int8"]
    (found,) = told["delegates"]
    assert found["backend"] == "EthosUBackend"


def test_it_gives_what_the_quantised_network_gives(lowered: Lowered, quantised: nn.Module) -> None:
    x = inputs()
    (of,), (to,) = lowered.contract.inputs, lowered.contract.outputs
    got = to.real(lowered.run(of.quantized(x).to(memory_format=torch.channels_last)))
    with torch.no_grad():
        wanted = quantised(x)
    assert to.scale is not None
    assert float((got - wanted).abs().max()) <= 1.01 * to.scale


def test_what_vela_estimates_is_told(lowered: Lowered) -> None:
    npu = lowered.to_dict()["npu"]
    assert npu["accelerator"] == "ethos-u85-256"
    assert (npu["system_config"], npu["memory_mode"]) == ("Ethos_U85_SYS_DRAM_Mid", "Sram_Only")
    assert npu["cpu_operators"] == 0 < npu["npu_operators"] == len(npu["layers"])
    assert npu["cycles"] > 0
    assert npu["sram_bytes"] > 0
    places = {layer["operator"]: layer["source"] for layer in npu["layers"] if layer["macs"]}
    assert places["dimorder.conv2d_nhwc"].startswith("quantised.py:")
    assert not any("quantize" in operator for operator in places)


@pytest.mark.parametrize(
    "accelerator", slow_but(ACCELERATORS, ["ethos-u55-128", "ethos-u65-256", "ethos-u85-2048"])
)
def test_each_accelerator_compiles_a_network(quantised: nn.Module, accelerator: str) -> None:
    made = dimorder.lower(quantised, (inputs(),), target=accelerator)
    assert made.artifact.npu is not None
    assert (made.artifact.npu.accelerator, made.artifact.npu.cpu_operators) == (accelerator, 0)


def test_other_memories_are_the_callers_choice(quantised: nn.Module) -> None:
    chosen = target("ethos-u85-256", system_config="Ethos_U85_SYS_Flash_High", memory_mode="Shared_Sram")
    npu = dimorder.lower(quantised, (inputs(),), target=chosen).artifact.npu
    assert npu is not None
    assert (npu.system_config, npu.memory_mode) == ("Ethos_U85_SYS_Flash_High", "Shared_Sram")
    assert npu.flash_bytes > 0


def test_the_packing_is_that_of_executorch() -> None:
    """The same graph, compiled and packed by both: the same bytes, and the same told to the runtime."""
    from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
    from executorch.exir import to_edge_transform_and_lower

    from dimorder.plans.explanation import Place
    from dimorder.targets.ethos_u.vela import compile_by_vela

    network = by_arm(nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU()).eval(), inputs())
    exported = torch.export.export(network, (inputs(),))
    partitioner = EthosUPartitioner(EthosUCompileSpec("ethos-u55-128"))
    with handed_over() as graphs:
        edge = to_edge_transform_and_lower(exported, partitioner=[partitioner])
    name, stream, options = delegate(edge.to_executorch().buffer)
    (graph,) = graphs
    ours = compile_by_vela(graph, "ethos-u55-128", lambda tensor: Place(tensor, ""))
    assert name == "EthosUBackend"
    assert ours.stream == stream
    assert [(spec.key, bytes(spec.value)) for spec in ours.options] == options


RESIZES: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "twice": ((5, 7), {"scale_factor": 2, "mode": "bilinear"}),
    "by 4": ((5, 7), {"scale_factor": 4, "mode": "bilinear"}),
    "twice, aligned": ((5, 7), {"scale_factor": 2, "mode": "bilinear", "align_corners": True}),
    "by 4, aligned": ((5, 7), {"scale_factor": 4, "mode": "bilinear", "align_corners": True}),
    "by 1.5": ((6, 8), {"scale_factor": 1.5, "mode": "bilinear"}),
    "one pixel": ((1, 1), {"size": (5, 7), "mode": "bilinear"}),
    "nearest by 3": ((5, 7), {"scale_factor": 3}),
    "nearest to any size": ((5, 7), {"size": (8, 9)}),
}


@pytest.mark.parametrize("name", RESIZES)
def test_ethos_u55_resizes_by_convolutions(name: str) -> None:
    size, options = RESIZES[name]
    network = Between(lambda x: F.interpolate(x, **options), Between.SCALES[0])
    x = torch.randn(1, 6, *size, generator=torch.Generator().manual_seed(3))
    orders = {"input_orders": "NHWC", "output_orders": "NHWC"}
    made = dimorder.lower(network, (x,), target="ethos-u55-128", run_artifact=True, **orders)
    assert (made.verified.artifact_ran, made.verified.stand_in) == (False, "TOSA graph")
    assert made.artifact.npu is not None
    assert made.artifact.npu.cpu_operators == 0
    (of,) = made.contract.inputs
    (got,) = made.run(of.quantized(x).to(memory_format=torch.channels_last))
    (wanted,) = network(x)
    assert float((made.contract.outputs[0].real(got) - wanted).abs().max()) <= 1.01 * Between.SCALES[0][0]


# -- what it refuses ---------------------------------------------------------------------------------------


def refusal(error: UnsupportedError | UsageError) -> list[str]:
    return str(error).splitlines()


@pytest.mark.parametrize("recipe", ["int8", "int16x8"])
def test_ethos_u55_adds_convolutions_for_taps_in_depth(recipe: str) -> None:
    torch.manual_seed(6)
    net = nn.Sequential(
        nn.Conv3d(3, 5, (3, 2, 3), padding=1, stride=(2, 1, 1)), nn.ReLU(), nn.Conv3d(5, 6, 2)
    ).eval()
    examples = [torch.randn(1, 3, 6, 7, 8) for _ in range(3)]
    quantized = dimorder.quantize(net, examples, recipe, target="ethos-u55-128")
    lowered = dimorder.lower(quantized, (examples[0],), target="ethos-u55-128")
    (found,) = quantized.compare(lowered)
    assert found.quanta <= 1
    assert "conv3d" not in lowered.text("physical")


@pytest.mark.parametrize("dim", [2, 3])
def test_ethos_u55_has_the_dimension_of_an_argmax_last(dim: int) -> None:
    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x).argmax(dim).int()

    torch.manual_seed(6)
    examples = [torch.randn(1, 3, 9, 8) for _ in range(3)]
    quantized = dimorder.quantize(Places().eval(), examples, target="ethos-u55-128")
    lowered = dimorder.lower(quantized, (examples[0],), target="ethos-u55-128")
    assert lowered.contract.outputs[0].shape == ((1, 5, 6) if dim == 2 else (1, 5, 7))
    (taken,) = lowered.contract.inputs
    assert torch.equal(lowered.run(taken.quantized(examples[1])), quantized.module(examples[1]))


def test_ethos_u55_has_an_argmax_of_rows_of_another_rank() -> None:
    torch.manual_seed(6)
    net, examples = (
        OneInput(lambda m, x: m.linear(x).argmax(1).int(), linear=nn.Linear(7, 6)),
        torch.randn(3, 2, 5, 7),
    )
    quantized = dimorder.quantize(net.eval(), [*examples], target="ethos-u55-128")
    lowered = dimorder.lower(quantized, (examples[0],), target="ethos-u55-128")
    (taken,) = lowered.contract.inputs
    assert torch.equal(lowered.run(taken.quantized(examples[1])), quantized.module(examples[1]))


@pytest.mark.parametrize(("channels", "batch"), [(1, 1), (1, 2), (5, 2)])
def test_ethos_u55_has_an_argmax_of_one_channel_and_of_several_images(channels: int, batch: int) -> None:
    """Dimensions of size 1 may follow the row in memory, and Vela has ARGMAX of one image alone."""
    torch.manual_seed(6)
    net = OneInput(
        lambda m, x: (m.conv(x).flatten(1) if channels == 1 else m.conv(x)).argmax(1).int(),
        conv=nn.Conv2d(3, channels, 3),
    )
    examples = torch.randn(3, batch, 3, 9, 8)
    quantized = dimorder.quantize(net.eval(), [*examples], target="ethos-u55-128")
    lowered = dimorder.lower(quantized, (examples[0],), target="ethos-u55-128")
    (taken,) = lowered.contract.inputs
    assert torch.equal(lowered.run(taken.quantized(examples[1])), quantized.module(examples[1]))


def test_a_network_of_floats_is_refused() -> None:
    with pytest.raises(UnsupportedError) as raised:
        dimorder.lower(nn.Conv2d(3, 5, 3), (inputs(),), target="ethos-u55-128")
    assert refusal(raised.value) == [
        "target ethos-u55-128",
        "  found: a network that is not quantised, where an Ethos-U computes integers alone",
        "  fix: quantise it: dimorder.quantize, or --quantize int8 --calibrate PATH",
    ]


def test_a_configuration_that_there_is_not_is_refused(quantised: nn.Module) -> None:
    with pytest.raises(UsageError) as raised:
        dimorder.lower(quantised, (inputs(),), target=target("ethos-u85-256", memory_mode="Sram_Olny"))
    lines = refusal(raised.value)
    assert lines[0] == "ethos-u85-256 with Sram_Olny"
    assert lines[2] == "  fix: choose a section of Vela's Arm/vela.ini, or leave it out"


def test_a_file_is_not_run_where_its_runtime_is_not(lowered: Lowered, tmp_path: Path) -> None:
    file = lowered.save(tmp_path / "net.pte")
    with pytest.raises(UnsupportedError) as raised:
        dimorder.load(file)
    assert refusal(raised.value) == [
        f"loading {file}",
        "  found: it calls EthosUBackend, which this build of ExecuTorch's runtime has not",
        "  fix: run it on the device it was lowered for; `dimorder check` reads it anywhere",
    ]


class Largest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return quantised_to(x, 0.0247, 5).argmax(1)


class Int32(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.int32)


def test_integers_of_64_bits_are_refused_and_those_of_32_are_not() -> None:
    with pytest.raises(UnsupportedError) as raised:
        dimorder.lower(Largest(), (inputs(),), target="ethos-u85-256")
    assert refusal(raised.value) == [
        "output 'output0'",
        "  found: int64, where an Ethos-U has 32 bits",
        "  fix: return it as int32: y.to(torch.int32)",
    ]
    narrow = nn.Sequential(Largest(), Int32())
    lowered = dimorder.lower(narrow, (inputs(),), target="ethos-u85-256")
    assert [spec.dtype for spec in lowered.contract.outputs] == ["int32"]


class ClassLoss(nn.Module):
    """A loss of classes, which PyTorch takes as int64 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 6)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.linear(x), at.long())


def test_classes_of_32_bits_that_the_module_widens_are_lowered() -> None:
    torch.manual_seed(2)
    examples = [(torch.randn(3, 7), torch.randint(0, 6, (3,))) for _ in range(4)]
    with pytest.raises(UnsupportedError) as raised:
        quantized = dimorder.quantize(ClassLoss().eval(), examples, target="ethos-u85-256")
        dimorder.lower(quantized, target="ethos-u85-256")
    assert raised.value.fix == "give the example as int32: x.to(torch.int32); the module may take x.long()"
    narrow = [(x, at.to(torch.int32)) for x, at in examples]
    quantized = dimorder.quantize(ClassLoss().eval(), narrow, target="ethos-u85-256")
    (found,) = quantized.compare(dimorder.lower(quantized, target="ethos-u85-256"))
    assert found.snr_db is not None and found.snr_db > 35


# -- the objective of cycles, and the command line ---------------------------------------------------------


def test_a_plan_by_cycles_takes_fewer_than_others() -> None:
    """Test attention over channels that come first: the plan by cycles has other operators and forms."""
    network = by_arm(Attention().eval(), torch.randn(1, 6, 20, generator=torch.Generator().manual_seed(5)))
    x = torch.randn(1, 6, 20, generator=torch.Generator().manual_seed(5))
    found = {
        objective: dimorder.lower(network, (x,), target="ethos-u85-256", objective=objective).artifact.npu
        for objective in ("bytes", "count", "cycles")
    }
    cycles = {objective: npu.cycles for objective, npu in found.items() if npu is not None}
    assert cycles["cycles"] < min(cycles["bytes"], cycles["count"])


class Attention(nn.Module):
    """One head, on sequences of features that come features first."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 24), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.transpose(1, 2)).chunk(3, -1)
        mixed: Tensor = self.out((q @ k.transpose(1, 2)).softmax(-1) @ v)
        return mixed.transpose(1, 2)


def test_cycles_are_known_of_what_is_lowered_alone(quantised: nn.Module) -> None:
    with pytest.raises(UsageError) as raised:
        dimorder.plan(quantised, (inputs(),), target="ethos-u85-256", objective="cycles")
    assert refusal(raised.value) == [
        "objective 'cycles'",
        "  found: only lower can compare its plans",
        "  fix: lower the network, or plan by bytes or count",
    ]


CONV = [
    "lower",
    "torch.nn:Conv2d",
    "--arg",
    "in_channels=3",
    "--arg",
    "out_channels=5",
    "--arg",
    "kernel_size=3",
]


@pytest.mark.parametrize(
    ("target_name", "option", "found"),
    [
        ("ethos-u85-256", "memry_mode=Sram_Only", "no such option"),
        ("ethos-u85-256", "memory_mode", "no value"),
        ("xnnpack", "memory_mode=Sram_Only", "no such option"),
        ("torch", "memory_mode=Sram_Only", "target torch has none"),
    ],
)
def test_an_option_that_there_is_not_is_refused(
    target_name: str, option: str, found: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--input", "1x3x10x14", "--target", target_name, "--option", option]
    suffix = ".pt2" if target_name == "torch" else ".pte"
    assert main([*CONV, *options, "-o", str(tmp_path / f"net{suffix}")]) == 2
    said = capfd.readouterr().err.strip().splitlines()
    assert said[-3:-1] == [f"--option {option}", f"  found: {found}"]


def test_the_command_prints_and_writes_what_vela_estimates(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "examples.npz", x=np.random.default_rng(0).standard_normal((4, 3, 10, 14), "float32"))
    options = ["--input", "1x3x10x14", "--target", "ethos-u55-256", "--option", "memory_mode=Sram_Only"]
    quantise = ["--quantize", "int8", "--calibrate", str(tmp_path / "examples.npz")]
    written = ["-o", str(tmp_path / "net.pte"), "--report", str(tmp_path / "net.html")]
    assert main([*CONV, *options, *quantise, *written]) == 0
    said = capfd.readouterr().out
    assert "ethos-u55-256 by Vela" in said
    assert "program and TOSA graph; the file runs only on a device" in said
    assert "no operators left to the CPU" in said
    assert "Vela 5.1.0 estimates" in (tmp_path / "net.html").read_text()
