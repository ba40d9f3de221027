"""Write comparisons, truth values and selections by them as TOSA operators."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from dimorder.targets.table import Arguments, Row, is_of_one_type
from dimorder.targets.tosa.calls import dtype_of
from dimorder.targets.tosa.dtypes import DTYPES, FLOATS, HALVES
from dimorder.targets.tosa.pointwise import value
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

aten = torch.ops.aten


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


def _logical_not(w: TosaWriter, a: Arguments) -> TosaValue:
    return w.elementwise("LOGICAL_NOT", value(w, a.self, "BOOL"))


def _logical(kind: str) -> Row:
    return Row(lambda w, a: w.elementwise(kind, value(w, a.self, "BOOL"), value(w, a.other, "BOOL")))


def _check_bool(a: Arguments) -> str | None:
    return None if a.dtype == torch.bool else f"bits of {a.dtype}"


def _where(w: TosaWriter, a: Arguments) -> TosaValue:
    x, y = (value(w, operand, DTYPES[a.dtype]) for operand in (a.self, a.other))
    return w.elementwise("SELECT", value(w, a.condition, "BOOL"), x, y)


def _masked_fill(w: TosaWriter, a: Arguments) -> TosaValue:
    x, fill = (value(w, operand, DTYPES[a.dtype]) for operand in (a.self, a.value))
    return w.elementwise("SELECT", value(w, a.mask, "BOOL"), fill, x)


_COMPARISONS = {
    aten.eq: _compare("EQUAL"),
    aten.ne: _compare("EQUAL", negated=True),
    aten.gt: _compare("GREATER"),
    aten.lt: _compare("GREATER", swap=True),
    aten.ge: _compare("GREATER_EQUAL"),
    aten.le: _compare("GREATER_EQUAL", swap=True),
}
_SELECTIONS = {
    _where: (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar),
    _masked_fill: (aten.masked_fill.Scalar, aten.masked_fill.Tensor),
}

ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        **{overloads.Tensor: row for overloads, row in _COMPARISONS.items()},
        **{overloads.Scalar: row for overloads, row in _COMPARISONS.items()},
        aten.isnan.default: Row(_isnan, halves=is_of_one_type),
        aten.logical_and.default: _logical("LOGICAL_AND"),
        aten.logical_or.default: _logical("LOGICAL_OR"),
        aten.logical_xor.default: _logical("LOGICAL_XOR"),
        aten.logical_not.default: Row(_logical_not),
        aten.bitwise_and.Tensor: Row(_logical("LOGICAL_AND").build, _check_bool),
        aten.bitwise_or.Tensor: Row(_logical("LOGICAL_OR").build, _check_bool),
        aten.bitwise_xor.Tensor: Row(_logical("LOGICAL_XOR").build, _check_bool),
        aten.bitwise_not.default: Row(_logical_not, _check_bool),
        **{
            target: Row(build, halves=is_of_one_type)
            for build, targets in _SELECTIONS.items()
            for target in targets
        },
    }
)
