"""Write the operators that read or write elements at indices as TOSA operators.

GATHER and SCATTER take rows: values are (outer, rows, inner), indices (outer, count) of INT32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.targets.positions import Indices, check_indices, flat_positions, reads_at_indices
from dimorder.targets.table import Arguments, Row, View, is_of_one_type, shape_of
from dimorder.targets.tosa.dtypes import WIDEST
from dimorder.targets.tosa.pointwise import add, cast, mul
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

aten = torch.ops.aten

MAX_SCATTERED = 1 << 24  # elements: each place times each index


# -- parts: values to values -------------------------------------------------------------------------------


def take(w: TosaWriter, x: TosaValue, dim: int, indices: TosaValue | Tensor) -> TosaValue:
    """Return the elements at 1-D `indices` of dimension `dim`, by a GATHER from (outer, dim, inner)."""
    outer, rows, inner = math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :])
    if isinstance(indices, Tensor):
        indices = w.constant(torch.where(indices < 0, indices + rows, indices))
    count = math.prod(indices.shape)
    at = w.tiled(w.reshape(indices, (1, count)), (outer, count))
    y = w.op("GATHER", [w.reshape(x, (outer, rows, inner)), at], (outer, count, inner))
    return w.reshape(y, (*x.shape[:dim], count, *x.shape[dim + 1 :]))


def _places(w: TosaWriter, sizes: Sequence[int], indices: Indices[TosaValue]) -> TosaValue:
    """Return the flat position of each element that `indices` select, in INT32."""

    def from_start(index: View[TosaValue] | Tensor, length: int) -> TosaValue:
        value = w.dense(index) if isinstance(index, View) else w.constant(index.to(torch.int32))
        negative = w.elementwise("GREATER", w.number(0, "INT32"), value, dtype="BOOL")
        return w.elementwise("SELECT", negative, add(w, value, length), value)

    def multiply_add(x: TosaValue, n: int, y: TosaValue) -> TosaValue:
        return add(w, mul(w, x, n), y)

    return flat_positions(w, sizes, indices, torch.int32, w.constant, from_start, multiply_add)


# -- rows --------------------------------------------------------------------------------------------------


def _check_gathered(a: Arguments) -> str | None:
    return "a GATHER of torch.bool" if a.dtype == torch.bool else None


def _index_put(w: TosaWriter, a: Arguments) -> TosaValue:
    """Write one row for each index."""
    x = w.dense(a.self)
    places, rest = x.shape[: len(a.indices)], x.shape[len(a.indices) :]
    at = _places(w, places, a.indices)
    count, rows, inner = math.prod(at.shape), math.prod(places), math.prod(rest)
    values = w.constant(a.values) if isinstance(a.values, Tensor) else cast(w, w.dense(a.values), x.dtype)
    full = (*at.shape, *rest)
    values = w.tiled(values, full)
    if not _is_compared(a, count):
        operands = [(x, (1, rows, inner)), (at, (1, count)), (values, (1, count, inner))]
        y = w.op("SCATTER", [w.reshape(v, shape) for v, shape in operands], (1, rows, inner))
        return w.reshape(y, a.shape)
    x, values = w.reshape(x, (rows, 1, inner)), w.reshape(values, (1, count, inner))
    each = w.constant(torch.arange(rows, dtype=torch.int32).reshape(rows, 1, 1))
    here = w.elementwise("EQUAL", each, w.reshape(at, (1, count, 1)), dtype="BOOL")
    if not a.accumulate:  # if several go to one place the last one stays, as in torch on a CPU
        again = w.elementwise("EQUAL", w.reshape(at, (count, 1)), w.reshape(at, (1, count)), dtype="BOOL")
        later = w.constant(torch.ones(count, count, dtype=torch.bool).triu(1))
        again = w.op("REDUCE_ANY", [w.elementwise("LOGICAL_AND", again, later)], (count, 1), axis=1)
        last = w.elementwise("LOGICAL_NOT", w.reshape(again, (1, count, 1)))
        here = w.elementwise("LOGICAL_AND", here, last)
    dtype = WIDEST[x.dtype]
    none, reduce = (0, "REDUCE_SUM") if _has_sums(dtype) else (torch.iinfo(dtype).min, "REDUCE_MAX")
    there = w.elementwise("SELECT", here, values, w.number(none, x.dtype))
    total = w.op(reduce, [there], (rows, 1, inner), axis=1)
    if a.accumulate:
        return w.reshape(add(w, x, total), a.shape)
    written = w.op("REDUCE_ANY", [here], (rows, 1, 1), axis=1)
    return w.reshape(w.elementwise("SELECT", written, total, x), a.shape)


def _has_sums(dtype: torch.dtype) -> bool:
    """Return whether TOSA adds up elements of a type."""
    return dtype not in (torch.int8, torch.int16)


def _is_compared(a: Arguments, count: int) -> bool:
    """Return whether each place is compared with each index; otherwise a SCATTER writes.

    For equal indices the result of SCATTER is unpredictable, as torch's is undefined.
    """
    few: bool = a.dtype != torch.bool and math.prod(a.shape) * count <= MAX_SCATTERED
    return few


def _check_index_put(a: Arguments) -> str | None:
    sizes = [None if index is None else shape_of(index) for index in a.indices]
    whole = [length for each, length in zip(sizes, shape_of(a.self), strict=False) if each is None]
    named = torch.broadcast_shapes(*(each for each in sizes if each is not None))
    count = math.prod(named) * math.prod(whole)
    if a.accumulate and not (_is_compared(a, count) and _has_sums(a.dtype)):
        return f"{count} indices added up in a {a.dtype} tensor of {math.prod(a.shape)} elements"
    return check_indices(a)


_READS = reads_at_indices(take, _places)

ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.embedding.default: Row(_READS[aten.embedding.default], halves=is_of_one_type),
        aten.index_select.default: Row(_READS[aten.index_select.default], halves=is_of_one_type),
        aten.index.Tensor: Row(
            _READS[aten.index.Tensor], lambda a: check_indices(a) or _check_gathered(a), halves=is_of_one_type
        ),
        aten.gather.default: Row(_READS[aten.gather.default], _check_gathered, halves=is_of_one_type),
        aten.index_put.default: Row(_index_put, _check_index_put),
    }
)
