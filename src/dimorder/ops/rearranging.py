"""Write operators that rearrange or replace elements as views, permutes, broadcasts and slices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from dimorder.graph.nodes import may_resize
from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.indexed import cat, slice_
from dimorder.ops.moves import unsqueeze, view
from dimorder.ops.operator import filled, in_torchs_parts, several, spelling

aten = torch.ops.aten


_FEW = 8  # slices that cost little more than a view


def _repeat(n: Tracer, x: Value, repeats: Sequence[int]) -> Value:
    """Write repeat as a broadcast of a new dimension before each repeated one."""
    sizes = (1,) * (len(repeats) - len(shape_of(x))) + shape_of(x)
    pairs = list(zip(repeats, sizes, strict=True))
    once = [d for times, size in pairs for d in ([size] if times == 1 else [1, size])]
    often = [d for times, size in pairs for d in ([size] if times == 1 else [times, size])]
    x = n.write(aten.expand.default, view(n, x, once), often)
    return view(n, x, [times * size for times, size in pairs])


def _windows(n: Tracer, x: Value, dim: int, size: int, step: int) -> Value:
    """Write unfold: the windows of a dimension, with their elements as a new last dimension.

    Windows that touch are a view. Else each place of the windows is a slice. So it is if elements are left
    over: another dynamic size may leave none.
    """
    if not shape_of(x):
        return view(n, x, [1])
    before, full, after = around(x, dim)
    d, count = len(before), full // step
    if size != step or ((full % step or may_resize(n.node)) and size <= _FEW):
        taps = [every(n, x, d, begin, size, step) for begin in range(size)]
        return n.write(aten.cat.default, [unsqueeze(n, tap, -1) for tap in taps], len(shape_of(x)))
    x = view(n, n.write(aten.slice.Tensor, x, d, 0, count * step), [*before, count, step, *after])
    order = [i for i in range(len(shape_of(x))) if i != d + 1]
    return n.write(aten.permute.default, x, [*order, d + 1])


def _im2col(n: Tracer, x: Value, kernel: Value, dilation: Value, padding: Value, stride: Value) -> Value:
    """Write im2col: one slice per tap, or a view if windows lie side by side."""
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (several(v, 2) for v in (kernel, dilation, padding, stride))
    *batch, channels, height, width = shape_of(x)
    if ph or pw:
        x = n.write(aten.constant_pad_nd.default, x, [pw, pw, ph, ph], 0)
    rows, columns = _count(height + 2 * ph, kh, dh, sh), _count(width + 2 * pw, kw, dw, sw)
    x = view(n, x, [math.prod(batch), channels, height + 2 * ph, width + 2 * pw])
    if (kh, kw, dh, dw) == (sh, sw, 1, 1):
        x = n.write(aten.slice.Tensor, n.write(aten.slice.Tensor, x, 2, 0, rows * sh), 3, 0, columns * sw)
        x = view(n, x, [-1, channels, rows, sh, columns, sw])
        x = n.write(aten.permute.default, x, [0, 1, 3, 5, 2, 4])
    else:
        places = itertools.product(range(kh), range(kw))
        spans = (kh - 1) * dh + 1, (kw - 1) * dw + 1
        taps = [every(n, every(n, x, 2, i * dh, spans[0], sh), 3, j * dw, spans[1], sw) for i, j in places]
        x = n.write(aten.cat.default, [unsqueeze(n, tap, 2) for tap in taps], 2)
    return view(n, x, [*batch, channels * kh * kw, rows * columns])


def _col2im(
    n: Tracer, x: Value, size: Value, kernel: Value, dilation: Value, padding: Value, stride: Value
) -> Value:
    """Write col2im: the columns become windows, which are added if they overlap."""
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (several(v, 2) for v in (kernel, dilation, padding, stride))
    *batch, channels, _ = shape_of(x)
    height, width = size[0] + 2 * ph, size[1] + 2 * pw
    rows, columns = _count(height, kh, dh, sh), _count(width, kw, dw, sw)
    channels //= kh * kw
    x = view(n, x, [math.prod(batch), channels, kh, kw, rows, columns])
    if (kh, kw, dh, dw) == (sh, sw, 1, 1):
        x = n.write(aten.permute.default, x, [0, 1, 4, 2, 5, 3])
        x = view(n, x, [-1, channels, rows * sh, columns * sw])
        y = n.write(aten.constant_pad_nd.default, x, [0, width - columns * sw, 0, height - rows * sh], 0)
    else:
        y = None
        for i, j in itertools.product(range(kh), range(kw)):
            tap = n.write(aten.select.int, n.write(aten.select.int, x, 2, i), 2, j)
            tap = _spread(n, _spread(n, tap, 2, sh, i * dh, height), 3, sw, j * dw, width)
            y = tap if y is None else n.write(aten.add.Tensor, y, tap)
    y = n.write(aten.slice.Tensor, n.write(aten.slice.Tensor, y, 2, ph, ph + size[0]), 3, pw, pw + size[1])
    return view(n, y, [*batch, channels, *size])


def every(n: Tracer, x: Value, dim: int, begin: int, span: int, step: int) -> Value:
    """Return the elements at place `begin` of windows of `span` elements, which begin at every `step`-th.

    A size minus a number is where the slice ends, so that a dynamic size may leave elements over.
    """
    return n.write(aten.slice.Tensor, x, dim, begin, shape_of(x)[dim] - span + begin + 1, step)


def _spread(n: Tracer, x: Value, dim: int, step: int, start: int, size: int) -> Value:
    """Put elements at every `step`-th place from `start` on, in a dimension of `size` that is 0 elsewhere."""
    before, count, after = around(x, dim)
    if step > 1:
        x = view(n, x, [*before, count, 1, *after])
        x = n.write(aten.constant_pad_nd.default, x, [0, 0] * len(after) + [0, step - 1], 0)
        x = view(n, x, [*before, count * step, *after])
    pads = [0, 0] * len(after) + [start, size - start - count * step]
    return n.write(aten.constant_pad_nd.default, x, pads, 0)


def _count(size: int, kernel: int, dilation: int, stride: int) -> int:
    return (size - dilation * (kernel - 1) - 1) // stride + 1


# -- slices that are replaced


def _slice_scatter(n: Tracer, x: Value, source: Value, dim: int = 0, *ends: Any) -> Value:
    """Write `source` into a slice with the given ends and step, between the elements before and after it."""
    dim, size = dim % len(shape_of(x)), shape_of(x)[dim]
    begin, stop, step = slice(*filled(ends, (None, None, 1))).indices(size)
    if stop <= begin:
        return x
    count = -(-(stop - begin) // step)
    stop = min(begin + count * step, size)
    cuts = ((0, begin), (begin, stop), (stop, size))
    before, replaced, after = (n.write(aten.slice.Tensor, x, dim, *each) for each in cuts)
    if step == 1:
        return cat(n, [before, _copy(n, replaced, source), after], dim)
    return cat(n, [before, _scattered(n, replaced, source, dim, count, step), after], dim)


def _scattered(n: Tracer, x: Value, source: Value, dim: int, count: int, step: int) -> Value:
    """Replace every `step`-th element of `x`: the first of each row in a view."""
    before, size, after = around(x, dim)
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


def around(x: Value, dim: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    shape = shape_of(x)
    dim = dim % len(shape)
    return shape[:dim], shape[dim], shape[dim + 1 :]


OPERATORS = (
    spelling(_windows, aten.unfold.default),
    spelling(_im2col, aten.im2col.default),
    spelling(_col2im, aten.col2im.default),
    spelling(lambda n, x, other: n.write(aten.expand.default, x, shape_of(other)), aten.expand_as.default),
    spelling(_repeat, aten.repeat.default),
    spelling(_slice_scatter, aten.slice_scatter.default),
    spelling(_select_scatter, aten.select_scatter.default),
    spelling(_copy, aten.copy.default),
    spelling(
        lambda n, x, groups: n.write(aten.channel_shuffle.default, x, groups),
        aten.native_channel_shuffle.default,
    ),
    *map(
        in_torchs_parts,
        (
            *(aten.pixel_shuffle.default, aten.pixel_unshuffle.default),
            aten.channel_shuffle.default,
            *(aten.movedim.int, aten.movedim.intlist, aten.moveaxis.int, aten.moveaxis.intlist),
            *(aten.narrow.default, aten.tile.default, aten.repeat_interleave.self_int),
        ),
    ),
)
