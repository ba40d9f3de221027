"""Write convolution and pooling as TOSA operators, NHWC or NDHWC.

TOSA wants output sizes to divide exactly. So padding that no window reaches is omitted, and input that no
window reaches is sliced off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dimorder.ops.convolution import dilate_kernel
from dimorder.ops.dialect import OPS as dimorder
from dimorder.targets.rows import unfit_weights
from dimorder.targets.table import Arguments, Row, is_of_one_type, shape_of, whole
from dimorder.targets.tosa.dtypes import FLOATS, TORCH, WIDEST, accumulator_type, sum_type
from dimorder.targets.tosa.moves import pad
from dimorder.targets.tosa.pointwise import check_float, mul
from dimorder.targets.tosa.writer import TosaValue, TosaWriter
from dimorder.targets.windows import spans, unfit_dilation

# A window of one element, without padding.
EACH_PIXEL: Mapping[str, Any] = MappingProxyType({"pad": [0] * 4, "stride": [1, 1], "dilation": [1, 1]})

# -- convolution -------------------------------------------------------------------------------------------


def convolution(w: TosaWriter, a: Arguments) -> TosaValue:
    """Write a convolution with a weight (O, *kernel, I / groups) and padding before and after each dimension.

    For int8 it returns the sums in int32. `zero_points`, of x and of the weight, default to 0.
    """
    flat, x = len(a.stride) == 2, w.dense(a.x)
    weight = _weight(a)
    dilation = [d if k > 1 else 1 for d, k in zip(a.dilation, weight.shape[1:-1], strict=True)]
    window = spans(dilation, weight.shape[1:-1])
    padding, x = exact_padding(w, x, window, a.stride, a.padding, a.shape)
    strides = [step if count > 1 else 1 for step, count in zip(a.stride, a.shape[1:-1], strict=True)]
    is_long = flat and max(strides) > w.max_stride
    if is_long:
        sides = [(0, 0), (padding[0], padding[1]), (padding[2], padding[3]), (0, 0)]
        fill = torch.tensor(_zero_points(a)[0], dtype=TORCH[x.dtype])
        x, padding = (
            w.beside_constants(x, sides, fill),
            [0] * len(padding),
        )  # Vela makes a PAD part of its reader
    options = {"pad": padding, "stride": strides, "dilation": dilation}
    write = partial(conv, w, options=options, zero_points=_zero_points(a))
    if flat and 1 < a.groups == x.shape[-1]:
        if is_long:
            return write("CONV2D", x, _of_all_channels(a.groups, weight, _zero_points(a)[1]), a.bias, a.shape)
        by_channel = weight.reshape(a.groups, -1, *weight.shape[1:3]).permute(2, 3, 0, 1)
        return write("DEPTHWISE_CONV2D", x, by_channel, a.bias, a.shape)  # weight (H, W, C, multiplier)
    if flat and a.groups == 1 and set(dilation) == {1} and _are_patches(window, a.stride, padding, x.shape):
        return _patches(w, x, weight, a)
    return w.in_groups(x, weight, a, partial(write, "CONV2D" if flat else "CONV3D"))


def convolve(
    w: TosaWriter,
    x: TosaValue,
    weight: Tensor,
    shape: Sequence[int],
    *,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    groups: int = 1,
    zero_point: int = 0,
) -> TosaValue:
    """Write a `convolution` of integers (N, H, W, C) that is no call of the program.

    Its result has `shape`.
    """
    call = SimpleNamespace(
        x=whole(x),
        weight_ohwi=weight,
        bias=bias,
        stride=stride,
        padding=padding,
        dilation=[1, 1],
        groups=groups,
        shape=tuple(shape),
        zero_points=(zero_point, 0),
    )
    return convolution(w, call)


def _are_patches(
    window: Sequence[int], stride: Sequence[int], padding: Sequence[int], x: Sequence[int]
) -> bool:
    """Return whether windows tile the whole image, and are larger than an NPU's strides in hardware."""
    fits = all(size % side == 0 for size, side in zip(x[1:3], window, strict=True))
    return fits and list(window) == list(stride) and max(window) > 3 and not any(padding)


def _patches(w: TosaWriter, x: TosaValue, weight: Tensor, a: Arguments) -> TosaValue:
    """Write a convolution over patches as one with a stride of 1.

    Each row of windows becomes an image, and the adjacent elements in a window become its channels. The
    memory is the same.
    """
    (outputs, height, width, inputs), (n, rows, columns, _) = weight.shape, a.shape
    image = w.reshape(x, (n * rows, height, columns, width * inputs))
    taps = weight.reshape(outputs, height, 1, width * inputs)
    shape = (n * rows, 1, columns, outputs)
    y = conv(w, "CONV2D", image, taps, a.bias, shape, zero_points=_zero_points(a))
    return w.reshape(y, a.shape)


