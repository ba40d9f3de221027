"""Test that a plan by count has packed linears whole or split, whichever takes fewer conversions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dimorder

pytest.importorskip("executorch")


class Halves(nn.Module):
    """Two halves of a linear, both read with the channels outermost: whole, they need one conversion."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 64, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(half.mT.flatten(1).softmax(-1) for half in self.linear(x).chunk(2, -1))


class Attention(nn.Module):
    """Attention from one packed linear: split, only the result of the heads needs a conversion."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.packed, self.out = nn.Linear(64, 192, bias=bias), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.packed(x).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed: Tensor = self.out(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))
        return mixed


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("network", "x"), [(Halves, torch.ones(2, 7, 24)), (Attention, torch.ones(2, 7, 64))]
)
def test_a_packed_linear_is_whole_or_split(network: type[nn.Module], x: Tensor, bias: bool) -> None:
    plan = dimorder.plan(network(bias).eval(), (x,), target="xnnpack", objective="count")
    assert plan.certificate.optimal and len(plan.conversions) == 1
