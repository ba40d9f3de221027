"""Write convolution, pooling and resizing as XNNPACK nodes in NHWC.

Weights are (O, KH, KW, I/groups), paddings (top, bottom, left, right).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dimorder.graph.dynamic_sizes import is_fixed
from dimorder.ops.dialect import OPS
from dimorder.ops.resize import resized_by
from dimorder.physical.fuse_quantized import MOVE, FoundKernel, IntegerKernel
from dimorder.targets.integer_kernels import (
    MEAN,
    OTHERWISE,
    SELECTION,
    TIMES_ONES,
    weighted,
)
from dimorder.targets.rows import unfit_weights
from dimorder.targets.table import Arguments, Row, shape_of
from dimorder.targets.windows import (
    PART_TAPS,
    is_depthwise,
    is_whole_picture,
    mean_taps,
    pool_factors,
    resizes,
    unfit_multiple,
    unfit_scale,
    unfit_taps,
)
from dimorder.targets.xnnpack.kernels import TAPS
from dimorder.targets.xnnpack.moves import pad, slice_
from dimorder.targets.xnnpack.pointwise import is_float16, pair, times
from dimorder.targets.xnnpack.reductions import full, mean_over_space, optional

if TYPE_CHECKING:
    from dimorder.targets.xnnpack.builder import XnnBuilder
    from dimorder.targets.xnnpack.graph import XnnValue

aten = torch.ops.aten


def _conv2d(w: XnnBuilder, a: Arguments) -> XnnValue:
    kind, weight = "Conv2d", a.weight_ohwi
    if w.quantizes_dynamically and _is_of_pixels(a):
        return full(w, w.dense(a.x), w.constant(weight.flatten(1)), optional(w, a.bias))
    if is_depthwise(a.groups, weight.shape):
        kind, weight = "DepthwiseConv2d", weight.permute(3, 1, 2, 0)
    return _convolve(
        w, kind, w.dense(a.x), weight, a.bias, a.stride, a.padding, a.dilation, a.groups, a.shape
    )


def _is_of_pixels(a: Arguments) -> bool:
    """Return whether a convolution is a linear of each pixel.

    XNNPACK makes a linear of it, and quantises each pixel by a scale of its own.
    """
    taps, steps = shape_of(a.weight_ohwi)[1:3], tuple(a.stride)
    return (*taps, *steps, a.groups) == (1,) * 5 and not any(a.padding)


def _is_summed_in_float32(a: Arguments) -> bool:
    """Return whether XNNPACK's float16 kernel adds up in float32.

    The depthwise kernel does not, and is 3 times as inexact as PyTorch's. A transposed convolution has no
    float16 kernel.
    """
    return is_float16(a) and not is_depthwise(a.groups, shape_of(a.weight_ohwi))


def _conv_transpose2d(w: XnnBuilder, a: Arguments) -> XnnValue:
    (vertical, horizontal), x = a.padding, w.dense(a.x)
    padding = (vertical, vertical, horizontal, horizontal)
    arguments = (x, a.weight_ohwi, a.bias, a.stride, padding, a.dilation, a.groups, a.shape)
    return _convolve(w, "ConvTranspose2d", *arguments, adjustment=a.output_padding)


def _check_conv(a: Arguments) -> str | None:
    if reason := unfit_weights(a, a.weight_ohwi):
        return reason
    output_padding = getattr(a, "output_padding", (0, 0))
    if any(added >= step for added, step in zip(output_padding, a.stride, strict=True) if added):
        return f"an output padding {output_padding} that is not below the stride {a.stride}"
    return None


def _check_conv2d(a: Arguments) -> str | None:
    return unfit_taps(a) or _check_conv(a)


def _convolve(
    w: XnnBuilder,
    kind: str,
    x: XnnValue,
    weight: Tensor,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    shape: Sequence[int],
    adjustment: Sequence[int] = (0, 0),
) -> XnnValue:
    """Write a convolution; a weight by channels is (1, KH, KW, O)."""
    depthwise = kind == "DepthwiseConv2d"
    bias_value = optional(w, bias)
    return w.node(
        kind,
        shape,
        padding_top=padding[0],
        padding_bottom=padding[1],
        padding_left=padding[2],
        padding_right=padding[3],
        kernel_height=weight.shape[1],
        kernel_width=weight.shape[2],
        subsampling_height=stride[0],
        subsampling_width=stride[1],
        dilation_height=dilation[0],
        dilation_width=dilation[1],
        group_input_channels=1 if depthwise else weight.shape[3],
        group_output_channels=shape[3] // groups,
        groups=groups,
        adjustment_height=adjustment[0],
        adjustment_width=adjustment[1],
        input1_id=x.id,
        filter_id=w.constant(weight).id,
        bias_id=None if bias_value is None else bias_value.id,
    )


def _max_pool2d(w: XnnBuilder, a: Arguments) -> XnnValue:
    x = w.dense(a.x)
    if list(a.kernel_size) == [1, 1]:
        return _subsample(w, x, a.stride, a.shape)
    return _pool(w, "MaxPooling2d", x, a, a.padding, a.dilation)


def _avg_pool2d(w: XnnBuilder, a: Arguments) -> XnnValue:
    x, padding, taps = w.dense(a.x), tuple(a.padding), math.prod(a.kernel_size)
    factor = 1.0 if a.divisor_override is None else taps / a.divisor_override
    if taps == 1:
        return times(w, _subsample(w, x, a.stride, a.shape), factor)
    if is_whole_picture(a, x.shape):
        return mean_over_space(w, x)
    # By taps, a mean over fewer elements at the edge takes a constant of the picture's size.
    factored = not is_fixed(x.shape[1:3]) and pool_factors(a, x.shape, _mean_padding(x.shape, a)) is not None
    is_integer = x.integer_type is not None
    if _is_averaged_by_taps(taps, is_integer, x.shape) and (is_integer or not factored):
        return _avg_by_taps(w, a, x)
    # XNNPACK divides by the taps inside the input, so padding that counts is written out as part of the
    # input.
    if a.divisor_override is not None:
        over = _overhang(x.shape, a, padding, (1, 1))
        x = pad(w, x, (0, *padding, 0), (0, padding[0] + over[0], padding[1] + over[1], 0), 0.0)
        padding = (0, 0)
    elif a.count_include_pad:
        x = pad(w, x, (0, *padding, 0), (0, *padding, 0), 0.0)
        padding = (0, 0)
    return times(w, _pool(w, "AvgPooling2d", x, a, padding, (1, 1)), factor)


def _is_averaged_by_taps(taps: int, is_integer: bool, shape: Sequence[int]) -> bool:
    """Return whether a mean pool is a depthwise convolution. XNNPACK has no int8 node for means."""
    return (taps in TAPS or (is_integer and taps <= PART_TAPS)) and shape[3] > 1


def _mean_padding(shape: Sequence[int], a: Arguments) -> tuple[int, int, int, int]:
    """Return the padding with which the windows of a mean end inside."""
    (top, left), (below, beside) = a.padding, _overhang(shape, a, a.padding, (1, 1))
    return top, top + below, left, left + beside


def _avg_by_taps(w: XnnBuilder, a: Arguments, x: XnnValue) -> XnnValue:
    """Write a mean as a depthwise convolution, which keeps NaN.

    On x86 XNNPACK's node for means gives -inf instead.

    56²×64, µs, node and convolution: 3×3, stride 2, 131 and 87; 5×5 311 and 252; 2×2, stride 2, 65 and 110.
    """
    padding = _mean_padding(x.shape, a)
    channels = x.shape[3]
    taps = mean_taps(a, channels)
    y = _convolve(w, "DepthwiseConv2d", x, taps, None, a.stride, padding, (1, 1), channels, a.shape)
    factors = pool_factors(a, x.shape, padding)
    if factors is None:
        return y
    w.require_fixed(x.shape[1:3], "means over windows that reach beyond a picture of that size")
    return pair(w, "Multiply", y, w.constant(factors))


def _pool(
    w: XnnBuilder, kind: str, x: XnnValue, a: Arguments, padding: Sequence[int], dilation: Sequence[int]
) -> XnnValue:
    below, beside = _overhang(x.shape, a, padding, dilation)
    return w.node(
        kind,
        a.shape,
        flags=("KEEP_DIMS",) if kind == "AvgPooling2d" else (),
        padding_top=padding[0],
        padding_bottom=padding[0] + below,
        padding_left=padding[1],
        padding_right=padding[1] + beside,
        pooling_height=a.kernel_size[0],
        pooling_width=a.kernel_size[1],
        stride_height=a.stride[0],
        stride_width=a.stride[1],
        dilation_height=dilation[0],
        dilation_width=dilation[1],
        input_id=x.id,
    )


def _overhang(
    shape: Sequence[int], a: Arguments, padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Return how far the last window of a ceil-mode pool reaches beyond the padded input, down and right."""
    return [
        max(0, (a.shape[d + 1] - 1) * a.stride[d] + dilation[d] * (a.kernel_size[d] - 1) + 1 - padded)
        for d, padded in enumerate(shape[d + 1] + 2 * padding[d] for d in range(2))
    ]


