"""Sizes that Python rounds in floats are written in integers, unless a float may be rounded otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatTrueDiv,
    FloorToInt,
    IntTrueDiv,
    RoundToInt,
    ToFloat,
    TruncToInt,
)
from torch.utils._sympy.value_ranges import ValueRanges

from dimorder.sizes.by_floors import by_floors, has_floats

N = sympy.Symbol("n", integer=True, positive=True)
MANY = 100_000  # sizes: more than are compared

CASES: dict[str, tuple[Any, Callable[[int], int]]] = {
    "up": (CeilToInt(FloatTrueDiv(ToFloat(N), sympy.Float(8.0))), lambda n: math.ceil(n / 8.0)),
    "up, by thirds": (CeilToInt(IntTrueDiv(N, 3)), lambda n: math.ceil(n / 3)),
    "down": (FloorToInt(0.75 * ToFloat(N) - 2.5), lambda n: math.floor(0.75 * n - 2.5)),
    "nearest": (RoundToInt(1.5 * ToFloat(N)), lambda n: round(1.5 * n)),
    "nearest, by quarters": (
        RoundToInt(IntTrueDiv(5 * N + 1, 4) + 1.0),
        lambda n: round((5 * n + 1) / 4 + 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_floats_compute_exactly_is_written_for_any_number_of_sizes(name: str) -> None:
    expression, compute = CASES[name]
    written = by_floors(expression, {N: ValueRanges(1, MANY)})
    assert not has_floats(written)
    for size in (*range(1, 50), 99_999, MANY):
        assert written.xreplace({N: sympy.Integer(size)}) == compute(size)


def test_a_quotient_of_floats_may_be_one_number_at_all_sizes() -> None:
    # Swin Transformers compute the batch so: 49 / 49.0 is 1, and sympy's 49 * (1 / 49.0) is less
    height, width = sympy.symbols("h w", integer=True, positive=True)
    area = FloatTrueDiv(IntTrueDiv(16 * height * width, 4), sympy.Float(4.0))
    batch = TruncToInt(FloatTrueDiv(ToFloat(height * width), area))
    assert by_floors(batch, {height: ValueRanges(2, 10), width: ValueRanges(2, 10)}) == 1


def test_a_truncated_number_below_zero_is_no_floor() -> None:
    half = TruncToInt(IntTrueDiv(N - 20, 2))
    assert not has_floats(by_floors(half, {N: ValueRanges(20, MANY)}))
    assert by_floors(half, {N: ValueRanges(3, MANY)}) == half


def test_a_float_that_is_rounded_is_compared_at_every_size() -> None:
    # 0.29 * 100 is 28.999999999999996
    part = TruncToInt(0.29 * ToFloat(N))
    assert not has_floats(by_floors(part, {N: ValueRanges(1, 99)}))
    for most in (100, MANY):
        assert by_floors(part, {N: ValueRanges(1, most)}) == part
