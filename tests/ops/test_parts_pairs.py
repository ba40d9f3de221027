"""Scatters and sorts written in comparisons of all pairs: what they compute, also of ties and NaN."""

from __future__ import annotations

import math

import pytest
import torch

from dimorder.ops.parts_pairs import PAIRS

aten = torch.ops.aten
ROW = torch.tensor([3.0, -1.0, math.nan, 3.0, math.inf, -math.inf, -1.0, -0.0, 0.0, math.nan])
ROWS = torch.stack([ROW, ROW.flip(0), torch.arange(10.0) // 3])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_equal_values_stay_in_their_order(dim: int, descending: bool) -> None:
    options = {"stable": True, "dim": dim, "descending": descending}
    values, places = PAIRS[aten.sort.stable](ROWS, **options)
    wanted = torch.sort(ROWS, **options)
    assert torch.equal(places, wanted.indices)
    torch.testing.assert_close(values, wanted.values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("reduce", ["amax", "amin", "prod"])
def test_several_values_go_to_one_place(reduce: str, include_self: bool) -> None:
    """No value goes to the first place, and a NaN to one that others go to as well."""
    x, source = torch.linspace(-2, 2, 7), torch.cat([ROW, torch.linspace(-3, 3, 6)])
    index = torch.tensor([1, 1, 6, 2, 5, 4, 3, 3, 2, 1, 4, 6, 6, 2, 3, 1])
    got = PAIRS[aten.scatter_reduce.two](x, 0, index, source, reduce, include_self)
    wanted = torch.scatter_reduce(x, 0, index, source, reduce, include_self=include_self)
    torch.testing.assert_close(got, wanted, equal_nan=True)


def test_integers_and_rows_that_are_too_long_stay() -> None:
    index = torch.zeros(5000, dtype=torch.int64)
    assert PAIRS[aten.scatter_reduce.two](index[:9], 0, index[:3], index[:3], "amax") is NotImplemented
    assert PAIRS[aten.scatter_reduce.two](torch.ones(5000), 0, index, index * 0.5, "prod") is NotImplemented
    assert PAIRS[aten.sort.stable](torch.ones(5000), stable=True) is NotImplemented
