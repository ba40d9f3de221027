"""Write sums, means, extrema, pools and normalisations in integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.quantized import IntegerType, in_float32
from dimorder.ops.dialect import OPS as dimorder
from dimorder.targets.rows import reduced_by, unfit_weights
from dimorder.targets.table import Arguments, Row, whole
from dimorder.targets.tosa import reductions, spatial
from dimorder.targets.tosa.calls import changed
from dimorder.targets.tosa.integers.channels import depthwise
from dimorder.targets.tosa.integers.kernels import BYTES, INTEGERS, SELECTION, SUM
from dimorder.targets.tosa.integers.lookups import as_integers
from dimorder.targets.tosa.integers.numbers import (
    Accumulator,
    IntegerWriter,
    Lookup,
    Numbers,
    numbers,
    shorten,
)
from dimorder.targets.tosa.integers.pointwise import scale_by
from dimorder.targets.tosa.integers.quotients import layer_norm, log_softmax, softmax
from dimorder.targets.tosa.integers.sums import as_sum, multiply
from dimorder.targets.tosa.writer import TosaValue

aten = torch.ops.aten
W = IntegerWriter


def _sum(w: W, a: Arguments) -> Accumulator:
    return _summed(w, numbers(w, a.self), reduced_by(a), a.shape)


def _mean(w: W, a: Arguments) -> Numbers:
    dims = reduced_by(a)
    count = math.prod(a.self.shape[d] for d in dims)
    return scale_by(w, _summed(w, numbers(w, a.self), dims, a.shape), 1 / count)  # type: ignore[return-value]


def _pool_windows(
    w: W, total: Accumulator, x: TosaValue, of: IntegerType, kernel: Sequence[int], stride: Sequence[int]
) -> None:
    """Let `total`, sums of whole windows, become an AVG_POOL2D if their means have the integers' scale."""
    count, shape = math.prod(kernel), total.integers.shape

    def write(wanted: Accumulator, to: IntegerType) -> TosaValue | None:
        ratio = float(wanted.scales) * count / in_float32(to.scale)
        if abs(ratio - 1) > 2**-20:
            return None
        if to.dtype != of.dtype:
            return None
        return spatial.avg_pool(w, x, kernel, stride, [0] * 4, shape, (of.zero_point, to.zero_point))

    w.shortcuts[total.integers.tensor] = write


def _summed(w: W, x: Numbers, dims: set[int], shape: tuple[int, ...]) -> Accumulator:
    """Return a sum; sums of int8 over adjacent dimensions are a convolution with ones.

    The convolution reads the integers in place. REDUCE_SUM along any but the last dimension makes Vela
    transpose.
    """
    kernel = _kernel(x.shape, dims)
    if isinstance(x, Lookup) and kernel is not None and x.exact_type is not None and w.forms.sums_windows:
        values, of = as_integers(w, x)
        first, last = min(dims), max(dims)
        outer, channels = math.prod(x.shape[:first]), math.prod(x.shape[last + 1 :])
        total = _with_ones(w, w.reshape(values, (outer, *kernel, channels)), of, kernel, (1, 1))
        return w.reshape(total, shape)  # type: ignore[no-any-return]
    held, count = as_sum(w, x), math.prod(x.shape[d] for d in dims)
    held = shorten(w, held, 30 - count.bit_length())
    summed = reductions.reduce(w, "REDUCE_SUM", held.integers, dims)
    whole = w.reshape(summed, shape)
    return Accumulator(whole, held.scales, held.limit * count, error=held.error * count)


MAX_KERNEL = 64  # the limit of Ethos-U, in height and in width


def _kernel(shape: tuple[int, ...], dims: set[int]) -> tuple[int, int] | None:
    """Return the window over adjacent dimensions, if both its sides fit and a dimension follows it."""
    sizes = [shape[d] for d in sorted(dims)]
    if len(dims) != max(dims, default=0) - min(dims, default=0) + 1 or max(dims, default=0) == len(shape) - 1:
        return None
    sides = (sizes[0], math.prod(sizes[1:])) if sizes else (1, 1)
    return sides if math.prod(sides) > 1 and max(sides) <= MAX_KERNEL else None


