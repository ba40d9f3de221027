"""The operators that move elements or name them anew, as TOSA operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.targets.table import Arguments, Row, View, is_conversion, whole
from dimorder.targets.tosa.pointwise import cast
from dimorder.targets.tosa.writer import DTYPES, MAX_OPERANDS, MAX_RANK, TosaValue, TosaWriter

aten = torch.ops.aten


# -- parts: values to values -------------------------------------------------------------------------------


def slice_(w: TosaWriter, x: TosaValue, dim: int, start: int, length: int) -> TosaValue:
    """Elements `start` to `start + length` of one dimension."""
    if length == x.shape[dim]:
        return x
    x, dim, shape = _around(w, x, dim)
    starts, sizes = [0] * len(x.shape), list(x.shape)
    starts[dim], sizes[dim] = start, length
    y = w.op("SLICE", [x, w.shape(starts), w.shape(sizes)], sizes)
    return w.reshape(y, shape(length))


def _around(w: TosaWriter, x: TosaValue, dim: int) -> tuple[TosaValue, int, Callable[[int], tuple[int, ...]]]:
    """`x` in a rank that TOSA has, where `dim` lies there, and the true shape for another size of it."""
    true = x.shape

    def shape(length: int) -> tuple[int, ...]:
        return (*true[:dim], length, *true[dim + 1 :])

    if len(true) <= MAX_RANK:
        return x, dim, shape
    merged = (math.prod(true[:dim]), true[dim], math.prod(true[dim + 1 :]))
    return w.reshape(x, merged), 1, shape


def pad(
    w: TosaWriter, x: TosaValue, before: Sequence[int], after: Sequence[int], fill: float = 0
) -> TosaValue:
    """More elements of `fill`, or fewer where a number is negative."""
    for d, (low, high) in enumerate(zip(before, after, strict=True)):
        cut = max(-low, 0), max(-high, 0)
        x = slice_(w, x, d, cut[0], x.shape[d] - sum(cut))
    amounts = [max(amount, 0) for pair in zip(before, after, strict=True) for amount in pair]
    if not any(amounts):
        return x
    shape = [
        length + low + high for length, low, high in zip(x.shape, amounts[::2], amounts[1::2], strict=True)
    ]
    return w.op("PAD", [x, w.shape(amounts), w.number(fill, x.dtype)], shape)


def concat(w: TosaWriter, values: Sequence[TosaValue], dim: int) -> TosaValue:
    """Along one dimension; many operands in several steps."""
    if len(values) == 1:
        return values[0]
    if len(values) > MAX_OPERANDS:
        groups = [values[i : i + MAX_OPERANDS] for i in range(0, len(values), MAX_OPERANDS)]
        return concat(w, [concat(w, group, dim) for group in groups], dim)
    total = sum(value.shape[dim] for value in values)
    (_, axis, shape), parts = _around(w, values[0], dim), [_around(w, value, dim)[0] for value in values]
    out = list(parts[0].shape)
    out[axis] = total
    return w.reshape(w.op("CONCAT", parts, out, axis=axis), shape(total))


def tile(w: TosaWriter, x: TosaValue, shape: Sequence[int]) -> TosaValue:
    """`x` repeated in the dimensions in which it is 1 and `shape` is not; of the same rank."""
    shape = tuple(shape)
    if shape == x.shape:
        return x
    constant = w.data(x)
    if constant is not None:
        return w.constant(constant.expand(shape), x.dtype)
    runs: list[list[int]] = []  # neighbours that are both repeated, or both not
    for d, (old, new) in enumerate(zip(x.shape, shape, strict=True)):
        if new == 1:
            continue
        if runs and (x.shape[runs[-1][-1]] == 1) == (old == 1):
            runs[-1].append(d)
        else:
            runs.append([d])
    merged = [math.prod(x.shape[d] for d in run) for run in runs]
    out = [math.prod(shape[d] for d in run) for run in runs]
    if len(out) > MAX_RANK:  # the last repeated dimension first, which then merges with its neighbours
        last = max(d for d, (old, new) in enumerate(zip(x.shape, shape, strict=True)) if old != new)
        return tile(w, tile(w, x, (*x.shape[:last], *shape[last:])), shape)
    multiples = [new // old for old, new in zip(merged, out, strict=True)]
    y = w.op("TILE", [w.reshape(x, merged), w.shape(multiples)], out)
    return w.reshape(y, shape)


def take(w: TosaWriter, x: TosaValue, dim: int, indices: TosaValue | Tensor) -> TosaValue:
    """The elements at `indices` (one dimension) of dimension `dim`: a GATHER from (outer, dim, inner)."""
    if isinstance(indices, Tensor):
        indices = w.constant(torch.where(indices < 0, indices + x.shape[dim], indices))
    outer, inner, count = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :]), math.prod(indices.shape)
    rows = tile(w, w.reshape(indices, (1, count)), (outer, count))
    y = w.op("GATHER", [w.reshape(x, (outer, x.shape[dim], inner)), rows], (outer, count, inner))
    return w.reshape(y, (*x.shape[:dim], count, *x.shape[dim + 1 :]))


# -- rows --------------------------------------------------------------------------------------------------


def _clone(w: TosaWriter, a: Arguments) -> View[TosaValue] | TosaValue:
    return w.transposed(a.self) if is_conversion(a) else a.self


def _permute(w: TosaWriter, a: Arguments) -> View[TosaValue]:
    source = a.self if isinstance(a.self, View) else whole(w.dense(a.self))
    return source.permute([d % len(source.order) for d in a.dims])


def _view(w: TosaWriter, a: Arguments) -> View[TosaValue] | TosaValue:
    return a.self if tuple(a.self.shape) == a.shape else w.reshape(w.dense(a.self), a.shape)


def _expand(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return tile(w, w.reshape(x, (1,) * (len(a.shape) - len(x.shape)) + x.shape), a.shape)


def _cat(w: TosaWriter, a: Arguments) -> TosaValue:
    dtype = DTYPES[a.dtype]
    values = [cast(w, w.dense(operand), dtype) for operand in a.tensors]
    return concat(w, values, a.dim % len(a.shape))


def _slice(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return slice_(w, x, a.dim, a.start, a.shape[a.dim])


def _check_slice(a: Arguments) -> str | None:
    return None if a.step == 1 else f"a slice of step {a.step}; TOSA has step 1"


def _constant_pad(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    before, after = [0] * len(x.shape), [0] * len(x.shape)
    for i in range(len(a.pad) // 2):  # torch lists the last dimension first
        before[-1 - i], after[-1 - i] = a.pad[2 * i], a.pad[2 * i + 1]
    return pad(w, x, before, after, getattr(a, "value", None) or 0)


def _flip(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    for dim in a.dims:
        x, axis, _ = _around(w, x, dim % len(a.shape))
        x = w.reshape(w.op("REVERSE", [x], x.shape, axis=axis), a.shape)
    return x


def _embedding(w: TosaWriter, a: Arguments) -> TosaValue:
    return w.reshape(take(w, w.dense(a.weight), 0, _indices(w, a.indices)), a.shape)


def _index_select(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return w.reshape(take(w, x, a.dim % len(x.shape), _indices(w, a.index)), a.shape)


Indices = Sequence["View[TosaValue] | Tensor | None"]


def _places(w: TosaWriter, sizes: Sequence[int], indices: Indices) -> TosaValue:
    """Where each element lies that `indices` name, in their dimensions (of these `sizes`) laid out as one.

    None is every index of its dimension, where torch puts that: in its place, or behind the other indices
    where these are not neighbours.
    """
    constants = [index for index in indices if not isinstance(index, View)]
    if len(constants) == len(indices):
        named = tuple(slice(None) if index is None else index for index in constants)
        return w.constant(torch.arange(math.prod(sizes), dtype=torch.int32).reshape(tuple(sizes))[named])
    given = [dim for dim, index in enumerate(indices) if index is not None]
    rank = max(len(index.shape) for index in indices if index is not None)
    are_neighbours = given[-1] - given[0] + 1 == len(given)
    front = list(range(given[0])) if are_neighbours else []
    behind = [dim for dim, index in enumerate(indices) if index is None and dim not in front]
    order = [*front, *given[:1], *behind]  # of the result, where the given ones have `rank` dimensions
    at = None
    for dim, (index, size) in enumerate(zip(indices, sizes, strict=True)):
        if index is None:
            after = sum(rank if d in given else 1 for d in order[order.index(dim) + 1 :])
            each = w.constant(torch.arange(size, dtype=torch.int32).reshape(size, *[1] * after))
        else:
            each = _whole_indices(w, index)
            negative = w.elementwise("GREATER", w.number(0, "INT32"), each, dtype="BOOL")
            each = w.elementwise("SELECT", negative, w.elementwise("ADD", each, size), each)
            each = w.reshape(each, (*each.shape, *[1] * len(behind)))
        if at is not None:
            at = w.elementwise("MUL", at, size, extra=(w.number(0, "INT8"),))
        at = each if at is None else w.elementwise("ADD", at, each)
    assert at is not None
    return at


def _index(w: TosaWriter, a: Arguments) -> TosaValue:
    return _gathered(w, a, a.indices)


def _gather(w: TosaWriter, a: Arguments) -> TosaValue:
    """By an index of each dimension: along all but one, an element's own."""
    rank = len(a.shape)
    indices: list[View[TosaValue] | Tensor] = [
        torch.arange(size).reshape([-1 if d == dim else 1 for d in range(rank)])
        for dim, size in enumerate(a.shape)
    ]
    if rank:
        indices[a.dim % rank] = a.index
    return _gathered(w, a, indices)


