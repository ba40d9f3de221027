"""Write linears, matmuls, reductions and normalisations as LiteRT operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.targets.graph_writer import merge_broadcast
from dimorder.targets.litert.flatbuffer import MAX_RANK
from dimorder.targets.litert.integer_writer import LiteRtValue
from dimorder.targets.litert.moves import pad
from dimorder.targets.litert.pointwise import BOOL, F16, F32, I32, I64, add, cast, check_float, mul
from dimorder.targets.litert.writer import LiteRtWriter
from dimorder.targets.rows import (
    MOST_IN_A_SUM,
    constant_matrix,
    reduced_by,
    rows_of_a_sum,
    unfit_matrices,
    unfit_softmax,
)
from dimorder.targets.table import Arguments, Row, View

aten = torch.ops.aten

MAX_BATCHED = 5  # dimensions of BATCH_MATMUL by LiteRT's own kernels


# -- contractions ------------------------------------------------------------------------------------------


def linear(w: LiteRtWriter, x: LiteRtValue, weight: Tensor, bias: LiteRtValue | None) -> LiteRtValue:
    """Return x (…, I) times a constant weight (O, I), plus bias (O)."""
    shape, x = (*x.shape[:-1], weight.shape[0]), w.in_rows(x)
    operands = [x, w.constant(weight)] + ([] if bias is None else [bias])
    y = w.op("FULLY_CONNECTED", operands, (*x.shape[:-1], weight.shape[0]), keepNumDims=True)
    return w.reshape(y, shape)


def _linear(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    bias = None if a.bias is None else w.dense(a.bias)
    if isinstance(a.weight, Tensor):
        return linear(w, w.dense(a.input), a.weight, bias)
    x, weight = w.dense(a.input), w.dense(a.weight)
    y = matmul(w, w.reshape(x, (1, x.size // x.shape[-1], x.shape[-1])), weight, True)
    y = w.reshape(y, a.shape)
    return y if bias is None else add(w, y, bias)


def matmul(w: LiteRtWriter, x: LiteRtValue, y: LiteRtValue, is_transposed: bool = False) -> LiteRtValue:
    """Multiply matrices x (…, M, K) by y (…, K, N), or by y (…, N, K) if that is transposed.

    If `y` lacks a batch, the batch of `x` becomes rows. Other batches broadcast, which BATCH_MATMUL does.
    """
    columns = y.shape[-2] if is_transposed else y.shape[-1]
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    shape = (*batch, x.shape[-2], columns)
    if math.prod(y.shape[:-2]) == 1:
        x = w.reshape(x, (1, x.size // x.shape[-1], x.shape[-1]))
        y = w.reshape(y, (1, *y.shape[-2:]))
    elif len(shape) > MAX_BATCHED:
        merged = merge_broadcast([x.shape[:-2], y.shape[:-2]], batch)
        if len(merged[0]) > MAX_BATCHED - 2:
            x, y = (w.expanded(v, (*batch, *v.shape[-2:])) for v in (x, y))
            merged = [(math.prod(batch),)] * 2
        x, y = (w.reshape(v, (*to, *v.shape[-2:])) for v, to in zip((x, y), merged, strict=True))
    if x.tensor == y.tensor:
        # XNNPACK multiplies a TRANSPOSE's result wrongly with itself. It may leave out a RESHAPE.
        y = w.elementwise("MAXIMUM", y, y)
    out = (*torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], columns)
    return w.reshape(w.op("BATCH_MATMUL", [x, y], out, adjX=False, adjY=is_transposed), shape)


def _matmul(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    left, right = w.dense(a.self), a.other
    matrix = constant_matrix(right)
    if matrix is not None:
        return w.reshape(linear(w, left, matrix.t(), None), a.shape)
    if isinstance(right, View) and not right.is_dense and right.is_transposed:
        return matmul(w, left, right.value, True)
    return matmul(w, left, w.dense(right))


def _check_matmul(a: Arguments) -> str | None:
    return unfit_matrices(a) or check_float(a)


# -- reductions --------------------------------------------------------------------------------------------


def reduce(w: LiteRtWriter, kind: str, x: LiteRtValue, dims: Collection[int]) -> LiteRtValue:
    """Reduce over `dims`, which become 1, in one operator.

    Sums of floats over whole images of a dynamic size are two: XNNPACK's delegate computes no sum over three
    dimensions, and no reshape can merge them.
    """
    is_many = math.prod(x.shape[d] for d in dims) > MOST_IN_A_SUM and set(x.shape).isdisjoint(w.varying)
    if is_many and kind in ("MEAN", "SUM") and x.dtype == F32 and x.of is None:
        return _reduced_twice(w, kind, x, dims)
    is_image = len(x.shape) == 4 and x.of is None and not set(x.shape[1:3]).isdisjoint(w.varying)
    if is_image and set(dims) == {1, 2, 3} and kind in ("MEAN", "SUM"):
        return reduce(w, kind, reduce(w, kind, x, {1, 2}), {3})
    kept = [1 if d in dims else size for d, size in enumerate(x.shape)]
    if set(dims) == {len(x.shape) - 1}:
        x = w.in_rows(x)
        dims = {len(x.shape) - 1}
    if len(x.shape) > MAX_RANK:
        x, dims = _merged(w, x, dims)
    dims = [d for d in sorted(dims) if x.shape[d] != 1]
    if not dims:
        return w.reshape(x, kept)
    shape = [1 if d in dims else size for d, size in enumerate(x.shape)]
    return w.reshape(w.op(kind, [x, w.sizes(dims)], shape, keepDims=True), kept)


def _reduced_twice(w: LiteRtWriter, kind: str, x: LiteRtValue, dims: Collection[int]) -> LiteRtValue:
    """Return a mean or sum of many numbers as one of means or sums."""
    last = max(d for d in dims if x.shape[d] > 1)
    if any(x.shape[d] > 1 for d in dims if d != last):
        return reduce(w, kind, reduce(w, kind, x, {last}), set(dims) - {last})
    outer, size, inner = x.shape[:last], x.shape[last], x.shape[last + 1 :]
    rows, columns = rows_of_a_sum(size)
    ends = [0] * last, [0] * len(inner)
    x = pad(w, x, [*ends[0], 0, *ends[1]], [*ends[0], rows * columns - size, *ends[1]])
    x = w.reshape(x, (math.prod(outer), rows, columns, math.prod(inner)))
    y = w.reshape(reduce(w, kind, reduce(w, kind, x, {2}), {1}), (*outer, 1, *inner))
    return y if kind == "SUM" or rows * columns == size else mul(w, y, rows * columns / size)


def _merged(w: LiteRtWriter, x: LiteRtValue, dims: Collection[int]) -> tuple[LiteRtValue, set[int]]:
    """Return a value with adjacent dimensions merged that are reduced alike, and those that are reduced."""
    kept = (d for d, size in enumerate(x.shape) if size != 1)
    runs = [[*run] for _, run in groupby(kept, lambda d: d in dims)]
    sizes = [math.prod(x.shape[d] for d in run) for run in runs]
    return w.reshape(x, sizes), {i for i, run in enumerate(runs) if run[0] in dims}


def _reduction(
    kind: str, dtype: torch.dtype | None = None
) -> Callable[[LiteRtWriter, Arguments], LiteRtValue]:
    """Return the build of a reduction of values in the result's type, or in `dtype`."""

    def build(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
        x = cast(w, w.dense(a.self), dtype or a.dtype)
        return w.reshape(reduce(w, kind, x, reduced_by(a)), a.shape)

    return build


def _sum(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Write a sum. That of integers is the mean of as many times their numbers.

    LiteRT's reference kernel of an int8 SUM is off by hundreds.
    """
    if w.in_integers is None:
        return _reduction("SUM")(w, a)
    x, dims = w.dense(a.self), reduced_by(a)
    count = math.prod(x.shape[d] for d in dims)
    assert x.of is not None
    more = w.rescaled(x, replace(x.of, scale=x.of.scale * count), factor=count)
    return w.reshape(reduce(w, "MEAN", more, dims), a.shape)


def _extremum(kind: str, of_truth: str) -> Row:
    """Return the row of a maximum or minimum; that of truth values is another reduction."""
    of_numbers, of_bool = _reduction(kind), _reduction(of_truth)
    return Row(lambda w, a: (of_bool if a.dtype == BOOL else of_numbers)(w, a))


def _topk(w: LiteRtWriter, x: LiteRtValue, count: int, largest: bool, shapes: Any) -> list[LiteRtValue]:
    """Return the largest or smallest numbers of each row in order, and their places; the first of equals."""

    def turned(value: LiteRtValue) -> LiteRtValue:
        """Turn the order of numbers round, and of integers without an overflow."""
        if x.dtype in (F32, F16):
            return w.elementwise("NEG", value)
        return w.elementwise("SUB", w.number(-1, x.dtype), value)

    y = x if largest else turned(x)
    y = w.reshape(y, (x.size // x.shape[-1], x.shape[-1]))
    shape = (y.shape[0], count)
    operands = [y, w.number(count, I32)]
    numbers, places = w.ops("TOPK_V2", operands, [(shape, x.dtype), (shape, I32)])
    numbers = numbers if largest else turned(numbers)
    return [w.reshape(each, to) for each, to in zip((numbers, cast(w, places, I64)), shapes, strict=True)]


def _check_last(a: Arguments) -> str | None:
    rank, dtype = len(a.shape), a.self.meta["val"].dtype
    if rank and a.dim % rank != rank - 1:
        return f"an order along dimension {a.dim} of {rank}; LiteRT has it along the last"
    return None if rank and dtype in (F32, F16, I32, I64) else f"an order of {dtype}"


def _arg(largest: bool) -> Callable[[LiteRtWriter, Arguments], LiteRtValue]:
    kind = "ARG_MAX" if largest else "ARG_MIN"

    def build(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
        x = w.dense(a.self)
        x = w.reshape(x, x.shape or (1,))
        x, dim = w.in_ranks(x, (a.dim or 0) % len(x.shape))
        shape = (*x.shape[:dim], *x.shape[dim + 1 :])
        return w.reshape(w.op(kind, [x, w.sizes([dim])], shape, I64, outputType=_INT64), a.shape)

    return build


_INT64 = 4  # TensorType of the schema


def _check_arg(a: Arguments) -> str | None:
    dtype = a.self.meta["val"].dtype
    return None if dtype in (F32, F16, I32) else f"argmax of {dtype}, which LiteRT has for torch.float32"


# -- softmax and normalisations ----------------------------------------------------------------------------


def _softmax(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    x = w.in_rows(w.dense(a.self), 4)
    x = x if len(x.shape) <= 4 else w.reshape(x, (x.size // x.shape[-1], x.shape[-1]))
    return w.reshape(w.op("SOFTMAX", [x], x.shape, beta=1.0), a.shape)


def _check_softmax(a: Arguments) -> str | None:
    return unfit_softmax(a) or check_float(a)


def _log_softmax(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    x, _ = w.in_ranks(w.dense(a.self), len(a.shape) - 1)
    return w.reshape(w.op("LOG_SOFTMAX", [x], x.shape), a.shape)


def _layer_norm(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    x, size = w.dense(a.input), math.prod(a.normalized_shape)
    x = w.reshape(x, (*x.shape[: len(x.shape) - len(a.normalized_shape)], size))
    last = {len(x.shape) - 1}
    centred = w.elementwise("SUB", x, reduce(w, "MEAN", x, last))
    variance = reduce(w, "MEAN", mul(w, centred, centred), last)
    y = mul(w, centred, w.elementwise("RSQRT", add(w, variance, a.eps)))
    y = y if a.weight is None else mul(w, y, w.reshape(w.dense(a.weight), (size,)))
    return y if a.bias is None else add(w, y, w.reshape(w.dense(a.bias), (size,)))


def _cumsum(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    x = cast(w, w.dense(a.self), a.dtype)
    if not x.shape:
        return x
    x, dim = w.in_ranks(x, a.dim % len(x.shape))
    return w.reshape(w.op("CUMSUM", [x, w.sizes([dim])], x.shape), a.shape)


_OF_TRUTH = "a sum of truth values as truth"

ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.linear.default: Row(_linear, check_float),
        aten.matmul.default: Row(_matmul, _check_matmul),
        aten.sum.dim_IntList: Row(_sum, lambda a: _OF_TRUTH if a.dtype == BOOL else None),
        aten.mean.dim: Row(_reduction("MEAN"), check_float),
        aten.amax.default: _extremum("REDUCE_MAX", "REDUCE_ANY"),
        aten.amin.default: _extremum("REDUCE_MIN", "REDUCE_ALL"),
        aten.topk.default: Row(lambda w, a: _topk(w, w.dense(a.self), a.k, a.largest, a.shapes), _check_last),
        aten.sort.stable: Row(
            lambda w, a: _topk(w, w.dense(a.self), a.shape[-1], a.descending, a.shapes), _check_last
        ),
        aten.any.dims: Row(_reduction("REDUCE_ANY", BOOL)),
        aten.all.dims: Row(_reduction("REDUCE_ALL", BOOL)),
        aten.prod.dim_int: Row(_reduction("REDUCE_PROD")),
        aten.argmax.default: Row(_arg(largest=True), _check_arg),
        aten.argmin.default: Row(_arg(largest=False), _check_arg),
        aten.softmax.int: Row(_softmax, _check_softmax),
        aten.log_softmax.int: Row(_log_softmax, _check_softmax),
        aten.layer_norm.default: Row(_layer_norm, check_float),
        aten.cumsum.default: Row(_cumsum),
    }
)
