"""Add up many numbers of one sign: a sum of one after the other would round in each step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dimorder

pytest.importorskip("executorch")
pytest.importorskip("ai_edge_litert")
pytest.importorskip("tosa_reference_model")

# Shapes with the dimensions that are reduced: rows of pixels, pixels, and one long dimension of each kind.
CALLS = [
    ((1, 5, 303, 401), (2, 3)),
    ((2, 3, 130, 2, 97), (2, 4)),
    ((1, 40009, 3), (1,)),
    ((2, 70001), (1,)),
    ((3, 5, 11, 701), (1, 2, 3)),
]


class Reduced(nn.Module):
    def __init__(self, dims: tuple[int, ...], of: str) -> None:
        super().__init__()
        self.dims, self.of = dims, of

    def forward(self, x: Tensor) -> Tensor:
        return getattr(x, self.of)(self.dims)


@pytest.mark.parametrize("of", ["mean", "sum"])
@pytest.mark.parametrize(("shape", "dims"), CALLS)
@pytest.mark.parametrize("target", ["xnnpack", "litert", "tosa"])
def test_many_equal_numbers(target: str, shape: tuple[int, ...], dims: tuple[int, ...], of: str) -> None:
    network = Reduced(dims, of)
    lowered = dimorder.lower(network, (torch.rand(shape),), target=target)
    x = torch.full(shape, 0.1)
    wanted = network(x.double()).float()
    torch.testing.assert_close(lowered(x), wanted, rtol=2e-5, atol=0)
