"""Memory is planned for the largest shapes of a program, and for no larger ones."""

from __future__ import annotations

import pytest
import torch
from executorch.exir._serialize._program import deserialize_pte_binary
from torch.export import Dim

import dimorder


class RelativeAttention(torch.nn.Module):
    """Scores positions by their distance: a row is skewed by a view of other sizes (Transformer-XL)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("distances", torch.randn(1, 199, 8))
        self.project = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        distances = self.project(self.distances[:, 100 - length : 99 + length])
        scores = torch.matmul(x, distances.transpose(1, 2))
        padded = torch.cat([torch.zeros(*scores.shape[:2], 1), scores], -1).view(1, 2 * length, length)
        skewed = padded[:, 1:].view_as(scores)[:, :, : scores.shape[-1] // 2 + 1]
        return torch.matmul(torch.softmax(skewed, -1), x)


class PaddedSort(torch.nn.Module):
    """Sorts rows that are padded to a multiple of 32. XNNPACK cannot sort."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, -x.shape[1] % 32)).sort(1).values


def test_a_view_is_not_planned_as_larger_than_its_memory() -> None:
    torch.manual_seed(0)
    module = RelativeAttention().eval()
    lengths = {1: Dim("T", min=4, max=40)}
    lowered = dimorder.lower(module, (torch.randn(1, 17, 8),), target="xnnpack", dynamic_shapes=(lengths,))
    for length in (4, 5, 23, 40):
        x = torch.randn(1, length, 8)
        torch.testing.assert_close(lowered(x), module(x))


@pytest.mark.parametrize("most", [97, 65])
def test_a_padded_size_is_planned_as_large_as_it_gets(most: int) -> None:
    lengths = {1: Dim("T", min=33, max=most)}
    lowered = dimorder.lower(PaddedSort(), (torch.randn(3, 40),), target="xnnpack", dynamic_shapes=(lengths,))
    plan = deserialize_pte_binary(lowered.artifact.data).program.execution_plan[0]
    shapes = [each.val.sizes for each in plan.values if type(each.val).__name__ == "Tensor"]
    assert max(shape[1] for shape in shapes if len(shape) == 2) == most + -most % 32
