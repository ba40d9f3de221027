"""Write operators that return places of elements as comparisons and argmax: pools with indices, medians."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dimorder.graph.nodes import is_uneven
from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.moves import squeeze, unsqueeze, view
from dimorder.ops.operator import filled, several, spelling
from dimorder.ops.rearranging import around, every

aten = torch.ops.aten

# -- pools


# By the rank: the pool with the places of its elements, the plain pool, and the adaptive one.
_POOLS = {
    1: (aten.max_pool1d_with_indices.default, aten.max_pool1d.default, aten.adaptive_max_pool1d.default),
    2: (aten.max_pool2d_with_indices.default, aten.max_pool2d.default, aten.adaptive_max_pool2d.default),
    3: (aten.max_pool3d_with_indices.default, aten.max_pool3d.default, aten.adaptive_max_pool3d.default),
}
MAX_TAPS = 64  # each is one slice


def _max_pool_with_indices(rank: int) -> Callable[..., Value]:
    """Return the spelling of a pool that also returns the position of the first tap with its value."""
    whole, pool, _ = _POOLS[rank]

    def spell(n: Tracer, x: Value, kernel: Value, *given: Value) -> Value:
        if not _has_read_places(n):
            return [n.write(pool, x, kernel, *given), None]
        stride, padding, dilation, ceil = filled(given, (None, 0, 1, False))
        windows = [several(v, rank) for v in (kernel, stride or kernel, padding, dilation)]
        if math.prod(windows[0]) > MAX_TAPS or not dtype_of(x).is_floating_point:
            return n.emit(whole, x, kernel, *given)
        y = n.write(pool, x, *windows, ceil)
        return [y, _positions(n, x, shape_of(y)[-rank:], windows)]

    return spell


def _has_read_places(n: Tracer) -> bool:
    """Return whether anything reads the second result of the traced call."""
    return any(user.args[1] == 1 and user.users for user in n.node.users)


def _positions(n: Tracer, x: Value, size: Sequence[int], windows: Sequence[Sequence[int]]) -> Value:
    """Return, for each window, the index in its plane of its largest element, or of its first NaN.

    `argmax` runs over the taps, each of which is a strided slice. The tap's number gives its place.
    """
    rank = len(size)
    old = shape_of(x)[-rank:]
    pads = []
    for length, new, taps, step, before, apart in reversed(list(zip(old, size, *windows, strict=True))):
        # windows end before the padding does, unless their number is rounded up
        pads += [before, max((taps - 1) * apart + (new - 1) * step + 1 - before - length, before)]
    x = n.write(aten.constant_pad_nd.default, x, pads, -math.inf)
    first = len(shape_of(x)) - rank
    places = itertools.product(*map(range, windows[0]))
    rows = [unsqueeze(n, _tap(n, x, first, tap, windows), -1) for tap in places]
    index = n.write(aten.argmax.default, n.write(aten.cat.default, rows, -1), -1)
    # place = sum over dimensions of (the window's begin there + the tap's number · dilation) · later sizes
    place, rest, following = None, index, 1
    for d in reversed(range(rank)):
        taps, step, before, apart = (window[d] for window in windows)
        begin = (torch.arange(size[d]) * step - before).reshape([-1 if i == d else 1 for i in range(rank)])
        more = n.write(aten.div.Tensor_mode, rest, taps, rounding_mode="trunc") if d else None
        tap = n.write(aten.sub.Tensor, rest, n.write(aten.mul.Tensor, more, taps)) if d else rest
        tap = n.write(aten.mul.Tensor, tap, apart) if apart != 1 else tap
        part = n.write(aten.add.Tensor, tap, begin)
        part = n.write(aten.mul.Tensor, part, following) if d < rank - 1 else part
        place = part if place is None else n.write(aten.add.Tensor, place, part)
        rest, following = more, following * old[d]
    return place


def _tap(n: Tracer, x: Value, first: int, tap: Sequence[int], windows: Sequence[Sequence[int]]) -> Value:
    """Return the elements of all windows at one tap."""
    for d, (at, taps, step, apart) in enumerate(zip(tap, windows[0], windows[1], windows[3], strict=True)):
        x = every(n, x, first + d, at * apart, (taps - 1) * apart + 1, step)
    return x


def _adaptive_max_pool(rank: int) -> Callable[..., Value]:
    """Return the spelling of adaptive max pooling: a pool of equal windows, or the maximum of each window."""
    with_places, _, whole = _POOLS[rank]

    def spell(n: Tracer, x: Value, size: Sequence[int]) -> Value:
        pairs = list(zip(shape_of(x)[-rank:], size, strict=True))
        if is_uneven(n.node):
            return n.emit(whole, x, list(size))
        if not any(old % new for old, new in pairs):
            kernel = [old // new for old, new in pairs]
            return n.write(with_places, x, kernel, kernel)
        few = [new // math.gcd(old, new) <= MAX_WINDOWS for old, new in pairs]
        taps = [max(end - begin for begin, end in windows_of(*pair)) for pair in pairs]
        if _has_read_places(n) or any(not f and t > MAX_TAPS for f, t in zip(few, taps, strict=True)):
            return n.emit(whole, x, list(size))
        for dim, (has_few, new) in enumerate(zip(few, size, strict=True), len(shape_of(x)) - rank):
            x = _largest_of_windows(n, x, dim, new) if has_few else _largest_of_taps(n, x, dim, new)
        return [x, None]

    return spell


def windows_of(old: int, new: int) -> list[tuple[int, int]]:
    """Return where each window of an adaptive pool from size `old` to size `new` begins and ends.

    >>> windows_of(7, 3)
    [(0, 3), (2, 5), (4, 7)]
    """
    return [(i * old // new, -(-(i + 1) * old // new)) for i in range(new)]


MAX_WINDOWS = 16  # of one dimension, each cut out: a bound on the growth of the graph


def _largest_of_windows(n: Tracer, x: Value, dim: int, new: int) -> Value:
    """Write the maximum of each window; the windows repeat as often as the sizes' greatest common divisor."""
    before, old, after = around(x, dim)
    often = math.gcd(old, new)
    rows = view(n, x, [*before, often, old // often, *after])
    found = [
        n.write(aten.amax.default, n.write(aten.slice.Tensor, rows, dim + 1, begin, end), [dim + 1], True)
        for begin, end in windows_of(old // often, new // often)
    ]
    return view(n, n.write(aten.cat.default, found, dim + 1), [*before, new, *after])


def _largest_of_taps(n: Tracer, x: Value, dim: int, new: int) -> Value:
    """Write the maximum over the taps, each of which is a gather; short windows repeat the last element."""
    windows = windows_of(shape_of(x)[dim], new)
    taps = range(max(end - begin for begin, end in windows))
    places = [torch.tensor([min(begin + tap, end - 1) for begin, end in windows]) for tap in taps]
    rows = [n.write(aten.index_select.default, x, dim, each) for each in places]
    return functools.reduce(lambda largest, row: n.write(aten.maximum.default, largest, row), rows)


# -- medians

MAX_RANKED = 128  # elements, each of which is compared with each


def _median(n: Tracer, x: Value) -> Value:
    if not _can_rank(x, math.prod(shape_of(x))):
        return n.emit(aten.median.default, x)
    return view(n, _middle(n, view(n, x, [math.prod(shape_of(x))]), 0)[0], [])


def _median_dim(n: Tracer, x: Value, dim: int, keepdim: bool = False) -> Value:
    if not shape_of(x) or not _can_rank(x, shape_of(x)[dim]):
        return n.emit(aten.median.dim, x, dim, keepdim)
    found = _middle(n, x, dim)
    return found if keepdim else [squeeze(n, y, dim % len(shape_of(x))) for y in found]


def _can_rank(x: Value, count: int) -> bool:
    return 0 < count <= MAX_RANKED and dtype_of(x).is_floating_point and 0 not in shape_of(x)


def _middle(n: Tracer, x: Value, dim: int) -> list[Value]:
    """Return the lower median along a dimension, which keeps size 1, and the median's first place.

    At most `middle` elements are less than the median, and more than `middle` are not greater. If there is a
    NaN, the median is NaN.
    """
    before, count, after = around(x, dim)
    outer, inner, middle = math.prod(before), math.prod(after), (count - 1) // 2
    rows = view(n, x, [outer, count, inner])
    each, others = (view(n, x, [outer, *shape, inner]) for shape in ((count, 1), (1, count)))

    def number(compare: Any) -> Value:
        truths = n.write(aten._to_copy.default, n.write(compare, others, each), dtype=torch.float32)
        return n.write(aten.sum.dim_IntList, truths, [2], False)

    # A target may count by a mean, which rounds: so the limits are half-integers.
    few_below = n.write(aten.lt.Scalar, number(aten.lt.Tensor), middle + 0.5)
    enough = n.write(aten.gt.Scalar, number(aten.le.Tensor), middle + 0.5)
    odd = n.write(aten.ne.Tensor, rows, rows)
    is_middle = n.write(aten.logical_or.default, n.write(aten.logical_and.default, few_below, enough), odd)
    low = torch.tensor(-math.inf, dtype=dtype_of(x))
    value = n.write(aten.amax.default, n.write(aten.where.self, is_middle, rows, low), [1], True)
    # One for the median, two for NaN.
    marks = (n.write(aten._to_copy.default, truth, dtype=torch.float32) for truth in (is_middle, odd))
    place = n.write(aten.argmax.default, n.write(aten.add.Tensor, *marks), 1, True)
    return [view(n, y, [*before, 1, *after]) for y in (value, place)]


OPERATORS = (
    *(spelling(_max_pool_with_indices(rank), with_places) for rank, (with_places, _, _) in _POOLS.items()),
    *(spelling(_adaptive_max_pool(rank), adaptive) for rank, (_, _, adaptive) in _POOLS.items()),
    spelling(_median, aten.median.default),
    spelling(_median_dim, aten.median.dim),
)
