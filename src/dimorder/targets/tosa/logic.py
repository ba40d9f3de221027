"""Write comparisons, truth values and selections by them as TOSA operators."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from dimorder.errors import UnsupportedError
from dimorder.targets.rows import truth_rows
from dimorder.targets.table import Arguments, Row, is_of_one_type
from dimorder.targets.tosa.calls import dtype_of
from dimorder.targets.tosa.dtypes import DTYPES, FLOATS, HALVES
from dimorder.targets.tosa.pointwise import value
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

aten = torch.ops.aten

_BITS = 32  # of an integer in TOSA


def _compare(kind: str, *, swap: bool = False, negated: bool = False) -> Row:
    def build(w: TosaWriter, a: Arguments) -> TosaValue:
        # a number takes the tensor's type if it can
        types = [dtype_of(operand) for operand in (a.self, a.other)]
        floats = [dtype for dtype in types if dtype in HALVES] or [t for t in types if t in FLOATS]
        x, y = (value(w, operand, (*floats, "INT32")[0]) for operand in (a.self, a.other))
        truth = w.elementwise(kind, *((y, x) if swap else (x, y)), dtype="BOOL")
        return w.elementwise("LOGICAL_NOT", truth) if negated else truth

    return Row(build, halves=is_of_one_type)


def _isnan(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return w.elementwise("LOGICAL_NOT", w.elementwise("EQUAL", x, x, dtype="BOOL"))


def _value(w: TosaWriter, operand: Any, dtype: torch.dtype) -> TosaValue:
    return value(w, operand, DTYPES[dtype])


def _shift(kind: str, **options: Any) -> Row:
    def build(w: TosaWriter, a: Arguments) -> TosaValue:
        if not all(0 <= places < _BITS for places in a.other.flatten().tolist()):
            raise UnsupportedError("a shift", "a shift by other places than 0 to 31", "shift by fewer")
        return w.elementwise(kind, *(_value(w, operand, a.dtype) for operand in (a.self, a.other)), **options)

    def check(a: Arguments) -> str | None:
        return None if a.is_constant(a.other) else "a shift by computed places"

    return Row(build, check)


_COMPARISONS = {
    aten.eq: _compare("EQUAL"),
    aten.ne: _compare("EQUAL", negated=True),
    aten.gt: _compare("GREATER"),
    aten.lt: _compare("GREATER", swap=True),
    aten.ge: _compare("GREATER_EQUAL"),
    aten.le: _compare("GREATER_EQUAL", swap=True),
}

ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        **{overloads.Tensor: row for overloads, row in _COMPARISONS.items()},
        **{overloads.Scalar: row for overloads, row in _COMPARISONS.items()},
        aten.isnan.default: Row(_isnan, halves=is_of_one_type),
        **truth_rows(_value, "LOGICAL_XOR", "SELECT", halves=is_of_one_type, bitwise=True),
        aten.bitwise_left_shift.Tensor: _shift("LOGICAL_LEFT_SHIFT"),
        aten.bitwise_right_shift.Tensor: _shift("ARITHMETIC_RIGHT_SHIFT", round=False),
    }
)
