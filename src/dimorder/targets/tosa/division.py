"""Write quotients rounded to whole numbers, and remainders, as TOSA operators.

A multiplication with TOSA's reciprocal may round to the wrong side of a whole number. So the remainder is
computed exactly, and corrects the quotient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from dimorder.targets.rows import by_overload
from dimorder.targets.table import Arguments, Row
from dimorder.targets.tosa.pointwise import (
    add,
    both,
    check_float,
    check_number,
    div,
    greater,
    mul,
    negate,
    truncate,
)
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

aten = torch.ops.aten

_SPLIT = 4097.0  # 2¹² + 1: halves the 24 bits of a float32 (Veltkamp)
_LARGEST = 3.4e38  # above it there is only infinity


# -- parts: values to values


def _sub(w: TosaWriter, x: TosaValue | float, y: TosaValue) -> TosaValue:
    return w.elementwise("SUB", x, y)


def _select(w: TosaWriter, condition: TosaValue, x: TosaValue, y: TosaValue | float) -> TosaValue:
    return w.elementwise("SELECT", condition, x, y)


def _halves(w: TosaWriter, x: TosaValue) -> tuple[TosaValue, TosaValue]:
    scaled = mul(w, x, _SPLIT)
    high = _sub(w, scaled, _sub(w, scaled, x))
    return high, _sub(w, x, high)


def _left_over(w: TosaWriter, x: TosaValue, q: TosaValue, y: TosaValue) -> TosaValue:
    """Return x - q·y without rounding the multiplication (Dekker). It is exact if q·y is near x."""
    product = mul(w, q, y)
    (a, b), (c, d) = _halves(w, q), _halves(w, y)
    error = _sub(w, mul(w, a, c), product)
    for pair in ((a, d), (b, c), (b, d)):
        error = add(w, error, mul(w, *pair))
    return _sub(w, _sub(w, x, product), error)


def _divided(w: TosaWriter, x: TosaValue, y: TosaValue) -> tuple[TosaValue, TosaValue]:
    """Return the whole quotient of two magnitudes, and the remainder, both exact."""
    inverse = w.elementwise("RECIPROCAL", y)
    q = w.elementwise("FLOOR", mul(w, x, inverse))
    rest = _left_over(w, x, q, y)
    rest = _select(w, greater(w, y, _LARGEST), x, rest)
    below = greater(w, mul(w, rest, 0.0), rest)  # rest < 0
    q, rest = _select(w, below, add(w, q, -1.0), q), _select(w, below, add(w, rest, y), rest)
    above = w.elementwise("GREATER_EQUAL", rest, y, dtype="BOOL")
    return _select(w, above, add(w, q, 1.0), q), _select(w, above, _sub(w, rest, y), rest)


def _are_opposed(w: TosaWriter, x: TosaValue, y: TosaValue) -> TosaValue:
    zero = w.number(0, x.dtype)
    signs = (w.elementwise("GREATER", zero, v, dtype="BOOL") for v in (x, y))
    return w.elementwise("LOGICAL_XOR", *signs)


def _floor(w: TosaWriter, x: TosaValue, y: TosaValue) -> TosaValue:
    if x.dtype != "FP32":
        q = w.elementwise("INTDIV", x, y)
        rest = w.elementwise("SUB", x, mul(w, q, y))
        odd = w.elementwise("LOGICAL_NOT", w.elementwise("EQUAL", rest, 0, dtype="BOOL"))
        low = w.elementwise("LOGICAL_AND", odd, _are_opposed(w, x, y))
        return w.elementwise("SELECT", low, add(w, q, -1), q)
    q, rest = _divided(w, w.elementwise("ABS", x), w.elementwise("ABS", y))
    down = _sub(w, negate(w, q), _select(w, greater(w, rest, 0.0), w.number(1.0, "FP32"), 0.0))
    whole = _select(w, _are_opposed(w, x, y), down, q)
    whole = add(w, whole, _sub(w, rest, rest))  # NaN where there is no remainder
    by_zero = w.elementwise("EQUAL", y, 0.0, dtype="BOOL")
    return _select(w, by_zero, mul(w, x, w.elementwise("RECIPROCAL", y)), whole)


def _towards_zero(w: TosaWriter, x: TosaValue, y: TosaValue) -> TosaValue:
    """Divide towards zero.

    torch rounds the quotient to a float32 first, so the remainder corrects the reciprocal's quotient.
    """
    if x.dtype != "FP32":
        return w.elementwise("INTDIV", x, y)
    inverse = w.elementwise("RECIPROCAL", y)
    q = mul(w, x, inverse)
    better = add(w, q, mul(w, _left_over(w, x, q, y), inverse))
    is_number = w.elementwise("EQUAL", better, better, dtype="BOOL")
    return truncate(w, _select(w, is_number, better, q))


def _fmod(w: TosaWriter, x: TosaValue, y: TosaValue) -> TosaValue:
    _, rest = _divided(w, w.elementwise("ABS", x), w.elementwise("ABS", y))
    return _select(w, greater(w, w.number(0.0, "FP32"), x), negate(w, rest), rest)


def _remainder(w: TosaWriter, x: TosaValue, y: TosaValue) -> TosaValue:
    rest = _fmod(w, x, y)
    is_zero = w.elementwise("EQUAL", rest, 0.0, dtype="BOOL")
    across = w.elementwise("LOGICAL_AND", _are_opposed(w, rest, y), w.elementwise("LOGICAL_NOT", is_zero))
    return _select(w, across, add(w, rest, y), rest)


# -- rows


def _row(function: Callable[..., TosaValue], check: Callable[[Arguments], str | None]) -> Row:
    return Row(lambda w, a: function(w, *both(w, a)), check)


_BY_MODE = {None: div, "floor": _floor, "trunc": _towards_zero}
_mode_row = Row(lambda w, a: _BY_MODE[a.rounding_mode](w, *both(w, a)), check_number)
_floor_row = _row(_floor, check_number)

ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.div.Tensor_mode: _mode_row,
        aten.div.Scalar_mode: _mode_row,
        aten.floor_divide.default: _floor_row,
        aten.floor_divide.Scalar: _floor_row,
        **by_overload({aten.fmod: _row(_fmod, check_float), aten.remainder: _row(_remainder, check_float)}),
    }
)
