"""Integers that float32 does not represent stay exact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dimorder

LARGE = 2**27 + 1


class Exact(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        sums = [x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), (x > 3).sum(-1), x.cumsum(1)]
        sums += [x.sum(1, dtype=torch.int32), x.sum((0, 2), dtype=torch.int64), 7 % (x + 1)]
        return [*sums, x**2, (x % 8191) ** 3, x // 3, x.amax(0), x - 1]


class Divided(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        quotients = [torch.div(x, d, rounding_mode="trunc") for d in (y, 10, -7)]
        return [*quotients, torch.fmod(x, y), torch.fmod(x, 10), x % y, x // y]


class Wrapped(nn.Module):
    """Computes with numbers that int32 does not represent, of which torch takes the last bits."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [x * 2654435761, x < 2**32 + 3, x == 2**40, 2**31 - x]


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["int64", "int32"])
def test_large_integers_are_exact(target: str, dtype: torch.dtype) -> None:
    example = torch.arange(30, dtype=dtype).reshape(2, 3, 5)
    lowered = dimorder.lower(Exact().eval(), (example,), target=target)
    x = LARGE + 7 * example
    for got, wanted in zip(lowered(x), Exact()(x), strict=True):
        assert got.dtype == wanted.dtype and torch.equal(got, wanted)


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_large_integers_are_divided_exactly(target: str) -> None:
    y = torch.tensor([[3, -7, 10, 1], [-2, 9, -4, 5]])
    example = torch.arange(8).reshape(2, 4) - 3
    lowered = dimorder.lower(Divided(), (example, y), target=target)
    x = torch.tensor([[2**53 + 1, 2**60 + 1, -(2**62) - 1, -5], [7, -(2**61) + 3, 2**55 - 3, -(2**54) - 1]])
    for got, wanted in zip(lowered(x, y), Divided()(x, y), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_numbers_beyond_32_bits_have_their_last_bits(target: str) -> None:
    x = torch.tensor([[0, 2, 5], [-4, 3, 70000]], dtype=torch.int32)
    lowered = dimorder.lower(Wrapped(), (x,), target=target)
    for got, wanted in zip(lowered(x), Wrapped()(x), strict=True):
        assert torch.equal(got, wanted)
