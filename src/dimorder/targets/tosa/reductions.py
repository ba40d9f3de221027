"""Write linear, matmul, reductions, softmax and normalisations as TOSA operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.targets.rows import MOST_IN_A_SUM, constant_matrix, reduced_by, rows_of_a_sum
from dimorder.targets.table import Arguments, Row, is_of_one_type, is_transposed, shape_of
from dimorder.targets.tosa.dtypes import DTYPES, FLOATS, accumulator_type
from dimorder.targets.tosa.moves import pad
from dimorder.targets.tosa.pointwise import add, cast, check_float, mul, negate
from dimorder.targets.tosa.spatial import conv
from dimorder.targets.tosa.writer import MAX_RANK, TosaValue, TosaWriter

aten = torch.ops.aten


# -- contractions ------------------------------------------------------------------------------------------


def linear(
    w: TosaWriter,
    x: TosaValue,
    weight: Tensor,
    bias: Tensor | None,
    zero_points: Sequence[int] = (0, 0),
) -> TosaValue:
    """Return x (…, I) times weight (O, I) plus bias (O), as a CONV2D of one tap, which adds the bias."""
    outputs, inputs = weight.shape
    pixels = w.reshape(x, x.shape if len(x.shape) == 4 else (1, math.prod(x.shape[:-1]), 1, inputs))
    taps, shape = weight.reshape(outputs, 1, 1, inputs), (*pixels.shape[:-1], outputs)
    y = conv(w, "CONV2D", pixels, taps, bias, shape, zero_points=zero_points)
    return w.reshape(y, (*x.shape[:-1], outputs))


def matmul(
    w: TosaWriter,
    x: TosaValue,
    y: TosaValue,
    zero_points: Sequence[int] = (0, 0),
    shorten: Callable[[TosaValue], TosaValue] = lambda sums: sums,
) -> TosaValue:
    """Multiply matrices x (…, M, K) by y (…, K, N); int8 gives int32, int16 what `shorten` makes of INT48.

    If `y` lacks a batch, the batch of `x` becomes rows. Other batches are repeated.
    """
    rank = max(len(x.shape), len(y.shape))
    x, y = (w.reshape(v, (1,) * (rank - len(v.shape)) + v.shape) for v in (x, y))
    batch = [max(pair) for pair in zip(x.shape[:-2], y.shape[:-2], strict=True)]
    shape = (*batch, x.shape[-2], y.shape[-1])
    if math.prod(y.shape[:-2]) == 1:
        x = w.reshape(x, (1, math.prod(x.shape[:-1]), x.shape[-1]))
    else:
        x, y = (w.tiled(v, (*batch, *v.shape[-2:])) for v in (x, y))
    x, y = (w.reshape(v, (math.prod(v.shape[:-2]), *v.shape[-2:])) for v in (x, y))
    zeros = [w.number(zero, x.dtype) for zero in zero_points]
    z = w.op("MATMUL", [x, y, *zeros], (x.shape[0], x.shape[1], y.shape[2]), accumulator_type(x.dtype))
    z = w.narrow(z, x.dtype) if x.dtype in FLOATS else z
    return w.reshape(shorten(z), shape)


def _matmul(w: TosaWriter, a: Arguments) -> TosaValue:
    matrix = constant_matrix(a.other)
    if matrix is not None:
        return linear(w, w.dense(a.self), matrix.t(), None)
    return matmul(w, w.dense(a.self), w.dense(a.other))


def check_matmul(a: Arguments) -> str | None:
    if min(len(shape_of(a.self)), len(shape_of(a.other))) < 2:
        return "a product with a vector"
    if is_transposed(a.self) or is_transposed(a.other):
        return "a product whose operand lies transposed"
    return check_float(a)


# -- reductions --------------------------------------------------------------------------------------------


def reduce(w: TosaWriter, kind: str, x: TosaValue, dims: Collection[int]) -> TosaValue:
    """Reduce over `dims`, which become 1, with one operator for each run of adjacent ones.

    Each is alone between what is before and after it if there are more runs than TOSA has dimensions.
    """
    runs: list[list[int]] = []
    for d, length in enumerate(x.shape):
        joins = runs and (d in dims) == (runs[-1][-1] in dims) and (d in dims or len(x.shape) > MAX_RANK)
        if joins and length != 1:
            runs[-1].append(d)
        else:
            runs.append([d])
    y, sizes = x, [math.prod(x.shape[d] for d in run) for run in runs]
    for axis, run in enumerate(runs):
        if run[0] in dims and sizes[axis] != 1:
            alone = [math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])]
            whole = len(sizes) <= MAX_RANK
            y = _reduced(w, kind, w.reshape(y, sizes if whole else alone), axis if whole else 1)
            sizes[axis] = 1
    return w.reshape(y, [1 if d in dims else length for d, length in enumerate(x.shape)])


def _reduced(w: TosaWriter, kind: str, x: TosaValue, axis: int) -> TosaValue:
    """Reduce over one dimension; a long sum is one of sums."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    if kind != "REDUCE_SUM" or size <= MOST_IN_A_SUM or x.dtype not in FLOATS:
        return w.op(kind, [x], (*before, 1, *after), axis=axis)
    rows, columns = rows_of_a_sum(size)
    none = [0] * len(before), [0] * len(after)
    x = pad(w, x, [*none[0], 0, *none[1]], [*none[0], rows * columns - size, *none[1]])
    outer, inner = math.prod(before), math.prod(after)
    y = w.op(kind, [w.reshape(x, (outer, rows, columns, inner))], (outer, rows, 1, inner), axis=2)
    return w.reshape(w.op(kind, [y], (outer, 1, 1, inner), axis=1), (*before, 1, *after))