def _subsample(w: XnnBuilder, x: XnnValue, stride: Sequence[int], shape: Sequence[int]) -> XnnValue:
    """Return every stride-th pixel, as the first pixel of each row of `stride` pixels.

    XNNPACK refuses to pool over one pixel. A depthwise convolution of one tap multiplies other pixels by
    zero, which makes NaN of an infinity.
    """
    for d, step in enumerate(stride, start=1):
        sizes, count = list(x.shape), shape[d]
        kept = [*sizes[:d], min(sizes[d], count * step), *sizes[d + 1 :]]
        x = slice_(w, x, [0] * 4, kept)
        after = [count * step - kept[d] if i == d else 0 for i in range(4)]
        rows = (math.prod(sizes[:d]) * count, step, math.prod(sizes[d + 1 :]))
        x = w.reshape(pad(w, x, [0] * 4, after, 0.0), rows)
        x = slice_(w, x, [0] * 3, (rows[0], 1, rows[2]))
        x = w.reshape(x, (*sizes[:d], count, *sizes[d + 1 :]))
    return x


def _bilinear(w: XnnBuilder, a: Arguments) -> XnnValue:
    w.require_fixed(a.output_size, "a bilinear resize to a size")
    height, width = a.output_size
    return w.node(
        "StaticResizeBilinear2D",
        a.shape,
        flags=("ALIGN_CORNERS",) if a.align_corners else (),
        new_height=height,
        new_width=width,
        input_id=w.dense(a.x).id,
    )


