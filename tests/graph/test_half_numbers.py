"""Numbers beside half precision decide as they do in PyTorch, also where a value is the number itself."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

import dimorder
from tests.marks import slow_but

NUMBERS = (0.1, 0.3)  # in float16, one is rounded down and the other up


class Decisions(nn.Module):
    """Its results jump at numbers."""

    def forward(self, x: Tensor) -> list[Tensor]:
        found = []
        for number in NUMBERS:
            found += [x >= number, x > number, x <= number, x < number, x == number, x != number]
            found += [number >= x, x >= torch.tensor(number, dtype=torch.float64)]
            found += [x // number, torch.div(x, number, rounding_mode="trunc"), x % number]
            found += [torch.fmod(x, number), nn.functional.hardshrink(x, number)]
            found += [nn.functional.threshold(x, number, -5.0), torch.heaviside(x - number, x * 0 + 0.5)]
            found += [number // x, x.amax() >= number * 3]
        return found


class Quotients(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        return [
            x // 0.1,
            x // y,
            torch.div(x, 0.3, rounding_mode="floor"),
            x // 0.0,
            3 // y,
            (x // 0.7).long(),
        ]


@pytest.mark.parametrize(
    ("target", "dtype"),
    slow_but(
        [("xnnpack", torch.bfloat16), *product(["xnnpack", "litert", "tosa", "torch"], [torch.float16])],
        [("xnnpack", torch.float16), ("litert", torch.float16)],
    ),
)
def test_a_value_that_is_the_number_is_decided_as_in_pytorch(target: str, dtype: torch.dtype) -> None:
    x = torch.tensor([times * number for times in (-3, -2, -1, 1, 2, 3) for number in NUMBERS])
    x = x.to(dtype)
    network = Decisions().eval()
    lowered = dimorder.lower(network, (x,), target=target)
    for place, (got, wanted) in enumerate(zip(lowered(x), network(x), strict=True)):
        assert torch.equal(got, wanted), place


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_a_quotient_rounded_down_is_whole(target: str) -> None:
    x = torch.cat([torch.arange(1, 400) * 0.1, torch.arange(1, 400) * -0.3, torch.randn(13) * 20])
    y = torch.tensor([0.1, -0.3, 0.7, 0.0]).repeat(len(x))[: len(x)]
    network = Quotients().eval()
    lowered = dimorder.lower(network, (x, y), target=target)
    for got, wanted in zip(lowered(x, y), network(x, y), strict=True):
        assert torch.equal(got.nan_to_num(1e9), wanted.nan_to_num(1e9))
