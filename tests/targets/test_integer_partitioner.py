"""Test that ExecuTorch's Arm partitioners make one delegate of a decomposed quantised program, with right
numbers and fewer TRANSPOSEs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Node

pytest.importorskip("executorch")
pytest.importorskip("tosa_reference_model")
pytest.importorskip("torchao")

import dimorder
from dimorder.graph.quantized import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE
from dimorder.targets.tosa.graph import TosaSummary, inspect_tosa
from tests.targets.quantised import by_arm
from tests.targets.test_tosa_partitioner import computed
from tests.zoo import network


def calls_of(program: ExportedProgram) -> list[Node]:
    return [node for node in program.graph.nodes if node.op == "call_function"]


def delegated(program: ExportedProgram, partitioner: Any) -> bytes:
    """Return the data of a program's one delegate; only quantizes and dequantizes run outside of it."""
    from executorch.exir import to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(program, partitioner=[partitioner]).exported_program()
    called = {getattr(n.target, "_op", n.target) for n in calls_of(edge)}
    names = {getattr(each, "__name__", "") for each in called - {QUANTIZE, DEQUANTIZE}}
    assert names == {"executorch_call_delegate", "getitem"}
    (delegate,) = [node for node in edge.graph.nodes if node.op == "get_attr"]
    return bytes(getattr(edge.graph_module, delegate.target).processed_bytes)


def to_tosa(program: ExportedProgram) -> tuple[bytes, TosaSummary]:
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner

    data = delegated(program, TOSAPartitioner(TosaCompileSpec("TOSA-1.0+INT")))
    return data, inspect_tosa(data)


def compare(model: nn.Module, x: Tensor, quanta: int = 1, **options: Any) -> tuple[int, int]:
    """TRANSPOSEs of the quantised network and of its decomposed program, both lowered by ExecuTorch. The
    latter's integers are ours, but for roundings of this many quanta."""
    quantised = by_arm(model, x)
    lowered = dimorder.lower(quantised, (x,), target="tosa", **options)
    (spec,), (out,) = lowered.contract.inputs, lowered.contract.outputs
    given = spec.quantized(x)
    wanted = lowered.run(given)
    program = lowered.decomposed()
    data, ours = to_tosa(program)
    found = computed(data, given).view(wanted.shape)
    assert out.dtype == "int8" and wanted.unique().numel() > 3
    assert int((found.int() - wanted.int()).abs().max()) <= quanta
    _, stock = to_tosa(torch.export.export(quantised, (x,)))
    return stock.transposes, ours.transposes


class Shuffled(nn.Module):
    """Two groups, shuffled between two convolutions, borders on two sides alone, a pool and a gate."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.gate = nn.Linear(8, 8)
        self.last = nn.Conv2d(8, 6, (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.first(x).chunk(2, 1)
        right = self.depthwise(nn.functional.pad(right, (2, 0, 1, 1)))
        x = torch.cat([left, right], 1)
        x = x.unflatten(1, (2, 4)).transpose(1, 2).flatten(1, 2)
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        return self.last(nn.functional.max_pool2d(x, 2, 1))


IMAGE = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
def test_a_network_is_one_delegate_with_fewer_transposes() -> None:
    stock, ours = compare(Shuffled().eval(), IMAGE)
    assert ours < stock


def test_an_input_in_nhwc_needs_none_of_its_own() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    stock, ours = compare(model, IMAGE, input_orders="NHWC")
    assert ours == 0 < stock


def test_what_moves_moves_integers_and_weights_stay_integers() -> None:
    lowered = dimorder.lower(by_arm(Shuffled().eval(), IMAGE), (IMAGE,), target="tosa")
    program = lowered.decomposed()
    calls = calls_of(program)
    for node in calls:
        if node.target is torch.ops.aten.permute.default:
            assert not node.meta["val"].is_floating_point()
        if node.target is torch.ops.aten.conv2d.default:
            assert {read.target for read in node.all_input_nodes} <= {DEQUANTIZE, DEQUANTIZE_CHANNELS}
    assert DEQUANTIZE_CHANNELS in {node.target for node in calls}
    given = lowered.contract.inputs[0].quantized(IMAGE)
    (result,) = program.module()(given)
    assert int((result.int() - lowered.run(given).int()).abs().max()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2"])
def test_networks_have_no_more_transposes_than_stocks(name: str) -> None:
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    stock, ours = compare(network(name).build(), x, quanta=3)
    assert ours <= stock


@pytest.mark.slow
def test_ethos_us_partitioner_takes_it() -> None:
    pytest.importorskip("ethosu")
    from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner

    quantised = by_arm(Shuffled().eval(), IMAGE)
    lowered = dimorder.lower(quantised, (IMAGE,), target="ethos-u85-256")
    blob = delegated(lowered.decomposed(), EthosUPartitioner(EthosUCompileSpec("ethos-u85-256")))
    assert b"vela_bin_stream" in blob