def _of_all_channels(groups: int, weight: Tensor, zero: int) -> Tensor:
    """Return a depthwise weight (O, H, W, 1) as (O, H, W, C), in which other channels count as 0."""
    outputs = weight.shape[0]
    whole = torch.full((*weight.shape[:3], groups), zero, dtype=weight.dtype)
    each = torch.arange(outputs)
    whole[each, :, :, each // (outputs // groups)] = weight[..., 0]
    return whole


def _weight(a: Arguments) -> Any:
    return a.weight_ohwi if hasattr(a, "weight_ohwi") else a.weight_odhwi


def conv_transpose2d(w: TosaWriter, a: Arguments) -> TosaValue:
    """Write a transposed convolution.

    Padding crops the output, and a dilated kernel gets zeros between its taps.
    """
    weight = dilate_kernel(a.weight_ohwi, a.dilation)
    out_pad = [side for p, more in zip(a.padding, a.output_padding, strict=True) for side in (-p, more - p)]
    options = {"out_pad": out_pad, "stride": list(a.stride)}
    write = partial(conv, w, "TRANSPOSE_CONV2D", options=options, zero_points=_zero_points(a))
    return w.in_groups(w.dense(a.x), weight, a, write)


def conv(
    w: TosaWriter,
    kind: str,
    x: TosaValue,
    weight: Tensor,
    bias: Tensor | None,
    shape: Sequence[int],
    options: Mapping[str, Any] = EACH_PIXEL,
    zero_points: Sequence[int] = (0, 0),
) -> TosaValue:
    """Write one operator, with a weight in the order of `kind`. A missing bias becomes zeros."""
    sums = sum_type(x.dtype)
    bias = torch.zeros(shape[-1]) if bias is None else bias
    taps = w.constant(weight)
    zeros = [w.number(zero, of.dtype) for zero, of in zip(zero_points, (x, taps), strict=True)]
    operands = [x, taps, w.constant(bias.to(WIDEST.get(sums, torch.int64)), sums), *zeros]
    accumulator = accumulator_type(x.dtype)
    return w.op(kind, operands, shape, sums, local_bound=False, acc_type=accumulator, **options)


def _zero_points(a: Arguments) -> Sequence[int]:
    return getattr(a, "zero_points", (0, 0))


def exact_padding(
    w: TosaWriter,
    x: TosaValue,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    shape: Sequence[int],
) -> tuple[list[int], TosaValue]:
    """Return the padding with which windows of `x` (N, *space, C) end at its end, and the reached input.

    The input loses the elements that no window reaches. Paddings are before and after each dimension.
    """
    exact, reached = [], list(x.shape)
    for d, (extent, step) in enumerate(zip(window, stride, strict=True)):
        before = padding[2 * d]
        after = (shape[d + 1] - 1) * step + extent - x.shape[d + 1] - before
        reached[d + 1] += min(after, 0)
        exact += [before, max(after, 0)]
    if reached != list(x.shape):
        x = w.op("SLICE", [x, w.sizes([0] * len(reached)), w.sizes(reached)], reached)
    return exact, x


def check_convolution(a: Arguments) -> str | None:
    return unfit_weights(a, _weight(a)) or check_float(a)


def check_transposed(a: Arguments) -> str | None:
    kernel = spans(a.dilation, shape_of(a.weight_ohwi)[1:3])
    if any(p >= k for p, k in zip(a.padding, kernel, strict=True)):
        return f"padding {a.padding} that is not below the kernel {kernel}"
    return check_convolution(a)


# -- pooling -----------------------------------------------------------------------------------------------


def _max_pool2d(w: TosaWriter, a: Arguments) -> TosaValue:
    pads, x = exact_padding(w, w.dense(a.x), a.kernel_size, a.stride, both_sides(a.padding), a.shape)
    return w.op("MAX_POOL2D", [x], a.shape, kernel=list(a.kernel_size), stride=list(a.stride), pad=pads)


def _check_max_pool(a: Arguments) -> str | None:
    return unfit_dilation(a, "TOSA's MAX_POOL2D") or check_float(a)


def _avg_pool2d(w: TosaWriter, a: Arguments) -> TosaValue:
    """Write a mean over windows; padding that counts is written out as part of the input.

    AVG_POOL2D divides by the taps inside the input.
    """
    x, window, sides = w.dense(a.x), (a.kernel_size, a.stride), both_sides(a.padding)
    if a.divisor_override is not None:  # elements that ceil mode adds count too
        sides, x = exact_padding(w, x, *window, sides, a.shape)
    if a.count_include_pad or a.divisor_override is not None:
        x = pad(w, x, (0, *sides[::2], 0), (0, *sides[1::2], 0))
        sides = [0] * len(sides)
    sides, x = exact_padding(w, x, *window, sides, a.shape)
    y = avg_pool(w, x, *window, sides, a.shape)
    return y if a.divisor_override is None else mul(w, y, math.prod(a.kernel_size) / a.divisor_override)


def avg_pool(
    w: TosaWriter,
    x: TosaValue,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    shape: Sequence[int],
    zero_points: Sequence[int] = (0, 0),
) -> TosaValue:
    """Write one AVG_POOL2D."""
    zeros = [w.number(zero, x.dtype) for zero in zero_points]
    sizes: dict[str, Any] = {"kernel": list(kernel), "stride": list(stride), "pad": list(padding)}
    accumulator = "FP32" if x.dtype in FLOATS else "INT32"
    return w.op("AVG_POOL2D", [x, *zeros], shape, acc_type=accumulator, **sizes)


def both_sides(padding: Sequence[int]) -> list[int]:
    """Return the padding before and after each dimension, from one that is the same on both sides."""
    return [amount for amount in padding for _ in range(2)]


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        dimorder.conv2d_nhwc.default: Row(convolution, check_convolution, halves=is_of_one_type),
        dimorder.conv3d_ndhwc.default: Row(convolution, check_convolution, halves=is_of_one_type),
        dimorder.conv_transpose2d_nhwc.default: Row(
            conv_transpose2d, check_transposed, halves=is_of_one_type
        ),
        dimorder.max_pool2d_nhwc.default: Row(_max_pool2d, _check_max_pool, halves=is_of_one_type),
        dimorder.avg_pool2d_nhwc.default: Row(
            _avg_pool2d, check_float, halves=lambda a: a.divisor_override is None
        ),
    }
)
