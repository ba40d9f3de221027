"""Write comparisons, truth values and selections by them as TOSA operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from dimorder.errors import UnsupportedError
from dimorder.targets.rows import by_overload, truth_rows, unfit_shift
from dimorder.targets.table import Arguments, Row, is_of_one_type
from dimorder.targets.tosa.calls import dtype_of
from dimorder.targets.tosa.dtypes import DTYPES, FLOATS, HALVES
from dimorder.targets.tosa.pointwise import value
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

aten = torch.ops.aten

_BITS = 32  # of an integer in TOSA


@dataclass(frozen=True)
class TosaComparison:
    """A comparison as an operator of TOSA, whose operands may be swapped and whose result may be negated."""

    kind: str
    swap: bool = False
    negated: bool = False

    def write(self, w: TosaWriter, x: TosaValue, y: TosaValue) -> TosaValue:
        truth = w.elementwise(self.kind, *((y, x) if self.swap else (x, y)), dtype="BOOL")
        return w.elementwise("LOGICAL_NOT", truth) if self.negated else truth


_BY_NAME = {
    aten.eq: TosaComparison("EQUAL"),
    aten.ne: TosaComparison("EQUAL", negated=True),
    aten.gt: TosaComparison("GREATER"),
    aten.lt: TosaComparison("GREATER", swap=True),
    aten.ge: TosaComparison("GREATER_EQUAL"),
    aten.le: TosaComparison("GREATER_EQUAL", swap=True),
}
COMPARISONS: Mapping[Any, TosaComparison] = MappingProxyType(by_overload(_BY_NAME))


def _compare(comparison: TosaComparison) -> Row:
    def build(w: TosaWriter, a: Arguments) -> TosaValue:
        # a number takes the tensor's type if it can
        types = [dtype_of(operand) for operand in (a.self, a.other)]
        floats = [dtype for dtype in types if dtype in HALVES] or [t for t in types if t in FLOATS]
        x, y = (value(w, operand, (*floats, "INT32")[0]) for operand in (a.self, a.other))
        return comparison.write(w, x, y)

    return Row(build, halves=is_of_one_type)


def _isnan(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return w.elementwise("LOGICAL_NOT", w.elementwise("EQUAL", x, x, dtype="BOOL"))


def _value(w: TosaWriter, operand: Any, dtype: torch.dtype) -> TosaValue:
    return value(w, operand, DTYPES[dtype])


def _bits(w: TosaWriter, kind: str, *operands: TosaValue) -> TosaValue:
    return w.elementwise(kind.replace("LOGICAL", "BITWISE"), *operands)


def _width(dtype: torch.dtype) -> int:
    """Return the bits of an integer of TOSA that stands for this type; int64 is INT32."""
    return min(torch.iinfo(dtype).bits, _BITS)


def _shift_left(w: TosaWriter, a: Arguments) -> TosaValue:
    if bool((a.other >= _width(a.dtype)).any()):
        raise UnsupportedError("a shift", f"int64 to the left by over {_BITS - 1} places", "shift by fewer")
    x, places = (_value(w, operand, a.dtype) for operand in (a.self, a.other))
    return w.elementwise("LOGICAL_LEFT_SHIFT", x, places)


def _shift_right(w: TosaWriter, a: Arguments) -> TosaValue:
    """Shift by places that TOSA defines; further ones leave copies of the sign."""
    places = _value(w, a.other.clamp(max=_width(a.dtype) - 1), a.dtype)
    return w.elementwise("ARITHMETIC_RIGHT_SHIFT", _value(w, a.self, a.dtype), places, round=False)


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        **{target: _compare(comparison) for target, comparison in COMPARISONS.items()},
        aten.isnan.default: Row(_isnan, halves=is_of_one_type),
        **truth_rows(_value, "LOGICAL_XOR", "SELECT", halves=is_of_one_type, bits=_bits),
        aten.bitwise_left_shift.Tensor: Row(_shift_left, unfit_shift),
        aten.bitwise_right_shift.Tensor: Row(_shift_right, unfit_shift),
    }
)