def _check_bilinear(a: Arguments) -> str | None:
    if reason := unfit_scale(a, "XNNPACK"):
        return reason
    for old, new, _ in resizes(a):
        if not _reads_alike(old, new, a.align_corners):
            return f"bilinear from {old} to {new}, where XNNPACK rounds onto another pixel than torch"
    return None


@cache
def _reads_alike(old: int, new: int, aligned: bool) -> bool:
    """Return whether XNNPACK weighs pixels as torch does.

    If a rounding makes one read exactly at a pixel and the other beside it, the neighbour's weight is 5e-7.
    That is much if the neighbour is large. The formula is that of XNNPACK's indirection.c, with a fused
    multiply-add as on Arm and without one.
    """
    fewer = 1 if aligned and new > 1 else 0
    scale = torch.tensor((old - fewer) / (new - fewer), dtype=torch.float32)
    offset = torch.zeros(()) if aligned else 0.5 * scale - 0.5
    steps = torch.arange(new, dtype=torch.float32)
    fused = (steps.double() * scale.double() + offset.double()).float()
    wanted = resized_by(aten.upsample_bilinear2d.default, old, new, aligned, None)
    for positions in (steps * scale + offset, fused):
        positions = positions.clamp(0, old - 1)
        low = positions.floor().long()
        beside = ((low + 1).clamp(max=old - 1), positions - low)
        read = torch.zeros(new, old).index_put((steps.long(), low), 1 - beside[1])
        read = read.index_put((steps.long(), beside[0]), beside[1], accumulate=True)
        if not torch.allclose(read, wanted, rtol=1e-3, atol=0):
            return False
    return True


def _nearest(w: XnnBuilder, a: Arguments) -> XnnValue:
    """Resize by a whole multiple, as a multiplication with ones over two more dimensions."""
    x = w.dense(a.x)
    n, height, width, channels = x.shape
    down, across = a.output_size[0] // height, a.output_size[1] // width
    spread = w.reshape(x, (n, height, 1, width, 1, channels))
    return pair(w, "Multiply", spread, w.ones((1, 1, down, 1, across, 1)))


def _convolution_kernel(a: Arguments) -> IntegerKernel:
    nonbatch: int | None = 3
    if not hasattr(a, "output_padding"):  # which transposed convolutions have
        nonbatch = 1 if _is_of_pixels(a) else nonbatch
        nonbatch = None if is_depthwise(a.groups, shape_of(a.weight_ohwi)) else nonbatch
    return weighted(a.weight_ohwi, a.bias, ("weight_ohwi", "bias"), nonbatch)


def _max_pool_kernel(a: Arguments) -> FoundKernel:
    return _subsample_kernel(a) if list(a.kernel_size) == [1, 1] else SELECTION


def _subsample_kernel(a: Arguments) -> FoundKernel:
    """Return that a pool over one pixel is made of moves, unless it pads first."""
    sizes = zip(shape_of(a.x)[1:3], a.shape[1:3], a.stride, strict=True)
    return None if any(size < count * step for size, count, step in sizes) else MOVE


def _avg_pool_kernel(a: Arguments) -> FoundKernel:
    shape, taps = shape_of(a.x), math.prod(a.kernel_size)
    if taps == 1:
        return _subsample_kernel(a) if a.divisor_override in (None, 1) else None
    if is_whole_picture(a, shape):
        return MEAN
    if not _is_averaged_by_taps(taps, True, shape):
        is_one = not any(a.padding) and a.divisor_override is None
        return "XNNPACK has no int8 AvgPooling2d" if is_one else None
    if pool_factors(a, shape, _mean_padding(shape, a)) is not None:
        return None
    return weighted(mean_taps(a, shape[3]).permute(3, 1, 2, 0), None, ())


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        OPS.conv2d_nhwc.default: Row(
            _conv2d, _check_conv2d, halves=_is_summed_in_float32, kernel=_convolution_kernel
        ),
        OPS.conv_transpose2d_nhwc.default: Row(_conv_transpose2d, _check_conv, kernel=_convolution_kernel),
        OPS.max_pool2d_nhwc.default: Row(_max_pool2d, halves=is_float16, kernel=_max_pool_kernel),
        OPS.avg_pool2d_nhwc.default: Row(_avg_pool2d, kernel=_avg_pool_kernel),
        OPS.upsample_bilinear2d_nhwc.default: Row(
            _bilinear, _check_bilinear, halves=is_float16, kernel=OTHERWISE
        ),
        OPS.upsample_nearest2d_nhwc.default: Row(
            _nearest, unfit_multiple, halves=is_float16, kernel=TIMES_ONES
        ),
    }
)
