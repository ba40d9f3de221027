"""Write linears, matmuls, reductions and normalisations as XNNPACK nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dimorder.graph.dynamic_sizes import is_fixed
from dimorder.graph.quantized import Scaled
from dimorder.physical.fuse_quantized import MOVE, FoundKernel, IntegerKernel
from dimorder.targets.integer_kernels import MATRICES, MEAN, weighted
from dimorder.targets.rows import MOST_IN_A_SUM, reduced_dims, rows_of_a_sum, unfit_matrices, unfit_softmax
from dimorder.targets.table import Arguments, Row, View, shape_of
from dimorder.targets.xnnpack.moves import pad
from dimorder.targets.xnnpack.pointwise import Build, apply, is_float16, pair, times

if TYPE_CHECKING:
    from dimorder.targets.xnnpack.builder import XnnBuilder
    from dimorder.targets.xnnpack.graph import XnnValue

aten = torch.ops.aten


def full(w: XnnBuilder, x: XnnValue, weight: XnnValue, bias: XnnValue | None) -> XnnValue:
    """Return x (…, I) times weight (O, I), plus bias (O)."""
    return w.node(
        "FullyConnected",
        (*x.shape[:-1], weight.shape[0]),
        input1_id=x.id,
        filter_id=weight.id,
        bias_id=None if bias is None else bias.id,
    )


def _linear(w: XnnBuilder, a: Arguments) -> XnnValue:
    return full(w, w.dense(a.input), w.dense(a.weight), optional(w, a.bias))


def _check_linear(a: Arguments) -> str | None:
    return None if a.is_constant(a.bias) else "a bias that is not constant"


def optional(w: XnnBuilder, operand: Any) -> XnnValue | None:
    return None if operand is None else w.dense(operand)


def _matmul(w: XnnBuilder, a: Arguments) -> XnnValue:
    left, right = a.self, a.other
    if isinstance(right, Tensor) and right.ndim == 2:
        return full(w, w.dense(left), w.constant(right.t()), None)
    x, y = w.dense(left), None
    flags: tuple[str, ...] = ()
    if isinstance(right, View) and right.is_transposed:
        flags, y = ("TRANSPOSE_B",), right.value
    y = y or w.dense(right)
    if x.id == y.id:
        # XNNPACK multiplies the result of a transpose wrongly with itself. It may leave out a Copy.
        y = w.node("Maximum", y.shape, input1_id=y.id, input2_id=y.id)
    shape = a.shape
    if len(right.shape) == 2:
        rows = math.prod(x.shape[:-1])
        x, y, shape = w.reshape(x, (1, rows, x.shape[-1])), w.reshape(y, (1, *y.shape)), (1, rows, shape[-1])
    return w.node("BatchMatrixMultiply", shape, flags=flags, input1_id=x.id, input2_id=y.id)


def _check_matmul(a: Arguments) -> str | None:
    if reason := unfit_matrices(a):
        return reason
    left, right = (tuple(operand.meta["val"].shape) for operand in (a.self, a.other))
    if len(right) > 2 and len(left) != len(right):
        return f"matrices of two ranks: {left} by {right}"
    return None


def _softmax(w: XnnBuilder, a: Arguments) -> XnnValue:
    return apply(w, "Softmax", w.dense(a.self))


def _layer_norm(w: XnnBuilder, a: Arguments) -> XnnValue:
    x = w.dense(a.input)
    size = math.prod(a.normalized_shape)
    x = w.reshape(x, (*x.shape[: len(x.shape) - len(a.normalized_shape)], size))
    average = w.constant(torch.full((1, size), 1 / size))
    centred = pair(w, "Subtract", x, full(w, x, average, None))
    variance = full(w, apply(w, "Square", centred), average, w.constant(torch.tensor([a.eps])))
    y = pair(w, "Multiply", centred, apply(w, "ReciprocalSquareRoot", variance))
    if a.weight is not None:
        y = pair(w, "Multiply", y, w.reshape(w.dense(a.weight), (size,)))
    if a.bias is not None:
        y = pair(w, "Add", y, w.reshape(w.dense(a.bias), (size,)))
    return y


def _reduce(mean: bool) -> Build:
    def build(w: XnnBuilder, a: Arguments) -> XnnValue:
        x = w.dense(a.self)
        return w.reshape(_reduced(w, x, reduced_dims(a.dim, len(x.shape)), mean), a.shape)

    return build


def _is_over_space(a: Arguments) -> bool:
    """Return whether a mean is one node, which adds up in float32; see `MEAN` for a dynamic size."""
    rank = len(a.shape) if a.keepdim else len(a.shape) + len(a.dim or ())
    return is_float16(a) and is_fixed(a.shape) and rank == 4 and {d % rank for d in a.dim or ()} == {1, 2}


def _reduced(w: XnnBuilder, x: XnnValue, dims: set[int], mean: bool) -> XnnValue:
    """Return the mean or the sum over `dims`, one run of adjacent dimensions at a time.

    The result may have any shape of the right order.
    """
    dims = {d for d in dims if x.shape[d] != 1}
    if not dims:
        return x
    if len(x.shape) == 4 and dims == {1, 2} and (mean or is_fixed(x.shape[1:3])):
        return times(w, mean_over_space(w, x), 1 if mean else math.prod(x.shape[1:3]))
    is_image = len(x.shape) == 4 and x.integer_type is None and not is_fixed(x.shape[1:3])
    if is_image and dims == {1, 2, 3} and mean:  # a linear has the number of elements in its weights
        return _reduced(w, mean_over_space(w, x), {3}, mean)
    first, last = last_run(x.shape, dims)
    outer, size, inner = (
        math.prod(x.shape[cut]) for cut in (slice(first), slice(first, last + 1), slice(last + 1, None))
    )
    if inner == 1 and is_fixed([size]) and size > MOST_IN_A_SUM and x.integer_type is None:
        # XNNPACK computes at least 16 columns of a matmul, of which one counts. 56²×64 takes 1,460 µs as one
        # matmul with ones, and 85 µs first over pixels and then over channels.
        y, rows, columns = x, size // x.shape[last], x.shape[last]
        if rows == 1:
            rows, columns = rows_of_a_sum(size)
            y = pad(w, w.reshape(x, (outer, size)), (0, 0), (0, rows * columns - size), 0)
        y = mean_over_space(w, w.reshape(y, (outer, rows, 1, columns)))
        y = times(w, y, rows * columns / size if mean else rows)
        left = {d for d in dims if d < first} | {first}
        return _reduced(w, w.reshape(y, (*x.shape[:first], columns)), left, mean)
    if inner == 1:
        if x.shape[-1] != size:
            x = w.reshape(x, (*x.shape[:first], size))
        y = full(w, x, _shares(w, size, mean), None)
    else:
        y = mean_over_space(w, w.reshape(x, (outer, size, 1, inner)))
        y = times(w, y, 1 if mean else size)
    rest = {d for d in dims if d < first}
    if not rest:
        return y
    y = w.reshape(y, (*x.shape[:first], inner))
    return _reduced(w, y, rest, mean)


def last_run(shape: Sequence[int], dims: Collection[int]) -> tuple[int, int]:
    """Return the first and the last of the last adjacent dimensions among `dims`; sizes of 1 are skipped."""
    first = last = max(dims)
    while first > 0 and (first - 1 in dims or shape[first - 1] == 1):
        first -= 1
    return first, last


def _shares(w: XnnBuilder, size: int, mean: bool) -> XnnValue:
    """Return the weight by which a linear gives the sum or the mean of that many elements."""
    if not mean and not is_fixed([size]):
        return w.ones((1, size))
    w.require_fixed([size], "a mean over that many elements")
    ones = torch.ones(1, size, dtype=torch.int8)
    return w.constant(Scaled.of(ones, torch.tensor(1 / size if mean else 1.0)))


def mean_over_space(w: XnnBuilder, x: XnnValue) -> XnnValue:
    """Return the means over the rows and columns of NHWC, which both get size 1.

    XNNPACK adds up one pixel after the other, and rounds each sum. Many pixels get means of means.
    """
    n, height, width, channels = x.shape
    if not is_fixed((height, width)) or height * width <= MOST_IN_A_SUM or not x.is_of_float32:
        return w.node("GlobalAvgPooling2d", (n, 1, 1, channels), flags=("KEEP_DIMS",), input_id=x.id)
    size = height * width
    if 1 in (height, width):
        height, width = rows_of_a_sum(size)
        x = w.reshape(x, (n, size, channels))
        x = pad(w, x, (0, 0, 0), (0, height * width - size, 0), 0)
    rows = mean_over_space(w, w.reshape(x, (n * height, 1, width, channels)))
    y = mean_over_space(w, w.reshape(rows, (n, height, 1, channels)))
    return times(w, y, height * width / size)


def _linear_kernel(a: Arguments) -> IntegerKernel:
    return weighted(a.weight, a.bias, ("weight", "bias"), 1, in_4_bits=True)


def _matmul_kernel(a: Arguments) -> IntegerKernel:
    is_weight = isinstance(a.other, Tensor) and a.other.ndim == 2
    return weighted(a.other.t(), None, ("other",), 1, in_4_bits=True) if is_weight else MATRICES


def _reduction_kernel(mean: bool) -> Callable[[Arguments], FoundKernel]:
    """Return the rule of a mean or sum, which has a kernel if `_reduced` writes one node."""

    def rule(a: Arguments) -> FoundKernel:
        shape = shape_of(a.self)
        dims = {d for d in reduced_dims(a.dim, len(shape)) if shape[d] != 1}
        if not dims:
            return MOVE
        first, last = last_run(shape, dims)
        is_space = len(shape) == 4 and dims == {1, 2}
        if not is_space and min(dims) < first:
            return None
        if is_space or math.prod(shape[last + 1 :]) > 1:
            return MEAN if mean else None
        size = math.prod(shape[first:])
        ones = torch.ones(1, size, dtype=torch.int8)
        return weighted(Scaled.of(ones, torch.tensor(1 / size if mean else 1.0)), None, (), 1)

    return rule


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.linear.default: Row(_linear, _check_linear, halves=is_float16, kernel=_linear_kernel),
        aten.matmul.default: Row(_matmul, _check_matmul, halves=is_float16, kernel=_matmul_kernel),
        aten.softmax.int: Row(_softmax, unfit_softmax, kernel="XNNPACK has no int8 Softmax"),
        aten.layer_norm.default: Row(_layer_norm),
        aten.mean.dim: Row(_reduce(mean=True), halves=_is_over_space, kernel=_reduction_kernel(mean=True)),
        aten.sum.dim_IntList: Row(_reduce(mean=False), kernel=_reduction_kernel(mean=False)),
    }
)
