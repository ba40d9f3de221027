"""Write padding with elements of the tensor itself as slices: reflected, replicated, circular."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dimorder.graph.tracing import Tracer, Value, shape_of
from dimorder.ops.lookup import take
from dimorder.ops.operator import spelt

aten = torch.ops.aten


def _mirrored(size: int, low: int, high: int) -> list[int]:
    return [*range(low, 0, -1), *range(size), *range(size - 2, size - 2 - high, -1)]


def _edged(size: int, low: int, high: int) -> list[int]:
    return [0] * low + list(range(size)) + [size - 1] * high


def _wrapped(size: int, low: int, high: int) -> list[int]:
    return [*range(size - low, size), *range(size), *range(high)]


_PADDED: dict[str, Callable[[int, int, int], list[int]]] = {
    "reflect": _mirrored,
    "replicate": _edged,
    "circular": _wrapped,
}


def _pad_as(mode: str, target: Any = None) -> Callable[..., Value]:
    def spell(n: Tracer, x: Value, pad: Sequence[int]) -> Value:
        padded = _padded(n, x, pad, mode)
        return n.emit(target, x, list(pad)) if padded is None else padded

    return spell


def _pad(
    n: Tracer, x: Value, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Value:
    if mode == "constant":
        return n.write(aten.constant_pad_nd.default, x, list(pad), value or 0.0)
    padded = _padded(n, x, pad, mode)
    return n.emit(aten.pad.default, x, pad, mode, value) if padded is None else padded


def _padded(n: Tracer, x: Value, pad: Sequence[int], mode: str) -> Value | None:
    """Pad dimension by dimension, the last first, with slices of the tensor.

    The result is None if the padding is negative or needs too many slices.
    """
    if min(pad, default=0) < 0:
        return None
    for i in range(0, len(pad), 2):
        dim = len(shape_of(x)) - 1 - i // 2
        padded = take(n, x, dim, _PADDED[mode](shape_of(x)[dim], pad[i], pad[i + 1]))
        if padded is None:
            return None
        x = padded
    return x


_REFLECTED = (
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
)
_REPLICATED = (
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
)

OPERATORS = (
    spelt(_pad, aten.pad.default),
    *(spelt(_pad_as("reflect", name), name) for name in _REFLECTED),
    *(spelt(_pad_as("replicate", name), name) for name in _REPLICATED),
)
