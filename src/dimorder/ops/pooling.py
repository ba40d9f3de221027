"""Define pooling, which runs channels-last: in 1-D as 2-D with height 1, in 3-D as a 2-D and a 1-D step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import args_of, dynamic_dims, is_uneven
from dimorder.graph.quantized import DEQUANTIZE, in_float32
from dimorder.graph.tracing import FLOATS, Tracer, Value, shape_of
from dimorder.ops.call import Call
from dimorder.ops.dialect import OPS
from dimorder.ops.moves import squeeze, unsqueeze
from dimorder.ops.operator import Implementation, Operator, filled, several, spelling
from dimorder.ops.positions import MAX_WINDOWS, windows_of
from dimorder.ops.relation import Relation, Token, dims_of

aten = torch.ops.aten

_MAX = {1: aten.max_pool1d.default, 2: aten.max_pool2d.default, 3: aten.max_pool3d.default}
_ADAPTIVE_AVG = {2: aten.adaptive_avg_pool2d.default, 3: aten.adaptive_avg_pool3d.default}
_AVG = {1: aten.avg_pool1d.default, 2: aten.avg_pool2d.default, 3: aten.avg_pool3d.default}

# -- spellings: with a batch, in two or three dimensions, with every argument


def _with_batch(n: Tracer, x: Value, rank: int, pool: Callable[[Value], Value]) -> Value:
    """Apply a pool, which takes a batch, to a tensor with or without one."""
    return pool(x) if len(shape_of(x)) == rank + 2 else squeeze(n, pool(unsqueeze(n, x, 0)), 0)


def _pool(rank: int, pools: dict[int, Any]) -> Callable[..., Value]:
    """Return the spelling of a maximum or average pool."""
    lists, defaults = (4, (1, False)) if pools is _MAX else (3, (False, True, None))

    def rewrite(n: Tracer, x: Value, kernel: Value, *given: Value) -> Value:
        stride, padding, *rest = filled(given, (None, 0, *defaults))
        values = [kernel, stride or kernel, padding, *rest]
        values[:lists] = [several(value, rank) for value in values[:lists]]
        if rank > 1:
            return _with_batch(n, x, rank, lambda x: n.emit(pools[rank], x, *values))
        fills = (1, 1, 0, 1)
        values[:lists] = [[fill, *value] for fill, value in zip(fills, values[:lists], strict=False)]
        return _with_batch(n, x, 1, lambda x: squeeze(n, n.emit(pools[2], unsqueeze(n, x, 2), *values), 2))

    return rewrite


def _adaptive_avg_pool(rank: int) -> Callable[..., Value]:
    """Return the spelling of adaptive average pooling, in which an input size of 1 is repeated."""

    def rewrite(n: Tracer, x: Value, size: Sequence[int]) -> Value:
        old = shape_of(x)[-rank:]
        pooled = [1 if length == 1 else new for length, new in zip(old, size, strict=True)]
        if pooled != list(size):
            y = rewrite(n, x, pooled)
            return n.write(aten.expand.default, y, [*shape_of(x)[:-rank], *size])
        if all(s == 1 for s in size):
            return n.emit(aten.mean.dim, x, list(range(-rank, 0)), True)
        if tuple(size) == old and not is_uneven(n.node):
            return x
        if not (is_uneven(n.node) or any(length % new for length, new in zip(old, size, strict=True))):
            kernel = [length // new for length, new in zip(old, size, strict=True)]
            return n.write(_AVG[rank], x, kernel, kernel)
        if rank == 1:
            y = n.write(aten.adaptive_avg_pool2d.default, unsqueeze(n, x, -2), [1, *size])
            return squeeze(n, y, -2)
        return _with_batch(n, x, rank, lambda x: n.emit(_ADAPTIVE_AVG[rank], x, list(size)))

    return rewrite


def _has_few_windows(node: torch.fx.Node) -> bool:
    old, new = shape_of(args_of(node)[0])[2:], shape_of(node)[2:]
    if is_uneven(node):
        return False
    few = all(b // math.gcd(a, b) <= MAX_WINDOWS for a, b in zip(old, new, strict=True))
    return few and bool(node.meta["val"].is_floating_point())


def _has_many_windows(node: torch.fx.Node) -> bool:
    """Return whether a matrix of fixed size pools each dimension, which too many windows cut."""
    is_fixed = not is_uneven(node) and all(dim < 2 for dim in dynamic_dims(node))
    return is_fixed and node.meta["val"].dtype in FLOATS and not _has_few_windows(node)


# -- which axes they keep


def relate_spatial(node: torch.fx.Node) -> Relation | str:
    """Relate pooling or resizing: spatial dimensions are in index order, all others shared."""
    source, out = shape_of(args_of(node)[0]), shape_of(node)
    spatial = [f"s.{i}" for i in range(len(source) - 2)]
    reads, writes = (
        dims_of([("n", s[0]), ("c", s[1]), *zip(spatial, s[2:], strict=True)]) for s in (source, out)
    )
    return Relation("indexed", (reads,), (writes,), blocks=frozenset(spatial))


# -- on physical tensors


def channels_last(c: Call) -> list[list[Token]]:
    """Return one physical dimension for each logical one, the channels last."""
    return c.by_label("n", *(f"s.{i}" for i in range(len(shape_of(c.node)) - 2)), "c")


def give_in_planes(c: Call, plane: Callable[[torch.fx.Node, bool], torch.fx.Node]) -> None:
    """Lower an operator on planes: `plane(x, deep)` writes it on NHWC `x`.

    In three spatial dimensions it first runs over the last two of each depth. Then (`deep`) it runs over the
    depth, with all pixels of a plane in one row.
    """
    dims = channels_last(c)
    x = c.take(0, dims)
    if len(dims) == 4:
        c.give(plane(x, False), dims)
        return
    batch, depth, height, width, channels = (c.size(0, group) for group in dims)
    new_depth, new_height, new_width = shape_of(c.node)[2:]
    y = plane(c.b.call(aten.view.default, x, [batch * depth, height, width, channels]), False)
    pixels = new_height * new_width
    y = plane(c.b.call(aten.view.default, y, [batch, depth, pixels, channels]), True)
    c.give(c.b.call(aten.view.default, y, [batch, new_depth, new_height, new_width, channels]), dims)


def give_by_matmuls(c: Call, weights: Sequence[torch.Tensor]) -> None:
    """Lower an operator to one matmul per spatial dimension; the dimension that shrinks most comes first.

    `weights[i]` is the matrix (new, old) that computes dimension `i` of the result.
    """
    dims, new = channels_last(c), shape_of(c.node)[2:]
    x, sizes = c.take(0, dims), [c.size(0, group) for group in dims]
    for i in sorted(range(len(new)), key=lambda i: new[i] / sizes[i + 1]):
        if torch.equal(weights[i], torch.eye(sizes[i + 1])):
            continue
        before, after = math.prod(sizes[: i + 1]), math.prod(sizes[i + 2 :])
        x = c.b.call(aten.view.default, x, [before, sizes[i + 1], after])
        matrix = c.b.constant(f"resize_{sizes[i + 1]}_to_{new[i]}", weights[i].unsqueeze(0))
        x = c.b.call(aten.matmul.default, matrix, x)
        sizes[i + 1] = new[i]
    c.give(c.b.call(aten.view.default, x, sizes), dims)


def _max_pool(c: Call) -> None:
    *windows, ceil = args_of(c.node)[1:]

    def plane(x: torch.fx.Node, deep: bool) -> torch.fx.Node:
        return c.b.call(OPS.max_pool2d_nhwc.default, x, *_plane_of(windows, deep), ceil)

    give_in_planes(c, plane)


def _avg_pool(c: Call) -> None:
    *windows, ceil, include, divisor = args_of(c.node)[1:]

    def plane(x: torch.fx.Node, deep: bool) -> torch.fx.Node:
        # A mean over a box is a mean of means. The divisor counts in one step; the other step divides by 1.
        by = divisor if divisor is None or not deep else 1
        return c.b.call(OPS.avg_pool2d_nhwc.default, x, *_plane_of(windows, deep), ceil, include, by)

    give_in_planes(c, plane)


def _plane_of(windows: Sequence[Sequence[int]], deep: bool) -> list[list[int]]:
    """Return kernel, stride, padding (and dilation) of the last two dimensions, or of depth and one pixel."""
    if deep:
        return [[window[0], fill] for window, fill in zip(windows, (1, 1, 0, 1), strict=False)]
    return [list(window[-2:]) for window in windows]


def _max_pool_by_taps(c: Call) -> None:
    """Lower a dilated maximum dimension by dimension, as the maximum of one slice per tap."""
    kernel, stride, padding, dilation, _ = args_of(c.node)[1:]
    dims = channels_last(c)
    x, sizes, pads = c.take(0, dims), [c.size(0, group) for group in dims], [0, 0]
    windows = list(zip(kernel, stride, padding, dilation, shape_of(c.node)[2:], strict=True))
    for dim, (taps, step, before, apart, new) in reversed(list(enumerate(windows, 1))):
        after = max((taps - 1) * apart + (new - 1) * step + 1 - before - sizes[dim], 0)
        sizes[dim] += before + after
        pads += [before, after]
    if any(pads):
        x = c.b.call(aten.constant_pad_nd.default, x, pads, _least(args_of(c.node)[0]))
    for dim, (taps, step, _, apart, new) in enumerate(windows, 1):
        rows = [c.b.every(x, sizes, dim, tap * apart, new, step) for tap in range(taps)]
        x = c.b.combine(aten.maximum.default, rows)
        sizes[dim] = new
    c.give(x, dims)


def _least(x: torch.fx.Node) -> float:
    """Return a number that no element of a value is below: −∞, or the number of the lowest integer."""
    if x.target is not DEQUANTIZE:
        return -math.inf
    scale, zero_point, low = args_of(x)[1:4]
    return in_float32(scale) * int(low - zero_point)


def _adaptive_by_windows(c: Call) -> None:
    """Lower adaptive average pooling dimension by dimension, as the mean of one slice per distinct window."""
    c.compute_in_float32()
    spatial = c.labelled("s")
    groups = c.split(leads=spatial, alone=spatial)
    x, sizes = c.take(0, groups), [c.size(0, group) for group in groups]
    for dim, group in enumerate(groups):
        if not group or group[0] not in spatial:
            continue
        old, new = sizes[dim], c.size(c.result, group)
        often = math.gcd(old, new)
        rows = [math.prod(sizes[:dim]) * often, old // often, math.prod(sizes[dim + 1 :])]
        x = c.b.call(aten.view.default, x, rows)
        cut = [c.b.slice(x, 1, *window) for window in windows_of(old // often, new // often)]
        means = [c.b.call(aten.mean.dim, part, [1], True) for part in cut]
        x = c.b.cat(means, 1)
        sizes[dim] = new
        x = c.b.call(aten.view.default, x, sizes)
    c.give(x, groups)


def _adaptive_by_matmuls(c: Call) -> None:
    """Lower adaptive average pooling to one matmul per dimension, whose matrix pools the unit vectors."""
    c.compute_in_float32()
    pairs = zip(shape_of(args_of(c.node)[0])[2:], shape_of(c.node)[2:], strict=True)
    give_by_matmuls(c, [F.adaptive_avg_pool1d(torch.eye(old), new).t().contiguous() for old, new in pairs])


def _adaptive_as_it_is(c: Call) -> None:
    batch, *spatial, channels = channels_last(c)
    dims = [batch, channels, *spatial]
    c.give(c.b.call(c.target, c.take(0, dims), args_of(c.node)[1]), dims)


def _rounds_twice(node: torch.fx.Node) -> bool:
    """Return whether a mean of means differs from the mean: integers are rounded each time."""
    return len(shape_of(node)) > 4 and not node.meta["val"].is_floating_point()


def _is_dilated(node: torch.fx.Node) -> bool:
    return any(d != 1 for d in args_of(node)[4]) and node.meta["val"].is_floating_point()


FORM = "n s.0 s.1 s.2 c"
MATMULS = (aten.matmul.default, aten._to_copy.default)
_MAX_POOL = Implementation("channels last", FORM, _max_pool, (OPS.max_pool2d_nhwc.default,))
_BY_TAPS = Implementation(
    "tap by tap",
    FORM,
    _max_pool_by_taps,
    (aten.constant_pad_nd.default, aten.slice.Tensor, aten.maximum.default),
    _is_dilated,
)
_AVG_POOL = Implementation(
    "channels last", FORM, _avg_pool, (OPS.avg_pool2d_nhwc.default,), lambda node: not _rounds_twice(node)
)


def _adaptive(rank: int) -> Operator:
    implementations = (
        Implementation("channels first", "n c s.0 s.1 s.2", _adaptive_as_it_is, (_ADAPTIVE_AVG[rank],)),
        Implementation(
            "window by window",
            "*",
            _adaptive_by_windows,
            (aten.slice.Tensor, aten.mean.dim, aten.cat.default, aten._to_copy.default),
            _has_few_windows,
        ),
        Implementation("by matmul", FORM, _adaptive_by_matmuls, MATMULS, _has_many_windows),
    )
    return Operator(
        (_ADAPTIVE_AVG[rank],),
        relate_spatial,
        implementations,
        _adaptive_avg_pool(rank),
        fresh=rank == 2,
        plain=("channels first", "window by window"),
        elements=Elements.FILTERS,
    )


def _max(rank: int) -> Operator:
    return Operator(
        (_MAX[rank],),
        relate_spatial,
        (_MAX_POOL, _BY_TAPS),
        _pool(rank, _MAX),
        plain=(_MAX_POOL.name,),
        elements=Elements.SELECTS,
    )


def _avg(rank: int) -> Operator:
    spell = _pool(rank, _AVG)
    return Operator((_AVG[rank],), relate_spatial, (_AVG_POOL,), spell, elements=Elements.FILTERS)


OPERATORS = (
    _max(2),
    _max(3),
    _avg(2),
    _avg(3),
    spelling(_pool(1, _MAX), _MAX[1]),
    spelling(_pool(1, _AVG), _AVG[1]),
    spelling(_adaptive_avg_pool(1), aten.adaptive_avg_pool1d.default),
    _adaptive(2),
    _adaptive(3),
    spelling(_adaptive_avg_pool(2), aten._adaptive_avg_pool2d.default, fresh=True),
    spelling(_adaptive_avg_pool(3), aten._adaptive_avg_pool3d.default),
)
