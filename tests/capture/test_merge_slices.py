"""Test the merging of slices: one slice cuts what several cut, and the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.capture.captured import capture
from dimorder.graph.interpreter import GraphRun

aten = torch.ops.aten
X = torch.randn(3, 23, 5)


class Cut(nn.Module):
    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x.relu()) * 2


NETWORKS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "one of several": (lambda x: x[:, 4:9][:, 2:3], 1),
    "from the end": (lambda x: x[:, -9:-2][:, -3:], 1),
    "steps of a slice": (lambda x: x[:, 1:][:, 1::3], 1),
    "steps of steps": (lambda x: x[:, 1::4][:, 1::3], 2),
    "three deep": (lambda x: x[:, 2:][:, :-3][:, 1::2], 1),
    "two readers": (lambda x: x[:, 3:9][:, :2] * x[:, 3:9][:, 4:], 2),
    "an empty slice": (lambda x: x[:, 3:9][:, 6:], 0),
    "two dimensions": (lambda x: x[:, 3:9][:, 1:][..., 2:4], 2),
    "a reader that is no slice": (lambda x: x[:, 3:9][:, :3] + x[:, 3:9].sum(1, keepdim=True), 2),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_slices_of_a_slice_cut_the_whole(name: str) -> None:
    compute, count = NETWORKS[name]
    captured = capture(Cut(compute), (X,))
    cuts = [node for node in captured.nodes if node.target is aten.slice.Tensor]
    assert len(cuts) == count
    assert torch.equal(GraphRun(captured.module).tensors(X)[0], Cut(compute)(X))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x[:, :, 2:][:, :, 1:-1],
        lambda x: x[:, :, -9:][:, :, ::2],
        lambda x: x[:, :, ::2][:, :, :-1],
    ],
)
def test_slices_of_a_slice_along_a_dynamic_size(compute: Callable[[Tensor], Tensor]) -> None:
    shapes = ({2: torch.export.Dim("length", min=12, max=40)},)
    lowered = dimorder.lower(Cut(compute), (torch.randn(2, 3, 16),), dynamic_shapes=shapes, target="torch")
    for length in (12, 23, 40):
        x = torch.randn(2, 3, length)
        assert torch.equal(lowered(x), Cut(compute)(x))
