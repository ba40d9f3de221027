"""The operators that read or write elements at indices, as TOSA operators.

GATHER and SCATTER take rows: values are (outer, rows, inner), indices (outer, count) of INT32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.targets.table import Arguments, Row, View
from dimorder.targets.tosa.calls import size
from dimorder.targets.tosa.moves import tile
from dimorder.targets.tosa.pointwise import add, cast, mul
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

aten = torch.ops.aten

MAX_SCATTERED = 1 << 24  # elements: of each place by each index

_Shape = tuple[int, ...]


# -- parts: values to values -------------------------------------------------------------------------------


def take(w: TosaWriter, x: TosaValue, dim: int, indices: TosaValue | Tensor) -> TosaValue:
    """The elements at `indices` (one dimension) of dimension `dim`: a GATHER from (outer, dim, inner)."""
    if isinstance(indices, Tensor):
        indices = w.constant(torch.where(indices < 0, indices + x.shape[dim], indices))
    y = _rows(w, x, (x.shape[:dim], x.shape[dim : dim + 1], x.shape[dim + 1 :]), indices)
    return w.reshape(y, (*x.shape[:dim], math.prod(indices.shape), *x.shape[dim + 1 :]))


def _rows(w: TosaWriter, x: TosaValue, cut: tuple[_Shape, _Shape, _Shape], at: TosaValue) -> TosaValue:
    """The rows at `at` of `x`, the same for all of its first dimensions. `cut` is where the rows are."""
    outer, rows, inner = map(math.prod, cut)
    count = math.prod(at.shape)
    repeated = tile(w, w.reshape(at, (1, count)), (outer, count))
    return w.op("GATHER", [w.reshape(x, (outer, rows, inner)), repeated], (outer, count, inner))


def _row_of(w: TosaWriter, indices: Sequence[View[TosaValue] | Tensor], sizes: _Shape) -> TosaValue:
    """The indices of neighbouring dimensions, of these sizes, as one index of both; they may be negative."""
    row: TosaValue | None = None
    for operand, length in zip(indices, sizes, strict=True):
        index = _whole(w, operand)
        negative = w.elementwise("GREATER", w.number(0, "INT32"), index, dtype="BOOL")
        index = w.elementwise("SELECT", negative, add(w, index, length), index)
        row = index if row is None else add(w, mul(w, row, length), index)
    assert row is not None
    return row


def _whole(w: TosaWriter, operand: View[TosaValue] | Tensor) -> TosaValue:
    return w.constant(operand.to(torch.int32)) if isinstance(operand, Tensor) else w.dense(operand)


# -- rows --------------------------------------------------------------------------------------------------


def _embedding(w: TosaWriter, a: Arguments) -> TosaValue:
    return w.reshape(take(w, w.dense(a.weight), 0, _flat(w, a.indices)), a.shape)


def _index_select(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return w.reshape(take(w, x, a.dim % len(x.shape), _flat(w, a.index)), a.shape)


def _flat(w: TosaWriter, operand: View[TosaValue] | Tensor) -> TosaValue | Tensor:
    if isinstance(operand, Tensor):
        return operand.reshape(-1)
    value = w.dense(operand)
    return w.reshape(value, (math.prod(value.shape),))


def _cut(shape: _Shape, indices: Sequence[Any]) -> tuple[_Shape, _Shape, _Shape]:
    """A shape's dimensions before, with and behind indices, which neighbours have."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    return shape[: dims[0]], shape[dims[0] : dims[-1] + 1], shape[dims[-1] + 1 :]


def _given(a: Arguments) -> list[Any]:
    return [index for index in a.indices if index is not None]


def _check_indices(a: Arguments) -> str | None:
    dims = [dim for dim, index in enumerate(a.indices) if index is not None]
    if len(dims) != dims[-1] + 1 - dims[0]:
        return "a dimension without indices between those that have some"
    if any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in _given(a)):
        return "a mask instead of indices"
    return None


