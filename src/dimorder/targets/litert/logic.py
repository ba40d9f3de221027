"""Write comparisons, truth values, selections by them, and whole quotients as LiteRT operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.targets.litert.integer_writer import LiteRtValue
from dimorder.targets.litert.pointwise import (
    BOOL,
    F32,
    I32,
    I64,
    absolute,
    add,
    both,
    cast,
    check_float,
    check_number,
    kind2,
    mul,
    select,
    value,
)
from dimorder.targets.litert.writer import LiteRtWriter
from dimorder.targets.rows import by_overload, truth_rows, unfit_shift
from dimorder.targets.table import Arguments, Row, View

aten = torch.ops.aten


def _dtype_of(operand: Any) -> torch.dtype:
    if isinstance(operand, View):
        return operand.value.dtype  # type: ignore[no-any-return]
    if isinstance(operand, Tensor):
        return operand.dtype
    return F32 if isinstance(operand, float) else BOOL if isinstance(operand, bool) else I64


def _compare(kind: str) -> Row:
    def build(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
        # a number takes the type of a tensor of integers, and its last bits; LiteRT orders no truth values
        types = [_dtype_of(operand) for operand in (a.self, a.other)]
        types = types[:1] if types[0] in (I32, I64) and type(a.other) is int else types
        dtype = next((dtype for dtype in (F32, torch.float64, I64, I32) if dtype in types), I32)
        dtype = F32 if dtype == torch.float64 else dtype
        x, y = (value(w, operand, dtype) for operand in (a.self, a.other))
        return w.elementwise(kind, x, y, dtype=BOOL)

    return Row(build)


def _isnan(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    x = w.dense(a.self)
    return w.elementwise("NOT_EQUAL", x, x, dtype=BOOL)


def _check_bits(a: Arguments) -> str | None:
    return None if {a.dtype, a.self.meta["val"].dtype} == {F32, I32} else "bits of other types"


def _with_magnitude(kind: str, number: float) -> Row:
    """Return the row of a comparison of |x| with a number."""

    def build(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
        return w.elementwise(kind, w.elementwise("ABS", w.dense(a.self)), number, dtype=BOOL)

    return Row(build, lambda a: None if a.floats else "whole numbers, which are all finite")


def _hardshrink(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    x = w.dense(a.self)
    near = w.elementwise("LESS_EQUAL", w.elementwise("ABS", x), float(a.lambd), dtype=BOOL)
    return select(w, near, 0.0, x)


# -- bits of integers --------------------------------------------------------------------------------------

_XOR = "NOT_EQUAL"  # of truth values


def _bits(w: LiteRtWriter, kind: str, x: LiteRtValue, y: LiteRtValue | None = None) -> LiteRtValue:
    """Write an operator on bits. LiteRT has those that both integers have; no other sum carries."""
    if y is None:
        return w.elementwise("SUB", -1, x)
    shape = torch.broadcast_shapes(x.shape, y.shape)
    common = w.op("STABLEHLO_AND", [_repeated(w, x, y), _repeated(w, y, x)], shape)
    if kind == "LOGICAL_AND":
        return common
    either = add(w, x, w.elementwise("SUB", y, common))
    return w.elementwise("SUB", either, common) if kind == _XOR else either


def _repeated(w: LiteRtWriter, x: LiteRtValue, y: LiteRtValue) -> LiteRtValue:
    """Repeat an operand along the dimensions in which the other is larger, whose sizes may be dynamic."""
    shape = torch.broadcast_shapes(x.shape, y.shape)
    return w.reshape(x if x.shape == shape else add(w, x, w.elementwise("SUB", y, y)), shape)


def _shift_left(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Multiply by the power of two, which loses the bits that torch shifts out."""
    return mul(w, value(w, a.self, a.dtype), w.constant(_powers(a.other, a.dtype)))