def _gathered(w: TosaWriter, a: Arguments, indices: Indices) -> TosaValue:
    x = w.dense(a.self)
    sizes, rest = x.shape[: len(indices)], x.shape[len(indices) :]
    x = w.reshape(x, (math.prod(sizes), *rest))
    at = _places(w, sizes, indices)
    return w.reshape(take(w, x, 0, w.reshape(at, (math.prod(at.shape),))), a.shape)


def _index_put(w: TosaWriter, a: Arguments) -> TosaValue:
    """One row for each index."""
    x = w.dense(a.self)
    places, rest = x.shape[: len(a.indices)], x.shape[len(a.indices) :]
    at = _places(w, places, a.indices)
    count, rows, inner = math.prod(at.shape), math.prod(places), math.prod(rest)
    values = _cast_operand(w, a.values, x.dtype)
    full = (*at.shape, *rest)
    values = tile(w, w.reshape(values, (1,) * (len(full) - len(values.shape)) + values.shape), full)
    x, values, at = (
        w.reshape(v, shape)
        for v, shape in ((x, (rows, 1, inner)), (values, (1, count, inner)), (at, (1, count, 1)))
    )
    if not _is_compared(a, count):
        operands = [(x, (1, rows, inner)), (at, (1, count)), (values, (1, count, inner))]
        y = w.op("SCATTER", [w.reshape(v, shape) for v, shape in operands], (1, rows, inner))
        return w.reshape(y, a.shape)
    each = w.constant(torch.arange(rows, dtype=torch.int32).reshape(rows, 1, 1))
    here = w.elementwise("EQUAL", each, at, dtype="BOOL")
    if not a.accumulate:  # of several that go to one place the last stays, as in torch on a CPU
        again = w.elementwise("EQUAL", w.reshape(at, (count, 1)), w.reshape(at, (1, count)), dtype="BOOL")
        later = w.constant(torch.ones(count, count, dtype=torch.bool).triu(1))
        again = w.op("REDUCE_ANY", [w.elementwise("LOGICAL_AND", again, later)], (count, 1), axis=1)
        last = w.elementwise("LOGICAL_NOT", w.reshape(again, (1, count, 1)))
        here = w.elementwise("LOGICAL_AND", here, last)
    there = w.elementwise("SELECT", here, values, w.number(0, x.dtype))
    total = w.op("REDUCE_SUM", [there], (rows, 1, inner), axis=1)
    if a.accumulate:
        return w.reshape(w.elementwise("ADD", x, total), a.shape)
    written = w.op("REDUCE_ANY", [here], (rows, 1, 1), axis=1)
    return w.reshape(w.elementwise("SELECT", written, total, x), a.shape)