def _with_ones(
    w: W,
    x: TosaValue,
    of: IntegerType,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] = (0, 0),
    shape: tuple[int, ...] | None = None,
) -> Accumulator:
    """Return the sums of windows of int8 (N, H, W, C), in which padding counts nothing."""
    channels = x.shape[-1]
    ones = torch.ones(channels, *kernel, 1, dtype=torch.int8)
    total = depthwise(w, x, of, ones, shape or (x.shape[0], 1, 1, channels), None, stride, padding)
    sides = zip(x.shape[1:3], kernel, stride, strict=True)
    if not any(padding) and all((size - side) % step == 0 for size, side, step in sides):
        _pool_windows(w, total, x, of, kernel, stride)
    return total


def _of_integers(row: Row, operand: str) -> Row:
    """Return the row of an operator that selects elements, which computes it on the integers."""

    def build(w: W, a: Arguments) -> Lookup:
        x, of = as_integers(w, w.dense(getattr(a, operand)))
        y = row.build(w, changed(a, dtype=of.dtype, **{operand: whole(x)}))
        return Lookup.dequantize(w.reshape(y, a.shape), of)

    return Row(build, row.check, kernel=SELECTION)


def _softmax(w: W, a: Arguments) -> Accumulator:
    x: Lookup = w.dense(a.self)
    return softmax(w, x, a.dim % len(x.shape))


def _log_softmax(w: W, a: Arguments) -> Accumulator:
    x: Lookup = w.dense(a.self)
    return log_softmax(w, x, a.dim % len(x.shape))


def _layer_norm(w: W, a: Arguments) -> Accumulator:
    x: Lookup = w.dense(a.input)
    rank = len(x.shape)
    dims = range(rank - len(a.normalized_shape), rank)
    return layer_norm(w, x, set(dims), a.weight, a.bias, a.eps)


def _avg_pool(w: W, a: Arguments) -> Numbers:
    """Write a mean pool as a depthwise convolution with ones, times the reciprocals of the window counts."""
    x, of = as_integers(w, w.dense(a.x))
    total = _with_ones(w, x, of, a.kernel_size, a.stride, a.padding, a.shape)
    counts = _counts(a, x.shape[1:3])
    if bool((counts == counts.flatten()[0]).all()):
        return scale_by(w, total, 1 / float(counts.flatten()[0]))  # type: ignore[return-value]
    return multiply(w, total, (1 / counts)[None, :, :, None])


def _counts(a: Arguments, sizes: tuple[int, ...]) -> Tensor:
    """Return torch's divisor of each window, (height, width): the sum of ones over their mean."""
    ones = torch.ones(1, *sizes, 1, dtype=torch.float64)
    window = a.kernel_size, a.stride, a.padding, a.ceil_mode
    total = dimorder.avg_pool2d_nhwc(ones, *window, True, 1)
    mean = dimorder.avg_pool2d_nhwc(ones, *window, a.count_include_pad, a.divisor_override)
    counts: Tensor = (total / mean).round()[0, :, :, 0]
    return counts


def _argmax(w: W, a: Arguments) -> TosaValue:
    """Write the place of the largest element; Ethos-U55 has it along the last dimension, of one image."""
    x, _ = as_integers(w, w.dense(a.self))
    dim, after = a.dim, x.shape[a.dim :][1:]
    if math.prod(after) == 1 and (after or (len(x.shape) > 3 and x.shape[0] > 1)):
        size = x.shape[dim]
        x, dim = w.reshape(x, (1, x.size // size, size)), 2
    return reductions.arg(largest=True)(w, changed(a, self=whole(x), dim=dim))


_SELECTIONS = {
    aten.amax.default: (reductions.ROWS, "self"),
    aten.amin.default: (reductions.ROWS, "self"),
    dimorder.max_pool2d_nhwc.default: (spatial.ROWS, "x"),
}
ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.sum.dim_IntList: Row(_sum, kernel=SUM),
        aten.mean.dim: Row(_mean, kernel=SUM),
        **{target: _of_integers(rows[target], x) for target, (rows, x) in _SELECTIONS.items()},
        aten.softmax.int: Row(_softmax, kernel=BYTES),
        aten.log_softmax.int: Row(_log_softmax, kernel=INTEGERS),
        aten.layer_norm.default: Row(_layer_norm, lambda a: unfit_weights(a, a.weight), kernel=BYTES),
        dimorder.avg_pool2d_nhwc.default: Row(_avg_pool, kernel=INTEGERS),
        aten.argmax.default: Row(_argmax, kernel=INTEGERS),
    }
)
