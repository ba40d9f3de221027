"""Write operators that replace a slice of a tensor, as slices around it that are concatenated."""

from __future__ import annotations

import torch

from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.indexed import cat, slice_
from dimorder.ops.moves import unsqueeze, view
from dimorder.ops.operator import spelt

aten = torch.ops.aten


def _slice_scatter(
    n: Tracer,
    x: Value,
    source: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """Write `source` into a slice, between the elements before and after it."""
    dim, size = dim % len(shape_of(x)), shape_of(x)[dim]
    begin, stop, step = slice(start, end, step).indices(size)
    if stop <= begin:
        return x
    count = -(-(stop - begin) // step)
    stop = min(begin + count * step, size)
    before, written, behind = (slice_(n, x, dim, *ends) for ends in ((0, begin), (begin, stop), (stop, size)))
    if step == 1:
        return cat(n, [before, _copy(n, written, source), behind], dim)
    return cat(n, [before, _scattered(n, written, source, dim, count, step), behind], dim)


def _scattered(n: Tracer, x: Value, source: Value, dim: int, count: int, step: int) -> Value:
    """Replace every `step`-th element of `x`: the first of each row in a view."""
    shape = shape_of(x)
    before, size, after = shape[:dim], shape[dim], shape[dim + 1 :]
    added = [0, 0] * len(after) + [0, count * step - size]
    whole = n.write(aten.constant_pad_nd.default, x, added) if any(added) else x
    rows = view(n, whole, [*before, count, step, *after])
    kept = slice_(n, rows, dim + 1, 1, step)
    firsts = unsqueeze(n, _copy(n, slice_(n, x, dim, 0, size, step), source), dim + 1)
    return slice_(n, view(n, cat(n, [firsts, kept], dim + 1), shape_of(whole)), dim, 0, size)


def _select_scatter(n: Tracer, x: Value, source: Value, dim: int, index: int) -> Value:
    index = index % shape_of(x)[dim]
    return _slice_scatter(n, x, unsqueeze(n, source, dim % len(shape_of(x))), dim, index, index + 1)


def _copy(n: Tracer, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """Return the source in the shape and type of `x`, to which it is written."""
    if dtype_of(source) != dtype_of(x):
        source = n.write(aten._to_copy.default, source, dtype=dtype_of(x))
    return source if shape_of(source) == shape_of(x) else n.write(aten.expand.default, source, shape_of(x))


OPERATORS = (
    spelt(_slice_scatter, aten.slice_scatter.default),
    spelt(_select_scatter, aten.select_scatter.default),
    spelt(_copy, aten.copy.default),
)
