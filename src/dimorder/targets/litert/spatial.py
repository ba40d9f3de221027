"""Write convolutions, pools and resizes as LiteRT operators, NHWC.

LiteRT pads as TensorFlow does: not at all (VALID), or as much as makes the result as large as the input over
the stride (SAME). Other padding is a PAD, which XNNPACK makes part of the convolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.quantized import Scaled
from dimorder.ops.convolution import dilate_kernel
from dimorder.ops.dialect import OPS as dimorder
from dimorder.targets.litert.integer_writer import LiteRtValue
from dimorder.targets.litert.integers import extended
from dimorder.targets.litert.moves import pad
from dimorder.targets.litert.pointwise import check_float, mul
from dimorder.targets.litert.reductions import reduce
from dimorder.targets.litert.writer import LiteRtWriter
from dimorder.targets.rows import unfit_weights
from dimorder.targets.table import Arguments, Row, shape_of
from dimorder.targets.windows import (
    is_depthwise,
    is_whole_picture,
    mean_taps,
    nearest_reads,
    pool_factors,
    spans,
    unfit_dilation,
    unfit_multiple,
    unfit_scale,
    unfit_taps,
)

SAME, VALID = 0, 1

# -- convolution -------------------------------------------------------------------------------------------


def _conv2d(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    weight = a.weight_ohwi
    window = spans(a.dilation, weight.shape[1:3])
    scheme, x = _padded(w, w.dense(a.x), window, a.stride, a.padding, a.shape)
    options = {
        "padding": scheme,
        "strideH": a.stride[0],
        "strideW": a.stride[1],
        "dilationHFactor": a.dilation[0],
        "dilationWFactor": a.dilation[1],
    }
    if is_depthwise(a.groups, weight.shape):
        taps = w.constant(weight.permute(3, 1, 2, 0))
        multiplier = weight.shape[0] // a.groups
        operands = [x, taps, _bias(w, a)]
        return w.op("DEPTHWISE_CONV_2D", operands, a.shape, depthMultiplier=multiplier, **options)
    return w.op("CONV_2D", [x, w.dense(weight), _bias(w, a)], a.shape, **options)


def _bias(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Return the bias, which CONV_2D needs."""
    return w.constant(torch.zeros(a.shape[-1])) if a.bias is None else w.dense(a.bias)


def _padded(
    w: LiteRtWriter,
    x: LiteRtValue,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    shape: Sequence[int],
) -> tuple[int, LiteRtValue]:
    """Return LiteRT's scheme for paddings (before and after each dimension), and the input it applies to."""
    if not any(padding):
        return VALID, x
    if _is_same(w, x.shape[1:-1], window, stride, padding, shape[1:-1]):
        return SAME, x
    return VALID, pad(w, x, (0, *padding[::2], 0), (0, *padding[1::2], 0))