def _shift_right(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Divide by the power of two; the largest power is negative, and divides in two steps."""
    x, most = value(w, a.self, a.dtype), torch.iinfo(a.dtype).bits - 2
    for places in (a.other.clamp(max=most), (a.other - most).clamp(min=0)):
        if places.any():
            x = _floor(w, x, w.constant(_powers(places, a.dtype)))
    return x


def _powers(places: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.ones_like(places, dtype=dtype) << places.to(dtype)


# -- quotients rounded to whole numbers, and remainders ----------------------------------------------------


def _floor(w: LiteRtWriter, x: LiteRtValue, y: LiteRtValue) -> LiteRtValue:
    """Divide whole numbers and round down."""
    if x.dtype == I64:
        one_less = cast(w, _differ_in_sign(w, x, y, _remainder(w, x, y)), I64)
        return w.elementwise("SUB", _towards_zero(w, x, y), one_less)
    return w.elementwise("FLOOR_DIV", x, y)


def _towards_zero(w: LiteRtWriter, x: LiteRtValue, y: LiteRtValue) -> LiteRtValue:
    if x.dtype == I64:
        return _exact_quotient(w, w.elementwise("SUB", x, _fmod(w, x, y)), y)
    return w.elementwise("DIV", x, y)


def _exact_quotient(w: LiteRtWriter, x: LiteRtValue, y: LiteRtValue) -> LiteRtValue:
    """Return the quotient of int64 `x`, which is a multiple of `y`. DIV and FLOOR_DIV have no int64.

    A division in floats is off by at most 2^-22 of the quotient, plus 1, and is exact if the quotient is 1.
    So four divisions, each of the remainder that the last one left, cover 64 bits.
    """
    divisor, quotient, rest = cast(w, y, F32), None, x
    for _ in range(4):
        part = cast(w, w.elementwise("DIV", cast(w, rest, F32), divisor), I64)
        quotient = part if quotient is None else add(w, quotient, part)
        rest = w.elementwise("SUB", rest, mul(w, part, y))
    assert quotient is not None
    return quotient


def _remainder(w: LiteRtWriter, x: LiteRtValue, y: LiteRtValue) -> LiteRtValue:
    return w.elementwise("FLOOR_MOD", x, y)


def _differ_in_sign(w: LiteRtWriter, x: LiteRtValue, y: LiteRtValue, rest: LiteRtValue) -> LiteRtValue:
    """Return where x and y have other signs and leave a rest, so that rounding down is not towards zero."""
    signs = (w.elementwise("LESS", each, 0, dtype=BOOL) for each in (x, y))
    has_rest = w.elementwise("NOT_EQUAL", rest, 0, dtype=BOOL)
    return w.elementwise("LOGICAL_AND", w.elementwise("NOT_EQUAL", *signs, dtype=BOOL), has_rest)


def _fmod(w: LiteRtWriter, x: LiteRtValue, y: LiteRtValue) -> LiteRtValue:
    if x.dtype != F32:  # no magnitudes: the least integer has none
        rest = _remainder(w, x, y)
        return select(w, _differ_in_sign(w, x, y, rest), w.elementwise("SUB", rest, y), rest)
    rest = w.elementwise("FLOOR_MOD", absolute(w, x), absolute(w, y))
    is_below = w.elementwise("LESS", x, 0, dtype=BOOL)
    return select(w, is_below, w.elementwise("NEG", rest), rest)


def _quotient(function: Callable[..., LiteRtValue]) -> Row:
    return Row(lambda w, a: function(w, *both(w, a)), check_number)


_BY_MODE = {None: kind2("DIV"), "floor": _floor, "trunc": _towards_zero}
_mode_row = Row(lambda w, a: _BY_MODE[a.rounding_mode](w, *both(w, a)), check_number)

ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        **by_overload(
            {
                aten.eq: _compare("EQUAL"),
                aten.ne: _compare("NOT_EQUAL"),
                aten.gt: _compare("GREATER"),
                aten.lt: _compare("LESS"),
                aten.ge: _compare("GREATER_EQUAL"),
                aten.le: _compare("LESS_EQUAL"),
            }
        ),
        aten.isnan.default: Row(_isnan),
        aten.view.dtype: Row(
            lambda w, a: w.elementwise("BITCAST", w.dense(a.self), dtype=a.dtype), _check_bits
        ),
        aten.isinf.default: _with_magnitude("EQUAL", math.inf),
        aten.isfinite.default: _with_magnitude("LESS", math.inf),
        aten.hardshrink.default: Row(_hardshrink, check_float),
        **truth_rows(value, _XOR, "SELECT_V2", bits=_bits),
        aten.bitwise_left_shift.Tensor: Row(_shift_left, unfit_shift),
        aten.bitwise_right_shift.Tensor: Row(_shift_right, unfit_shift),
        aten.div.Tensor_mode: _mode_row,
        aten.div.Scalar_mode: _mode_row,
        aten.floor_divide.default: _quotient(_floor),
        aten.floor_divide.Scalar: _quotient(_floor),
        **by_overload({aten.fmod: _quotient(_fmod), aten.remainder: _quotient(_remainder)}),
    }
)
