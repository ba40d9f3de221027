"""Write the operators that read or write elements at indices as LiteRT operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.targets.litert.moves import in_ranks
from dimorder.targets.litert.pointwise import BOOL, I64, add, cast, mul, select
from dimorder.targets.litert.writer import LiteRtValue, LiteRtWriter
from dimorder.targets.table import Arguments, Row, View

aten = torch.ops.aten

_IndexList = Sequence["View[LiteRtValue] | Tensor | None"]


# -- parts: values to values -------------------------------------------------------------------------------


def take(w: LiteRtWriter, x: LiteRtValue, dim: int, indices: LiteRtValue | Tensor) -> LiteRtValue:
    """Return the elements at 1-D `indices` of dimension `dim`, by a GATHER."""
    shape, rows = x.shape, x.shape[dim]
    if isinstance(indices, Tensor):
        indices = w.constant(torch.where(indices < 0, indices + rows, indices).to(torch.int32))
    x, axis = in_ranks(w, x, dim)
    at = w.reshape(indices, (indices.size,))
    out = (*x.shape[:axis], indices.size, *x.shape[axis + 1 :])
    y = w.op("GATHER", [x, at], out, axis=axis, batchDims=0)
    return w.reshape(y, (*shape[:dim], indices.size, *shape[dim + 1 :]))


def _from_start(w: LiteRtWriter, index: LiteRtValue, length: int) -> LiteRtValue:
    """Return indices of which negative ones counted from the end."""
    negative = w.elementwise("LESS", index, 0, dtype=BOOL)
    return select(w, negative, add(w, index, length), index)


def _places(w: LiteRtWriter, sizes: Sequence[int], indices: _IndexList) -> LiteRtValue:
    """Return the flat position of each element that `indices` select, in dimensions of these `sizes`.

    None stands for every index of its dimension. Its dimension of the result is where torch puts it: in its
    place, or after the other indices if these are not adjacent. Indices may be negative.
    """
    if all(index is None or isinstance(index, Tensor) for index in indices):
        named = tuple(index if isinstance(index, Tensor) else slice(None) for index in indices)
        return w.constant(torch.arange(math.prod(sizes)).reshape(tuple(sizes))[named])
    given = [dim for dim, index in enumerate(indices) if index is not None]
    rank = max(len(index.shape) for index in indices if index is not None)
    are_neighbours = given[-1] - given[0] + 1 == len(given)
    front = list(range(given[0])) if are_neighbours else []
    behind = [dim for dim, index in enumerate(indices) if index is None and dim not in front]
    order = [*front, *given[:1], *behind]  # of the result, where `rank` dimensions replace the indexed ones
    at = None
    for dim, (index, length) in enumerate(zip(indices, sizes, strict=True)):
        if index is None:
            after = sum(rank if d in given else 1 for d in order[order.index(dim) + 1 :])
            each = w.constant(torch.arange(length).reshape(length, *[1] * after))
        else:
            each = _from_start(w, _whole(w, index), length)
            each = w.reshape(each, (*each.shape, *[1] * len(behind)))
        at = each if at is None else add(w, mul(w, at, length), each)
    assert at is not None
    return at


def _whole(w: LiteRtWriter, operand: View[LiteRtValue] | Tensor) -> LiteRtValue:
    return w.constant(operand.to(I64)) if isinstance(operand, Tensor) else cast(w, w.dense(operand), I64)


# -- rows --------------------------------------------------------------------------------------------------


def _embedding(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    return w.reshape(take(w, w.dense(a.weight), 0, _flat(w, a.indices)), a.shape)


def _index_select(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    x = w.dense(a.self)
    x = w.reshape(x, x.shape or (1,))
    return w.reshape(take(w, x, a.dim % len(x.shape), _flat(w, a.index)), a.shape)


def _flat(w: LiteRtWriter, operand: View[LiteRtValue] | Tensor) -> LiteRtValue | Tensor:
    if isinstance(operand, Tensor):
        return operand.reshape(-1)
    value = w.dense(operand)
    return w.reshape(value, (value.size,))


def _index(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    return _gathered(w, a, a.indices)


def _gather(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Gather with an index for each dimension: an element's own index for all dimensions but one."""
    rank = len(a.shape)
    indices: list[View[LiteRtValue] | Tensor] = [
        torch.arange(length).reshape([-1 if d == dim else 1 for d in range(rank)])
        for dim, length in enumerate(a.shape)
    ]
    if rank:
        indices[a.dim % rank] = a.index
    return _gathered(w, a, indices)


def _gathered(w: LiteRtWriter, a: Arguments, indices: _IndexList) -> LiteRtValue:
    x = w.dense(a.self)
    sizes, rest = x.shape[: len(indices)], x.shape[len(indices) :]
    x = w.reshape(x, (math.prod(sizes), *rest))
    at = _places(w, sizes, indices)
    return w.reshape(take(w, x, 0, w.reshape(at, (at.size,))), a.shape)


def _check_indices(a: Arguments) -> str | None:
    if any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in a.indices if index is not None):
        return "a mask instead of indices"
    return None


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
    numbers = w.constant(torch.arange(count, dtype=torch.int32))
    last = w.op("UNSORTED_SEGMENT_MAX", [numbers, at, w.number(rows, torch.int32)], (rows,))
    is_written = w.elementwise("GREATER_EQUAL", last, 0, dtype=BOOL)
    there = take(w, values, 0, w.elementwise("MAXIMUM", last, 0))
    return w.reshape(select(w, w.reshape(is_written, (rows, 1)), there, w.reshape(x, (rows, inner))), a.shape)


def _check_index_put(a: Arguments) -> str | None:
    return "truth values that are added up" if a.accumulate and a.dtype == BOOL else _check_indices(a)


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.embedding.default: Row(_embedding),
        aten.index_select.default: Row(_index_select),
        aten.index.Tensor: Row(_index, _check_indices),
        aten.gather.default: Row(_gather),
        aten.index_put.default: Row(_index_put, _check_index_put),
    }
)
