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
        return [*sums, x**2, (x % 8191) ** 3, x // 3, x.amax(0), x - 1]


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["int64", "int32"])
def test_large_integers_are_exact(target: str, dtype: torch.dtype) -> None:
    example = torch.arange(30, dtype=dtype).reshape(2, 3, 5)
    lowered = dimorder.lower(Exact().eval(), (example,), target=target)
    x = LARGE + 7 * example
    for got, wanted in zip(lowered(x), Exact()(x), strict=True):
        assert got.dtype == wanted.dtype and torch.equal(got, wanted)
