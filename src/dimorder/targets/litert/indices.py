"""Write the operators that read or write elements at indices as LiteRT operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.targets.litert.flatbuffer import MAX_RANK
from dimorder.targets.litert.integer_writer import LiteRtValue
from dimorder.targets.litert.pointwise import BOOL, I64, add, cast, mul, select
from dimorder.targets.litert.writer import LiteRtWriter
from dimorder.targets.positions import Indices, check_indices, flat_positions, reads_at_indices
from dimorder.targets.table import Arguments, Row, View

aten = torch.ops.aten


# -- parts: values to values -------------------------------------------------------------------------------


def take(w: LiteRtWriter, x: LiteRtValue, dim: int, indices: LiteRtValue | Tensor) -> LiteRtValue:
    """Return the elements at 1-D `indices` of dimension `dim`, by a GATHER, which takes any shape of them."""
    shape, rows = x.shape, x.shape[dim]
    if isinstance(indices, Tensor):
        indices = w.constant(torch.where(indices < 0, indices + rows, indices).to(torch.int32))
    x, axis = w.in_ranks(x, dim)
    at = w.as_written(indices)
    if not at.shape or len(x.shape) - 1 + len(at.shape) > MAX_RANK:
        at = w.reshape(indices, (indices.size,))
    out = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
    y = w.op("GATHER", [x, at], out, axis=axis, batchDims=0)
    return w.reshape(y, (*shape[:dim], indices.size, *shape[dim + 1 :]))


def _places(w: LiteRtWriter, sizes: Sequence[int], indices: Indices[LiteRtValue]) -> LiteRtValue:
    """Return the flat position of each element that `indices` select, in int64."""

    def from_start(index: View[LiteRtValue] | Tensor, length: int) -> LiteRtValue:
        if isinstance(index, Tensor) and _is_counted(index):
            return counted(index)
        value = cast(w, w.dense(index), I64) if isinstance(index, View) else w.constant(index.to(I64))
        negative = w.elementwise("LESS", value, 0, dtype=BOOL)
        return select(w, negative, add(w, value, length), value)

    def counted(index: Tensor) -> LiteRtValue:
        if not w.varying:
            return w.constant(index.to(I64))
        return cast(w, w.reshape(_counted(w, index.numel()), tuple(index.shape)), I64)

    def multiply_add(x: LiteRtValue, n: int, y: LiteRtValue) -> LiteRtValue:
        return add(w, mul(w, x, n), y)

    return flat_positions(w, sizes, indices, I64, counted, from_start, multiply_add)


def _is_counted(index: Tensor) -> bool:
    """Return whether an index counts the elements of a dimension, as that of a gather does beside its own."""
    return torch.equal(index.reshape(-1), torch.arange(index.numel(), dtype=index.dtype))


def _counted(w: LiteRtWriter, count: int) -> LiteRtValue:
    """Return the numbers from 0 to `count` - 1: computed from the count if that may be dynamic."""
    if not w.varying:
        return w.constant(torch.arange(count, dtype=torch.int32))
    return w.op("RANGE", [w.number(number, torch.int32) for number in (0, count, 1)], (count,), torch.int32)


# -- rows --------------------------------------------------------------------------------------------------


def _index_put(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Write one row for each index."""
    x = w.dense(a.self)
    places, rest = x.shape[: len(a.indices)], x.shape[len(a.indices) :]
    at = _places(w, places, a.indices)
    count, rows, inner = at.size, math.prod(places), math.prod(rest)
    values = w.constant(a.values) if isinstance(a.values, Tensor) else w.dense(a.values)
    values = w.expanded(cast(w, values, x.dtype), (*at.shape, *rest))
    values, at = w.reshape(values, (count, inner)), cast(w, w.reshape(at, (count,)), torch.int32)
    if a.accumulate:
        operands = [w.reshape(at, (count, 1)), values, w.sizes((rows, inner))]
        there = w.op("SCATTER_ND", operands, (rows, inner), x.dtype)  # it adds up what goes to one place
        return w.reshape(add(w, w.reshape(x, (rows, inner)), there), a.shape)
    # If several go to one place the last one stays, as in torch on a CPU.
    last = w.op("UNSORTED_SEGMENT_MAX", [_counted(w, count), at, w.number(rows, torch.int32)], (rows,))
    is_written = w.elementwise("GREATER_EQUAL", last, 0, dtype=BOOL)
    there = take(w, values, 0, w.elementwise("MAXIMUM", last, 0))
    return w.reshape(select(w, w.reshape(is_written, (rows, 1)), there, w.reshape(x, (rows, inner))), a.shape)


def _check_index_put(a: Arguments) -> str | None:
    return "truth values that are added up" if a.accumulate and a.dtype == BOOL else check_indices(a)


_SEGMENTS = MappingProxyType(
    {
        "amax": ("UNSORTED_SEGMENT_MAX", "MAXIMUM"),
        "amin": ("UNSORTED_SEGMENT_MIN", "MINIMUM"),
        "prod": ("UNSORTED_SEGMENT_PROD", "MUL"),
    }
)


def _scatter_reduce(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Reduce the elements that go to each place of a row, and then with what is there."""
    x, rows = w.dense(a.self), a.shape[0]
    source, at = (
        w.constant(each) if isinstance(each, Tensor) else w.dense(each) for each in (a.src, a.index)
    )
    at, count = cast(w, at, torch.int32), w.number(rows, torch.int32)
    kind, combine = _SEGMENTS[a.reduce]
    found = w.op(kind, [source, at, count], (rows,))
    ones = w.constant(torch.ones(source.shape, dtype=torch.int32))
    written = w.op("UNSORTED_SEGMENT_MAX", [ones, at, count], (rows,))
    found = w.elementwise(combine, x, found) if a.include_self else found
    return select(w, w.elementwise("GREATER", written, 0, dtype=BOOL), found, x)


def _check_scatter_reduce(a: Arguments) -> str | None:
    if a.dtype not in (torch.float32, torch.int32):
        return f"a scatter that reduces {a.dtype}"
    return None if len(a.shape) == 1 and a.reduce in _SEGMENTS else f"a scatter that reduces by {a.reduce}"


_READS = reads_at_indices(take, _places)

ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.embedding.default: Row(_READS[aten.embedding.default], integers=True),
        aten.index_select.default: Row(_READS[aten.index_select.default], integers=True),
        aten.index.Tensor: Row(_READS[aten.index.Tensor], check_indices, integers=True),
        aten.gather.default: Row(_READS[aten.gather.default], integers=True),
        aten.scatter_reduce.two: Row(_scatter_reduce, _check_scatter_reduce),
        aten.index_put.default: Row(_index_put, _check_index_put),
    }
)