def mean(w: TosaWriter, x: TosaValue, dims: Collection[int]) -> TosaValue:
    count = math.prod(x.shape[d] for d in dims)
    return mul(w, reduce(w, "REDUCE_SUM", x, dims), 1 / count)


def normalize(w: TosaWriter, x: TosaValue, dims: Collection[int], eps: float) -> TosaValue:
    """Return (x - mean) / sqrt(variance + eps), over `dims`."""
    centred = w.elementwise("SUB", x, mean(w, x, dims))
    variance = mean(w, mul(w, centred, centred), dims)
    return mul(w, centred, w.elementwise("RSQRT", add(w, variance, eps)))


def _reduction(kind: str) -> Callable[[TosaWriter, Arguments], TosaValue]:
    def build(w: TosaWriter, a: Arguments) -> TosaValue:
        return w.reshape(reduce(w, kind, cast(w, w.dense(a.self), DTYPES[a.dtype]), reduced_by(a)), a.shape)

    return build


def _sum(w: TosaWriter, a: Arguments) -> TosaValue:
    """Write a sum. TOSA adds up no integers below 32 bits; such a sum has its last bits, as in torch."""
    dtype = DTYPES[a.dtype]
    x = cast(w, w.dense(a.self), "INT32" if dtype in ("INT8", "INT16") else dtype)
    return w.reshape(cast(w, reduce(w, "REDUCE_SUM", x, reduced_by(a)), dtype), a.shape)


def _truth_reduction(kind: str) -> Callable[[TosaWriter, Arguments], TosaValue]:
    def build(w: TosaWriter, a: Arguments) -> TosaValue:
        truth = reduce(w, kind, cast(w, w.dense(a.self), "BOOL"), reduced_by(a))
        return w.reshape(cast(w, truth, DTYPES[a.dtype]), a.shape)  # of uint8 it is a uint8

    return build


def _mean(w: TosaWriter, a: Arguments) -> TosaValue:
    return w.reshape(mean(w, cast(w, w.dense(a.self), DTYPES[a.dtype]), reduced_by(a)), a.shape)


def arg(largest: bool) -> Callable[[TosaWriter, Arguments], TosaValue]:
    def build(w: TosaWriter, a: Arguments) -> TosaValue:
        x = w.dense(a.self)
        x = w.reshape(x, x.shape or (1,))
        x = x if largest else negate(w, x)
        x, axis = w.in_ranks(x, a.dim % len(x.shape))
        y = w.op("ARGMAX", [x], (*x.shape[:axis], *x.shape[axis + 1 :]), "INT32", axis=axis)
        return w.reshape(y, a.shape)

    return build


def check_arg(a: Arguments) -> str | None:
    dtype = a.self.meta["val"].dtype
    return None if DTYPES.get(dtype) in FLOATS else f"argmax of {dtype}; TOSA's profile FP has it for floats"


# -- softmax and normalisations, from parts ----------------------------------------------------------------


def _softmax(w: TosaWriter, a: Arguments) -> TosaValue:
    """Return exp(x - max) / sum."""
    raised = w.elementwise("EXP", _shifted(w, a))
    total = reduce(w, "REDUCE_SUM", raised, reduced_by(a))
    return mul(w, raised, w.elementwise("RECIPROCAL", total))


def _log_softmax(w: TosaWriter, a: Arguments) -> TosaValue:
    """Return x - max - log(sum(exp(x - max)))."""
    shifted = _shifted(w, a)
    total = reduce(w, "REDUCE_SUM", w.elementwise("EXP", shifted), reduced_by(a))
    return w.elementwise("SUB", shifted, w.elementwise("LOG", total))


def _shifted(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.self)
    return w.elementwise("SUB", x, reduce(w, "REDUCE_MAX", x, reduced_by(a)))


def _layer_norm(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.input)
    rank = len(x.shape)
    y = normalize(w, x, range(rank - len(a.normalized_shape), rank), a.eps)
    y = y if a.weight is None else mul(w, y, w.dense(a.weight))
    return y if a.bias is None else add(w, y, w.dense(a.bias))


_sum_row, _mean_row = Row(_sum), Row(_mean, check_float)
_matmul_row = Row(_matmul, check_matmul, halves=is_of_one_type)
_softmax_row, _log_softmax_row = Row(_softmax, check_float), Row(_log_softmax, check_float)

ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.matmul.default: _matmul_row,
        aten.sum.dim_IntList: _sum_row,
        aten.mean.dim: _mean_row,
        aten.amax.default: Row(_reduction("REDUCE_MAX"), halves=is_of_one_type),
        aten.amin.default: Row(_reduction("REDUCE_MIN"), halves=is_of_one_type),
        aten.any.dims: Row(_truth_reduction("REDUCE_ANY")),
        aten.all.dims: Row(_truth_reduction("REDUCE_ALL")),
        aten.prod.dim_int: Row(_reduction("REDUCE_PRODUCT"), check_float),
        aten.argmax.default: Row(arg(largest=True), check_arg, halves=is_of_one_type),
        aten.argmin.default: Row(arg(largest=False), check_arg, halves=is_of_one_type),
        aten.softmax.int: _softmax_row,
        aten.log_softmax.int: _log_softmax_row,
        aten.layer_norm.default: Row(_layer_norm, check_float),
    }
)
