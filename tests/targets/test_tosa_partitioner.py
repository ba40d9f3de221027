"""Test that ExecuTorch's own partitioners make the same of a decomposed program, with fewer TRANSPOSEs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

pytest.importorskip("executorch")
pytest.importorskip("tosa_reference_model")

import dimorder
from dimorder.capture.fold import fold_constants
from dimorder.targets.tosa.graph import TosaSummary, inspect_tosa
from tests.zoo import network


class Shuffled(nn.Module):
    """Two groups, shuffled between two convolutions, and a gate that sees the channels alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.slope = nn.PReLU(8)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.gate = nn.Linear(8, 8)
        self.last = nn.Conv2d(8, 6, (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.slope(self.first(x)).chunk(2, 1)
        x = torch.cat([left, self.depthwise(right)], 1)
        x = x.unflatten(1, (2, 4)).transpose(1, 2).flatten(1, 2)
        gate = torch.sigmoid(self.gate(x.mean((2, 3))))
        return self.last(x * gate[:, :, None, None])


IMAGE = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(1))


def by_arm(program: ExportedProgram) -> tuple[bytes, TosaSummary]:
    """The one TOSA graph that ExecuTorch's Arm flow makes of a program, nothing left out."""
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
    from executorch.exir import to_edge_transform_and_lower

    partitioner = TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"))
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner]).exported_program()
    called = {getattr(n.target, "__name__", n.name) for n in edge.graph.nodes if n.op == "call_function"}
    assert called == {"executorch_call_delegate", "getitem"}
    (delegate,) = [node for node in edge.graph.nodes if node.op == "get_attr"]
    data = bytes(getattr(edge.graph_module, delegate.target).processed_bytes)
    return data, inspect_tosa(data)


def computed(data: bytes, x: Tensor) -> Tensor:
    """By the graph on the reference model, for the input as the graph shows it."""
    import tosa_reference_model as reference

    shape = inspect_tosa(data).inputs[0].shape
    array = x if tuple(x.shape) == shape else x.permute(0, 2, 3, 1)
    (result,), status = reference.run(data, [np.ascontiguousarray(array.numpy())])
    assert status == reference.GraphStatus.TOSA_VALID
    return torch.from_numpy(result)


def relative_error(data: bytes, x: Tensor, expected: Tensor) -> float:
    return float((computed(data, x) - expected).abs().max() / expected.abs().max())


def compare(model: nn.Module, x: Tensor, **options: Any) -> tuple[int, int]:
    """TRANSPOSEs of the network and of its decomposed program, both lowered by ExecuTorch."""
    with torch.no_grad():
        expected = model(x)
    lowered = dimorder.lower(model, (x,), target="tosa", **options)
    counts = []
    for program in (torch.export.export(model, (x,)), lowered.decomposed()):
        data, summary = by_arm(program)
        assert relative_error(data, x, expected) < 1e-4
        counts.append(summary.transposes)
    return counts[0], counts[1]


def test_at_most_half_of_the_transposes_are_left() -> None:
    stock, ours = compare(Shuffled().eval(), IMAGE)
    assert 2 * ours <= stock


def test_an_input_in_nhwc_needs_none_of_its_own() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    program = dimorder.lower(model, (IMAGE,), target="tosa", input_orders="NHWC").decomposed()
    data, summary = by_arm(program)
    assert summary.transposes == 0
    assert relative_error(data, IMAGE, model(IMAGE).detach()) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shufflenet_v2_x1_0", "convnext_tiny"])
def test_networks_keep_at_most_half_of_their_transposes(name: str) -> None:
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    stock, ours = compare(network(name).build(), x)
    assert 2 * ours <= stock


def test_other_partitioners_find_weights_that_are_constants() -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program = dimorder.lower(Shuffled().eval(), (IMAGE,), target="tosa").decomposed()
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).exported_program()
    assert not [node.name for node in edge.graph.nodes if "convolution" in str(node.target)]


def test_a_decomposed_program_runs_in_torch_and_has_nothing_of_the_dialect() -> None:
    model = Shuffled().eval()
    program = dimorder.lower(model, (IMAGE,), target="tosa").decomposed()
    (result,) = program.module()(IMAGE)
    torch.testing.assert_close(result, model(IMAGE))
    assert {node.target.namespace for node in program.graph.nodes if node.op == "call_function"} == {"aten"}


class Constants(nn.Module):
    """A constant that is computed from two, noise of its shape, and a constant that is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.arange(6.0).reshape(2, 3))
        self.register_buffer("b", torch.arange(3.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = (self.a + self.b).T
        return x * total, x + torch.rand_like(self.b[:2]), total


def test_folding_leaves_random_numbers_and_outputs_as_they_are() -> None:
    x = torch.randn(3, 2)
    folded = fold_constants(torch.export.export(Constants(), (x,)))
    called = [node.target._opname for node in folded.graph.nodes if node.op == "call_function"]
    assert sorted(set(called) - {"alias"}) == ["add", "mul", "rand_like"]
    product, noisy, total = folded.module()(x)
    assert torch.equal(product, x * total) and total.tolist() == [[0, 3], [2, 5], [4, 7]]
    assert total.is_contiguous() and noisy.shape == x.shape
