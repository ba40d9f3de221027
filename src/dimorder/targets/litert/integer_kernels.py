"""List the conditions under which LiteRT's XNNPACK delegate computes each physical operator in integers.

Operators that always move elements need no row. An operator without a row is computed in floats (a float
island). So is an operator whose integers run outside the delegate: floats inside the delegate are faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.quantized import IntegerType
from dimorder.ops.dialect import OPS as dimorder
from dimorder.ops.pointwise import CLAMP_BOUNDS, clamp_bounds
from dimorder.physical.fuse_quantized import MOVE, FoundKernel, IntegerKernel, KernelRule
from dimorder.targets.integer_kernels import (
    CHOICE,
    MATRICES,
    MEAN,
    OTHERWISE,
    PLUS,
    SELECTION,
    TIMES,
    TIMES_ONES,
    integers_of,
    unfit_4_bits,
    weighted,
)
from dimorder.targets.litert.integers import activation, group_scales
from dimorder.targets.litert.spatial import pool_padding
from dimorder.targets.rows import by_overload, constant_matrix, reduced_dims
from dimorder.targets.table import Arguments, shape_of
from dimorder.targets.windows import PART_TAPS, is_whole_picture, mean_taps, pool_factors, unfit_multiple

aten = torch.ops.aten


def _outside(kind: str) -> str:
    return f"LiteRT computes {kind} of int8 outside of XNNPACK's delegate"


# -- rules -------------------------------------------------------------------------------------------------


def _convolution(a: Arguments) -> FoundKernel:
    return weighted(a.weight_ohwi, a.bias, ("weight_ohwi", "bias"))


def _linear(a: Arguments) -> FoundKernel:
    if isinstance(a.weight, Tensor):
        kernel = weighted(a.weight, a.bias, ("weight", "bias"), nonbatch=1, in_4_bits=True)
        unmet = _unfit_group_scales(a.weight)
        return kernel if unmet is None else replace(kernel, unmet_dynamic=lambda tokens: unmet)
    return MATRICES if a.bias is None else "a linear with a weight that is computed, and a bias"


def _unfit_group_scales(weight: Tensor) -> str | None:
    """Return why a `.tflite` cannot store the scales of a weight's groups, or None."""
    integers = integers_of(weight)
    if unfit_4_bits(integers) is not None:
        return None
    assert integers is not None
    scales = group_scales(integers)
    if scales.shape[1] == 1 or bool((scales.half().float() == scales).all()):
        return None
    return "scales of groups that float16 has not, in which a .tflite stores them"


def _matmul(a: Arguments) -> FoundKernel:
    matrix = constant_matrix(a.other)
    return MATRICES if matrix is None else weighted(matrix.t(), None, ("other",))


def _alpha(kernel: IntegerKernel) -> KernelRule:
    return lambda a: kernel if getattr(a, "alpha", 1) == 1 else None


def _clamp(target: Any) -> KernelRule:
    """Return the rule of a clamp, which a product with ones computes if an activation has the bounds."""

    def rule(a: Arguments) -> FoundKernel:
        low, high = map(float, clamp_bounds(target, vars(a)))

        def unmet(operands: Sequence[IntegerType], result: IntegerType) -> str | None:
            if activation(low, high, result) is None:
                return f"a clamp to [{low:g}, {high:g}], which no activation of LiteRT has"
            return TIMES_ONES.unmet(operands, result)

        return IntegerKernel(unmet)

    return rule


def _of_type(scale: float, zero_point: int) -> IntegerKernel:
    """Return the kernel of a function whose result all of LiteRT's kernels have in one type."""

    def unmet(operands: Sequence[IntegerType], result: IntegerType) -> str | None:
        if any(of.dtype != torch.int8 for of in (*operands, result)):
            return "unsigned integers, which only the boundary has"
        if (result.scale, result.zero_point) != (scale, zero_point):
            return f"a result that is not of scale 1/{1 / scale:g} and zero point {zero_point}"
        return None

    return IntegerKernel(unmet)


def _reduction(kernel: IntegerKernel) -> Callable[[Arguments], FoundKernel]:
    """Return the rule of a reduction, which moves nothing where all that it reduces has size 1."""

    return lambda a: kernel if _count(a) > 1 else MOVE


def _count(a: Arguments) -> int:
    """Return how many elements each result of a reduction is made of."""
    shape = shape_of(a.self)
    return math.prod(shape[d] for d in reduced_dims(a.dim, len(shape)))


def _sum(a: Arguments) -> FoundKernel:
    """Return the kernel of a sum, which is the mean of as many times its operand's numbers."""
    count = _count(a)

    def unmet(operands: Sequence[IntegerType], result: IntegerType) -> str | None:
        return MEAN.unmet([replace(of, scale=of.scale * count) for of in operands], result)

    return replace(MEAN, unmet=unmet) if count > 1 else MOVE


def _avg_pool(a: Arguments) -> FoundKernel:
    """Return the kernel of a mean: MEAN of a whole picture, else a depthwise convolution with ones."""
    shape, taps = shape_of(a.x), math.prod(a.kernel_size)
    if is_whole_picture(a, shape):
        return MEAN
    if taps > PART_TAPS:
        return f"means of {taps} taps, where XNNPACK is fast up to {PART_TAPS}"
    if pool_factors(a, shape, pool_padding(shape, a)) is not None:
        return "means whose windows count other elements than those that they have"
    return weighted(mean_taps(a, shape[3]).permute(3, 1, 2, 0), None, ())


def _pad(a: Arguments) -> FoundKernel:
    """Return the kernel of a pad, which adds what stands for a number; 0 is one in every type."""
    fills = any(side > 0 for side in a.pad) and (getattr(a, "value", None) or 0) != 0
    return SELECTION if fills else MOVE


KERNELS: Mapping[Any, KernelRule] = MappingProxyType(
    {
        dimorder.conv2d_nhwc.default: _convolution,
        dimorder.conv_transpose2d_nhwc.default: _convolution,
        dimorder.conv3d_ndhwc.default: "LiteRT has no int8 CONV_3D",
        dimorder.max_pool2d_nhwc.default: SELECTION,
        dimorder.avg_pool2d_nhwc.default: _avg_pool,
        dimorder.upsample_nearest2d_nhwc.default: lambda a: MOVE if unfit_multiple(a) else TIMES_ONES,
        dimorder.upsample_bilinear2d_nhwc.default: OTHERWISE,
        dimorder.prelu_last.default: OTHERWISE,
        aten.linear.default: _linear,
        aten.matmul.default: _matmul,
        **by_overload(dict.fromkeys((aten.add, aten.sub, aten.rsub), _alpha(PLUS))),
        **by_overload({aten.mul: TIMES, aten.div: OTHERWISE}),
        aten.leaky_relu.default: OTHERWISE,
        aten.sum.dim_IntList: _sum,
        aten.mean.dim: _reduction(MEAN),
        aten.amax.default: _reduction(CHOICE),
        aten.amin.default: _outside("REDUCE_MIN"),
        aten.sigmoid.default: _of_type(1 / 256, -128),
        aten.tanh.default: _of_type(1 / 128, 0),
        aten.constant_pad_nd.default: _pad,
        aten.maximum.default: _outside("MAXIMUM"),
        aten.minimum.default: _outside("MINIMUM"),
        aten.softmax.int: _outside("SOFTMAX"),
        aten.gelu.default: _outside("GELU"),
        aten.hardswish.default: _outside("HARD_SWISH"),
        aten.exp.default: _outside("EXP"),
        aten.abs.default: _outside("ABS"),
        **{target: _clamp(target) for target in CLAMP_BOUNDS},
    }
)