def _is_compared(a: Arguments, count: int) -> bool:
    """Whether each place is compared with each index. Else a SCATTER writes, whose result is unpredictable
    where indices are the same, as torch's is undefined."""
    few: bool = a.dtype != torch.bool and math.prod(a.shape) * count <= MAX_SCATTERED
    return few


MAX_SCATTERED = 1 << 24  # elements: of each place by each index


def _check_indices(a: Arguments) -> str | None:
    if any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in a.indices if index is not None):
        return "a mask instead of indices"
    return _check_gathered(a)


def _check_gathered(a: Arguments) -> str | None:
    return "truth values, which TOSA does not gather" if a.dtype == torch.bool else None


def _check_index_put(a: Arguments) -> str | None:
    shapes = [None if index is None else index.meta["val"] for index in a.indices]
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in shapes):
        return "a mask instead of indices"
    sizes = a.self.meta["val"].shape
    given = [index.shape for index in shapes if index is not None]
    whole = [size for index, size in zip(shapes, sizes, strict=False) if index is None]
    count = math.prod(torch.broadcast_shapes(*given)) * math.prod(whole)
    if a.accumulate and not _is_compared(a, count):
        return f"{count} indices added up in a {a.dtype} tensor of {math.prod(a.shape)} elements"
    return None


def _whole_indices(w: TosaWriter, operand: View[TosaValue] | Tensor) -> TosaValue:
    return w.constant(operand.to(torch.int32)) if isinstance(operand, Tensor) else w.dense(operand)


def _cast_operand(w: TosaWriter, operand: View[TosaValue] | Tensor, dtype: str) -> TosaValue:
    return w.constant(operand) if isinstance(operand, Tensor) else cast(w, w.dense(operand), dtype)


def _indices(w: TosaWriter, operand: View[TosaValue] | Tensor) -> TosaValue | Tensor:
    if isinstance(operand, Tensor):
        return operand.reshape(-1)
    value = w.dense(operand)
    return w.reshape(value, (math.prod(value.shape),))


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.cat.default: Row(_cat),
        aten.slice.Tensor: Row(_slice, _check_slice),
        aten.constant_pad_nd.default: Row(_constant_pad),
        aten.expand.default: Row(_expand),
        aten.flip.default: Row(_flip),
        aten.embedding.default: Row(_embedding),
        aten.index_select.default: Row(_index_select),
        aten.index.Tensor: Row(_index, _check_indices),
        aten.gather.default: Row(_gather, _check_gathered),
        aten.index_put.default: Row(_index_put, _check_index_put),
        aten.permute.default: Row(_permute),
        aten.view.default: Row(_view),
        aten.clone.default: Row(_clone),
    }
)
