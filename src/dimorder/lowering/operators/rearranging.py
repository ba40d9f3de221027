"""Operators that rearrange elements by views, permutes and broadcasts: shuffles, repeats and their like."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dimorder.lowering.capture.tracing import Tracer, Value, shape_of
from dimorder.lowering.operators.moves import view
from dimorder.lowering.operators.operator import spelt

aten = torch.ops.aten


def _pixel_shuffle(n: Tracer, x: Value, factor: int) -> Value:
    *rest, channels, height, width = shape_of(x)
    k = len(rest)
    x = view(n, x, [*rest, channels // factor**2, factor, factor, height, width])
    x = n.write(aten.permute.default, x, [*range(k), k, k + 3, k + 1, k + 4, k + 2])
    return view(n, x, [*rest, channels // factor**2, height * factor, width * factor])


def _pixel_unshuffle(n: Tracer, x: Value, factor: int) -> Value:
    *rest, channels, height, width = shape_of(x)
    k = len(rest)
    x = view(n, x, [*rest, channels, height // factor, factor, width // factor, factor])
    x = n.write(aten.permute.default, x, [*range(k), k, k + 2, k + 4, k + 1, k + 3])
    return view(n, x, [*rest, channels * factor**2, height // factor, width // factor])


def _channel_shuffle(n: Tracer, x: Value, groups: int) -> Value:
    batch, channels, *rest = shape_of(x)
    x = view(n, x, [batch, groups, channels // groups, *rest])
    x = n.write(aten.transpose.int, x, 1, 2)
    return view(n, x, [batch, channels, *rest])


def _movedim(n: Tracer, x: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    rank = len(shape_of(x))
    if not rank:
        return x
    places = dict(zip(_listed(destination, rank), _listed(source, rank), strict=True))
    others = (dim for dim in range(rank) if dim not in places.values())
    return n.write(aten.permute.default, x, [places[d] if d in places else next(others) for d in range(rank)])


def _listed(dims: int | Sequence[int], rank: int) -> list[int]:
    return [dim % rank for dim in ([dims] if isinstance(dims, int) else dims)]


def _swap(n: Tracer, x: Value, dim0: int, dim1: int) -> Value:
    return n.write(aten.transpose.int, x, dim0, dim1)


def _matrix_transpose(n: Tracer, x: Value) -> Value:
    return _swap(n, x, -2, -1)


def _narrow(n: Tracer, x: Value, dim: int, start: int, length: int) -> Value:
    start = start if start >= 0 else start + shape_of(x)[dim]
    return n.write(aten.slice.Tensor, x, dim, start, start + length)


def _broadcast_to(n: Tracer, x: Value, shape: Sequence[int]) -> Value:
    return n.write(aten.expand.default, x, list(shape))


def _expand_as(n: Tracer, x: Value, other: Value) -> Value:
    return _broadcast_to(n, x, shape_of(other))


def _repeat(n: Tracer, x: Value, repeats: Sequence[int]) -> Value:
    """A dimension in front of each that is repeated, broadcast."""
    sizes = (1,) * (len(repeats) - len(shape_of(x))) + shape_of(x)
    pairs = list(zip(repeats, sizes, strict=True))
    once = [d for times, size in pairs for d in ([size] if times == 1 else [1, size])]
    often = [d for times, size in pairs for d in ([size] if times == 1 else [times, size])]
    x = n.write(aten.expand.default, view(n, x, once), often)
    return view(n, x, [times * size for times, size in pairs])


def _tile(n: Tracer, x: Value, repeats: Sequence[int]) -> Value:
    return _repeat(n, x, [1] * (len(shape_of(x)) - len(repeats)) + list(repeats))


def _repeat_each(
    n: Tracer, x: Value, times: int, dim: int | None = None, *, output_size: int | None = None
) -> Value:
    """A dimension behind the one whose elements are repeated, broadcast."""
    if dim is None:
        x, dim = view(n, x, [-1]), 0
    before, size, after = around(x, dim)
    x = n.write(aten.expand.default, view(n, x, [*before, size, 1, *after]), [*before, size, times, *after])
    return view(n, x, [*before, size * times, *after])


def around(x: Value, dim: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    shape = shape_of(x)
    dim = dim % len(shape)
    return shape[:dim], shape[dim], shape[dim + 1 :]


OPERATORS = (
    spelt(_pixel_shuffle, aten.pixel_shuffle.default),
    spelt(_pixel_unshuffle, aten.pixel_unshuffle.default),
    spelt(_channel_shuffle, aten.channel_shuffle.default, aten.native_channel_shuffle.default),
    spelt(_movedim, aten.movedim.int, aten.movedim.intlist, aten.moveaxis.int, aten.moveaxis.intlist),
    spelt(_swap, aten.swapaxes.default, aten.swapdims.default),
    spelt(_matrix_transpose, aten.mT.default),
    spelt(_narrow, aten.narrow.default),
    spelt(_broadcast_to, aten.broadcast_to.default),
    spelt(_expand_as, aten.expand_as.default),
    spelt(_repeat, aten.repeat.default),
    spelt(_tile, aten.tile.default),
    spelt(_repeat_each, aten.repeat_interleave.self_int),
)