def _index(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    cut = _cut(x.shape, a.indices)
    return w.reshape(_rows(w, x, cut, _row_of(w, _given(a), cut[1])), a.shape)


def _check_index(a: Arguments) -> str | None:
    return _check_indices(a) or _check_gathered(a)


def _check_gathered(a: Arguments) -> str | None:
    return "a GATHER of torch.bool" if a.dtype == torch.bool else None


def _gather(w: TosaWriter, a: Arguments) -> TosaValue:
    """From all elements in a row: an index is a step along `dim`, from where its own place is."""
    x, index = w.dense(a.self), _whole(w, a.index)
    if not x.shape:
        return x
    dim = a.dim % len(x.shape)
    places = torch.arange(math.prod(x.shape), dtype=torch.int32).reshape(x.shape).narrow(dim, 0, 1)
    starts = places[tuple(slice(length) for length in index.shape)]
    at = add(w, mul(w, index, math.prod(x.shape[dim + 1 :])), w.constant(starts.contiguous()))
    return w.reshape(_rows(w, x, ((), x.shape, ()), at), a.shape)


def _index_put(w: TosaWriter, a: Arguments) -> TosaValue:
    """One row for each index."""
    x = w.dense(a.self)
    before, places, behind = cut = _cut(x.shape, a.indices)
    at = _row_of(w, _given(a), places)
    outer, rows, inner = map(math.prod, cut)
    count, full = math.prod(at.shape), (*before, *at.shape, *behind)
    values = w.constant(a.values) if isinstance(a.values, Tensor) else cast(w, w.dense(a.values), x.dtype)
    values = tile(w, w.reshape(values, (1,) * (len(full) - len(values.shape)) + values.shape), full)
    if not _is_compared(a, count):
        at = tile(w, w.reshape(at, (1, count)), (outer, count))
        operands = [w.reshape(x, (outer, rows, inner)), at, w.reshape(values, (outer, count, inner))]
        return w.reshape(w.op("SCATTER", operands, (outer, rows, inner)), a.shape)
    x, values = w.reshape(x, (outer, rows, 1, inner)), w.reshape(values, (outer, 1, count, inner))
    each = w.constant(torch.arange(rows, dtype=torch.int32).reshape(1, rows, 1, 1))
    here = w.elementwise("EQUAL", each, w.reshape(at, (1, 1, count, 1)), dtype="BOOL")
    if not a.accumulate:  # of several that go to one place the last stays, as in torch on a CPU
        again = w.elementwise("EQUAL", w.reshape(at, (count, 1)), w.reshape(at, (1, count)), dtype="BOOL")
        later = w.constant(torch.ones(count, count, dtype=torch.bool).triu(1))
        again = w.op("REDUCE_ANY", [w.elementwise("LOGICAL_AND", again, later)], (count, 1), axis=1)
        last = w.elementwise("LOGICAL_NOT", w.reshape(again, (1, 1, count, 1)))
        here = w.elementwise("LOGICAL_AND", here, last)
    there = w.elementwise("SELECT", here, values, w.number(0, x.dtype))
    total = w.op("REDUCE_SUM", [there], (outer, rows, 1, inner), axis=2)
    if a.accumulate:
        return w.reshape(add(w, x, total), a.shape)
    written = w.op("REDUCE_ANY", [here], (1, rows, 1, 1), axis=2)
    return w.reshape(w.elementwise("SELECT", written, total, x), a.shape)


def _is_compared(a: Arguments, count: int) -> bool:
    """Whether each place is compared with each index. Else a SCATTER writes, whose result is unpredictable
    where indices are the same, as torch's is undefined."""
    few: bool = a.dtype != torch.bool and math.prod(a.shape) * count <= MAX_SCATTERED
    return few


def _check_index_put(a: Arguments) -> str | None:
    count = math.prod(torch.broadcast_shapes(*map(size, _given(a))))
    if a.accumulate and not _is_compared(a, count):
        return f"{count} indices added up in a {a.dtype} tensor of {math.prod(a.shape)} elements"
    return _check_indices(a)


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.embedding.default: Row(_embedding),
        aten.index_select.default: Row(_index_select),
        aten.index.Tensor: Row(_index, _check_index),
        aten.gather.default: Row(_gather, _check_gathered),
        aten.index_put.default: Row(_index_put, _check_index_put),
    }
)