def _is_same(
    w: LiteRtWriter,
    sizes: Sequence[int],
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    out: Any,
    ceil_mode: bool = False,
) -> bool:
    """Return whether LiteRT's own scheme pads as the operator does, at a dynamic size too."""
    for d, (size, extent, step) in enumerate(zip(sizes, window, stride, strict=True)):
        # The scheme pads an even size otherwise than an odd one. So does `ceil_mode` for pairs.
        if step > 1 and size in w.varying and not (ceil_mode and step == extent == 2):
            return False
        needed = max((out[d] - 1) * step + extent - size, 0)
        if out[d] != -(-size // step) or padding[2 * d] != needed // 2:
            return False  # what lies behind the last window does not count
    return True


def _check_conv2d(a: Arguments) -> str | None:
    if reason := unfit_taps(a):
        return reason
    if is_depthwise(a.groups, shape_of(a.weight_ohwi)) and not a.is_constant(a.weight_ohwi):
        return "a depthwise kernel that is computed"
    return check_float(a)


def _conv3d(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    weight = a.weight_odhwi
    window = spans(a.dilation, weight.shape[1:4])
    scheme, x = _padded(w, w.dense(a.x), window, a.stride, a.padding, a.shape)
    options = {"padding": scheme, **dict(zip(("strideD", "strideH", "strideW"), a.stride, strict=True))}
    names = ("dilationDFactor", "dilationHFactor", "dilationWFactor")
    options |= dict(zip(names, a.dilation, strict=True))
    taps = w.constant(weight.permute(1, 2, 3, 4, 0))
    return w.op("CONV_3D", [x, taps, _bias(w, a)], a.shape, **options)


def _check_conv3d(a: Arguments) -> str | None:
    if a.groups != 1:
        return f"a CONV_3D of {a.groups} groups"
    return check_float(a) if a.is_constant(a.weight_odhwi) else "a kernel that is computed"


def _conv_transpose2d(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Write a transposed convolution without padding, of which padding then cuts the edge."""
    x, weight = w.dense(a.x), a.weight_ohwi
    if w.in_integers is not None:
        weight = _integer_taps(weight, a)
    elif any(d != 1 for d in a.dilation):
        weight = dilate_kernel(weight, a.dilation)
    whole = [
        (size - 1) * step + kernel
        for size, step, kernel in zip(x.shape[1:3], a.stride, weight.shape[1:3], strict=True)
    ]

    annotation = w.in_integers

    def write(part: LiteRtValue, taps: Tensor, bias: Tensor | None, result: Sequence[int]) -> LiteRtValue:
        w.in_integers = annotation
        shape = (x.shape[0], *whole, result[-1])
        operands = [w.sizes(shape), w.constant(taps), part]
        operands += [] if bias is None else [w.constant(bias)]
        stride = {"strideH": a.stride[0], "strideW": a.stride[1]}
        return w.op("TRANSPOSE_CONV", operands, shape, x.dtype, padding=VALID, **stride)

    y = w.in_groups(x, weight, a, write)
    before = (0, *(-p for p in a.padding), 0)
    after = (0, *(o - s + p for o, s, p in zip(a.shape[1:3], whole, a.padding, strict=True)), 0)
    if max(after) > 0 and a.bias is not None:
        y = _with_bias_beyond(w, y, a.bias, after)
        after = tuple(min(amount, 0) for amount in after)
    return pad(w, y, before, after)


def _integer_taps(weight: Scaled, a: Arguments) -> Scaled:
    """Return a kernel with taps of 0 instead of a dilation, and for output padding beyond its last taps."""
    down, across = (max(o - p, 0) for o, p in zip(a.output_padding, a.padding, strict=True))

    def extend(taps: Tensor) -> Tensor:
        return torch.nn.functional.pad(dilate_kernel(taps, a.dilation), (0, 0, 0, across, 0, down))

    return extended(weight, extend)


def _with_bias_beyond(w: LiteRtWriter, y: LiteRtValue, bias: Tensor, after: Sequence[int]) -> LiteRtValue:
    """Extend a result by the bias, which is all that output padding beyond the last tap has."""
    for d, more in enumerate(after):
        if more > 0:
            rows = (*y.shape[:d], more, *y.shape[d + 1 :])
            y = w.concat([y, w.constant(bias.expand(rows))], d)
    return y


def _check_transposed(a: Arguments) -> str | None:
    return unfit_weights(a, a.weight_ohwi) or check_float(a)


# -- pooling -----------------------------------------------------------------------------------------------


def _max_pool2d(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Write a maximum over windows.

    Padding repeats the edge, which adds no number to any window. Integers whose least one stands for 0 are
    padded with 0.
    """
    x = w.dense(a.x)
    padding = _pool_padding(w, a)
    if _is_same(w, x.shape[1:3], a.kernel_size, a.stride, padding, a.shape[1:3], a.ceil_mode):
        pass
    elif x.of is not None and x.of.zero_point == x.of.low:
        x, padding = pad(w, x, (0, *padding[::2], 0), (0, *padding[1::2], 0)), (0, 0, 0, 0)
    else:
        for d, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True), start=1):
            edge = w.slice(x, d, 0, 1), w.slice(x, d, x.shape[d] - 1, 1)
            x = w.concat([edge[0]] * before + [x] + [edge[1]] * after, d)
        padding = (0, 0, 0, 0)
    return _pool(w, "MAX_POOL_2D", x, a, SAME if any(padding) else VALID)


def _check_max_pool(a: Arguments) -> str | None:
    return unfit_dilation(a, "MAX_POOL_2D") or check_float(a)


def _avg_pool2d(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Write a mean over windows of the padded input; other divisors are factors.

    With padding SAME, LiteRT itself counts only what is inside.
    """
    x = w.dense(a.x)
    padding = _pool_padding(w, a)
    counts_inside = not (a.count_include_pad and any(a.padding)) and a.divisor_override is None
    is_same = _is_same(w, x.shape[1:3], a.kernel_size, a.stride, padding, a.shape[1:3], a.ceil_mode)
    if any(padding) and counts_inside and is_same and w.in_integers is None:
        return _pool(w, "AVERAGE_POOL_2D", x, a, SAME)
    y = pad(w, x, (0, *padding[::2], 0), (0, *padding[1::2], 0))
    if w.in_integers is not None:
        return _integer_mean(w, y, a)
    y = _pool(w, "AVERAGE_POOL_2D", y, a, VALID)
    factors = pool_factors(a, x.shape, padding)
    if factors is None:
        return y
    first = factors.reshape(-1)[0]
    return mul(w, y, float(first) if bool((factors == first).all()) else w.constant(factors))


def _integer_mean(w: LiteRtWriter, x: LiteRtValue, a: Arguments) -> LiteRtValue:
    """Write a mean of integers: that of a whole picture, or a depthwise convolution with ones.

    LiteRT computes AVERAGE_POOL_2D of int8 outside of XNNPACK's delegate.
    """
    if is_whole_picture(a, x.shape):
        return reduce(w, "MEAN", x, (1, 2))
    channels = x.shape[3]
    operands = [x, w.constant(mean_taps(a, channels)), w.constant(torch.zeros(channels))]
    options = {"padding": VALID, "strideH": a.stride[0], "strideW": a.stride[1], "depthMultiplier": 1}
    options |= {"dilationHFactor": 1, "dilationWFactor": 1}
    return w.op("DEPTHWISE_CONV_2D", operands, a.shape, **options)


def _pool_padding(w: LiteRtWriter, a: Arguments) -> tuple[int, ...]:
    """Return the padding before and after each dimension, the same one for all values of a dynamic size.

    With less than a stride more after the end, `ceil_mode` is what LiteRT does: it leaves out what does not
    fill a window. That does not hold where `ceil_mode` drops a window that would begin in the padding.
    """
    sizes, fit = a.x.shape[1:3], pool_padding(a.x.shape, a)
    if set(sizes).isdisjoint(w.varying):
        return fit
    padding = []
    for size, kernel, step, before, after in zip(
        sizes, a.kernel_size, a.stride, a.padding, fit[1::2], strict=True
    ):
        if not a.ceil_mode:
            after = before
        elif size in w.varying and before <= kernel - step:
            after = before + step - 1
        padding += [before, after]
    return tuple(padding)


def pool_padding(shape: Sequence[int], a: Arguments) -> tuple[int, ...]:
    """Return the padding before and after each dimension with which the last window ends inside."""
    padding = []
    for size, kernel, step, before, out in zip(
        shape[1:3], a.kernel_size, a.stride, a.padding, a.shape[1:3], strict=True
    ):
        padding += [before, max((out - 1) * step + kernel - size - before, 0)]
    return tuple(padding)


def _pool(w: LiteRtWriter, kind: str, x: LiteRtValue, a: Arguments, scheme: int) -> LiteRtValue:
    (height, width), (down, across) = a.kernel_size, a.stride
    options = {"filterHeight": height, "filterWidth": width, "strideH": down, "strideW": across}
    return w.op(kind, [x], a.shape, padding=scheme, **options)


# -- resizes -----------------------------------------------------------------------------------------------


def _bilinear(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    centred = not a.align_corners
    operands = [w.dense(a.x), w.sizes(a.output_size)]
    return w.op("RESIZE_BILINEAR", operands, a.shape, alignCorners=a.align_corners, halfPixelCenters=centred)


def _check_bilinear(a: Arguments) -> str | None:
    return unfit_scale(a, "LiteRT") or check_float(a)


def _nearest(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    """Resize by a whole multiple, as a multiplication with ones over two more dimensions.

    Other sizes are read row by row and column by column, by GATHER.
    """
    x = w.dense(a.x)
    n, height, width, channels = x.shape
    if unfit_multiple(a) is not None:
        for d, indices in enumerate(nearest_reads(a), start=1):
            shape = (*x.shape[:d], len(indices), *x.shape[d + 1 :])
            x = w.op("GATHER", [x, w.sizes(indices)], shape, axis=d, batchDims=0)
        return x
    down, across = a.output_size[0] // height, a.output_size[1] // width
    spread = w.reshape(x, (n * height, 1, width, 1, channels))
    ones = w.constant(torch.ones(1, down, 1, across, 1))
    return w.op("MUL", [spread, ones], (n * height, down, width, across, channels))


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        dimorder.conv2d_nhwc.default: Row(_conv2d, _check_conv2d),
        dimorder.conv3d_ndhwc.default: Row(_conv3d, _check_conv3d),
        dimorder.conv_transpose2d_nhwc.default: Row(_conv_transpose2d, _check_transposed),
        dimorder.max_pool2d_nhwc.default: Row(_max_pool2d, _check_max_pool),
        dimorder.avg_pool2d_nhwc.default: Row(_avg_pool2d, check_float),
        dimorder.upsample_bilinear2d_nhwc.default: Row(_bilinear, _check_bilinear),
        dimorder.upsample_nearest2d_nhwc.default: Row(_nearest, check_float),
    }
)
