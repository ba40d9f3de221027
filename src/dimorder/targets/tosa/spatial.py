"""Write convolution, pooling and resizing as TOSA operators, NHWC or NDHWC.

TOSA wants output sizes to divide exactly. So padding that no window reaches is omitted, and input that no
window reaches is sliced off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dimorder.ops.convolution import read_taps
from dimorder.ops.dialect import OPS as dimorder
from dimorder.targets.table import Arguments, Row, is_of_one_type, whole
from dimorder.targets.tosa.calls import accumulator_type, size, sum_type
from dimorder.targets.tosa.indices import take
from dimorder.targets.tosa.moves import concat, pad, slice_
from dimorder.targets.tosa.pointwise import check_float, mul
from dimorder.targets.tosa.writer import WIDEST, TosaValue, TosaWriter

aten = torch.ops.aten

MAX_NUMERATOR = 2048  # RESIZE, spec 1.0: scale_y_n <= 1 << 11
MAX_SHRINK = 16  # scale_y_d < 16 * scale_y_n
MAX_GROW = 256  # MAX_SCALE of level 8K


# -- convolution -------------------------------------------------------------------------------------------


def convolution(w: TosaWriter, a: Arguments) -> TosaValue:
    """Write a convolution with a weight (O, *kernel, I / groups) and padding before and after each dimension.

    For int8 it returns the sums in int32. `zero_points`, of x and of the weight, default to 0.
    """
    flat, x = len(a.stride) == 2, w.dense(a.x)
    weight, before, dilation = _read_taps(_weight(a), x.shape, a)
    window = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[1:-1], strict=True)]
    padding, x = exact_padding(w, x, window, a.stride, before, a.shape)
    options = {"pad": padding, "stride": list(a.stride), "dilation": dilation}
    if flat and 1 < a.groups == x.shape[-1]:  # depthwise: weight (H, W, C, multiplier)
        by_channel = weight.reshape(a.groups, -1, *weight.shape[1:3]).permute(2, 3, 0, 1)
        return conv(w, "DEPTHWISE_CONV2D", x, by_channel, a.bias, a.shape, options, _zero_points(a))
    if flat and a.groups == 1 and set(dilation) == {1} and _are_patches(window, a.stride, padding, x.shape):
        return _patches(w, x, weight, a)
    return _in_groups(w, "CONV2D" if flat else "CONV3D", x, weight, a, options)


def convolved(
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


def _read_taps(weight: Tensor, sizes: Sequence[int], a: Arguments) -> tuple[Tensor, list[int], list[int]]:
    """Remove the first and last taps that read only padding at every window position.

    Returns the weight, the padding before each dimension, and the dilation. A dilated window may reach far
    beyond an image.
    """
    padding, dilation = list(a.padding[::2]), list(a.dilation)
    read = read_taps(sizes[1:-1], a.shape[1:-1], weight.shape[1:-1], a.stride, padding, dilation)
    for d, taps in enumerate(read):
        low = min(taps.start, padding[d] // dilation[d])
        weight = weight.narrow(d + 1, low, taps.stop - low)
        padding[d] -= low * dilation[d]
        dilation[d] = dilation[d] if weight.shape[d + 1] > 1 else 1
    return weight, [p for p in padding for _ in range(2)], dilation


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
    once = {"pad": [0] * 4, "stride": [1, 1], "dilation": [1, 1]}
    shape = (n * rows, 1, columns, outputs)
    y = conv(w, "CONV2D", image, taps, a.bias, shape, once, _zero_points(a))
    return w.reshape(y, a.shape)


def _weight(a: Arguments) -> Any:
    return a.weight_ohwi if hasattr(a, "weight_ohwi") else a.weight_odhwi


def conv_transpose2d(w: TosaWriter, a: Arguments) -> TosaValue:
    """Write a transposed convolution.

    Padding crops the output, and a dilated kernel gets zeros between its taps.
    """
    weight = _dilated(a.weight_ohwi, a.dilation)
    out_pad = [side for p, more in zip(a.padding, a.output_padding, strict=True) for side in (-p, more - p)]
    options = {"out_pad": out_pad, "stride": list(a.stride)}
    return _in_groups(w, "TRANSPOSE_CONV2D", w.dense(a.x), weight, a, options)


def _dilated(weight: Tensor, dilation: Sequence[int]) -> Tensor:
    o, height, width, i = weight.shape
    down, across = dilation
    stuffed = weight.new_zeros(o, (height - 1) * down + 1, (width - 1) * across + 1, i)
    stuffed[:, ::down, ::across] = weight
    return stuffed


def _in_groups(
    w: TosaWriter, kind: str, x: TosaValue, weight: Tensor, a: Arguments, options: Mapping[str, Any]
) -> TosaValue:
    """Write one convolution per group of channels, and a CONCAT."""
    if a.groups == 1:
        return conv(w, kind, x, weight, a.bias, a.shape, options, _zero_points(a))
    axis, inputs, outputs = len(a.shape) - 1, x.shape[-1] // a.groups, a.shape[-1] // a.groups
    parts = []
    for g in range(a.groups):
        rows = slice(g * outputs, (g + 1) * outputs)
        bias = None if a.bias is None else a.bias[rows]
        part = slice_(w, x, axis, g * inputs, inputs)
        shape = (*a.shape[:-1], outputs)
        parts.append(conv(w, kind, part, weight[rows], bias, shape, options, _zero_points(a)))
    return concat(w, parts, axis)


def conv(
    w: TosaWriter,
    kind: str,
    x: TosaValue,
    weight: Tensor,
    bias: Tensor | None,
    shape: Sequence[int],
    options: Mapping[str, Any],
    zero_points: Sequence[int],
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
        x = w.op("SLICE", [x, w.shape([0] * len(reached)), w.shape(reached)], reached)
    return exact, x


def check_convolution(a: Arguments) -> str | None:
    constant = a.is_constant(_weight(a)) and a.is_constant(a.bias)
    return check_float(a) if constant else "a weight or a bias that is not constant"


def check_transposed(a: Arguments) -> str | None:
    kernel = [d * (k - 1) + 1 for d, k in zip(a.dilation, size(a.weight_ohwi)[1:3], strict=True)]
    if any(p >= k for p, k in zip(a.padding, kernel, strict=True)):
        return f"padding {a.padding} that is not below the kernel {kernel}"
    return check_convolution(a)


# -- pooling -----------------------------------------------------------------------------------------------


def _max_pool2d(w: TosaWriter, a: Arguments) -> TosaValue:
    return max_pool(w, w.dense(a.x), a.kernel_size, a.stride, a.padding, a.shape)


def max_pool(
    w: TosaWriter,
    x: TosaValue,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    shape: Sequence[int],
) -> TosaValue:
    pads, x = exact_padding(w, x, kernel, stride, [p for p in padding for _ in range(2)], shape)
    return w.op("MAX_POOL2D", [x], shape, kernel=list(kernel), stride=list(stride), pad=pads)


def check_max_pool(a: Arguments) -> str | None:
    pair = a.dilation if isinstance(a.dilation, (list, tuple)) else [a.dilation]
    return check_float(a) if set(pair) <= {1} else f"dilation {a.dilation}; TOSA's MAX_POOL2D has none"


def _avg_pool2d(w: TosaWriter, a: Arguments) -> TosaValue:
    return _avg_pool(
        w, w.dense(a.x), a.kernel_size, a.stride, a.padding, a.shape, a.count_include_pad, a.divisor_override
    )


def _avg_pool(
    w: TosaWriter,
    x: TosaValue,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    shape: Sequence[int],
    count_include_pad: bool,
    divisor: int | None = None,
) -> TosaValue:
    """Write a mean over windows; padding that counts is written out as part of the input.

    AVG_POOL2D divides by the taps inside the input.
    """
    sides, taps = [p for p in padding for _ in range(2)], math.prod(kernel)
    if divisor is not None:  # elements that ceil mode adds count too
        sides, x = exact_padding(w, x, kernel, stride, sides, shape)
    if count_include_pad or divisor is not None:
        x = pad(w, x, (0, *sides[::2], 0), (0, *sides[1::2], 0))
        sides = [0] * len(sides)
    sides, x = exact_padding(w, x, kernel, stride, sides, shape)
    zero = w.number(0, x.dtype)
    y = w.op(
        "AVG_POOL2D",
        [x, zero, zero],
        shape,
        kernel=list(kernel),
        stride=list(stride),
        pad=sides,
        acc_type="FP32",
    )
    return y if divisor is None else mul(w, y, taps / divisor)


# -- resizing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """How RESIZE reads one dimension: element `o` of the `new` at (o · d + offset) / n of the `old`."""

    old: int
    new: int
    n: int
    d: int
    offset: int

    @property
    def border(self) -> int:
        return (self.new - 1) * self.d - (self.old - 1) * self.n + self.offset

    @property
    def refused(self) -> str | None:
        if self.n <= MAX_NUMERATOR and self.n <= MAX_GROW * self.d and self.d < MAX_SHRINK * self.n:
            return None
        limits = f"a numerator up to {MAX_NUMERATOR} and a factor between 1/{MAX_SHRINK} and {MAX_GROW}"
        return f"{self.old} resized to {self.new} as {self.n}/{self.d}, where RESIZE has {limits}"


def _axes(a: Arguments) -> Iterator[tuple[int, int, Fraction]]:
    """Return for height and width: old size, new size, and the factor in the call, or else their ratio."""
    for old, new, factor in zip(size(a.x)[1:3], a.shape[1:3], (a.scales_h, a.scales_w), strict=True):
        ratio = Fraction(new, old) if factor is None else Fraction(factor).limit_denominator(MAX_NUMERATOR)
        yield old, new, ratio


def bilinear(w: TosaWriter, a: Arguments) -> TosaValue:
    x = w.dense(a.x)
    for d, axis in enumerate(bilinear_axes(a), start=1):
        x = slice_(w, x, d, 0, axis.old)
    return _resize(w, "BILINEAR", x, bilinear_axes(a), a.shape)


def bilinear_axes(a: Arguments) -> list[_Axis]:
    """Return how a bilinear resize reads height and width.

    Half-pixel centres read at (o + 1/2) / ratio - 1/2. Aligned corners read from the first to the last
    element.
    """
    axes = []
    for old, new, ratio in _axes(a):
        n, d = ratio.numerator, ratio.denominator
        axis = _Axis(old, new, 2 * n, 2 * d, d - n)
        if a.align_corners and 1 in (old, new):
            axis = _Axis(1, new, 2 * new, 2, 1 - new)
        elif a.align_corners:
            steps = Fraction(new - 1, old - 1)
            axis = _Axis(old, new, steps.numerator, steps.denominator, 0)
        axes.append(axis)
    return axes


def check_bilinear(a: Arguments) -> str | None:
    return next((axis.refused for axis in bilinear_axes(a) if axis.refused), None) or check_float(a)


def nearest(w: TosaWriter, a: Arguments) -> TosaValue:
    """Write a nearest resize with an offset of half an element.

    torch takes floor(o / ratio), and RESIZE rounds.

    If torch's float32 multiplication lands on the other side of a whole number, elements are gathered one by
    one.
    """
    x, axes = w.dense(a.x), []
    exact = []
    for old, new, ratio in _axes(a):
        # A whole factor uses half-pixel centres, which read the same elements. Ethos-U55 has nothing else.
        half = ratio.denominator == 1
        axes.append(_Axis(old, new, 2 * ratio.numerator, 2 * ratio.denominator, half - ratio.numerator))
        exact.append([min(int(o / ratio), old - 1) for o in range(new)])
    reads = [
        _nearest_reads(*axis)
        for axis in zip(size(a.x)[1:3], a.shape[1:3], (a.scales_h, a.scales_w), strict=True)
    ]
    if reads == exact and not any(axis.refused for axis in axes):
        return _resize(w, "NEAREST", x, axes, a.shape)
    for d, indices in enumerate(reads, start=1):
        x = take(w, x, d, torch.tensor(indices))
    return x


def _nearest_reads(old: int, new: int, factor: float | None) -> list[int]:
    """Return the elements that torch's kernel reads.

    It computes in float32 (aten/src/ATen/native/UpSample.h).
    """
    step = torch.tensor(old / new if factor is None else 1 / factor, dtype=torch.float32)
    reads: list[int] = (torch.arange(new) * step).floor().long().clamp(max=old - 1).tolist()
    return reads


def _resize(w: TosaWriter, mode: str, x: TosaValue, axes: Sequence[_Axis], shape: Sequence[int]) -> TosaValue:
    """Write a RESIZE.

    For int8 in BILINEAR it returns sums in int32, larger by the product of both numerators.
    """
    scale = [number for axis in axes for number in (axis.n, axis.d)]
    offset, border = [axis.offset for axis in axes], [axis.border for axis in axes]
    dtype = sum_type(x.dtype) if mode == "BILINEAR" else x.dtype
    return w.op("RESIZE", [x, w.shape(scale), w.shape(offset), w.shape(border)], shape, dtype, mode=mode)


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        dimorder.conv2d_nhwc.default: Row(convolution, check_convolution, halves=is_of_one_type),
        dimorder.conv3d_ndhwc.default: Row(convolution, check_convolution, halves=is_of_one_type),
        dimorder.conv_transpose2d_nhwc.default: Row(
            conv_transpose2d, check_transposed, halves=is_of_one_type
        ),
        dimorder.max_pool2d_nhwc.default: Row(_max_pool2d, check_max_pool, halves=is_of_one_type),
        dimorder.avg_pool2d_nhwc.default: Row(
            _avg_pool2d, check_float, halves=lambda a: a.divisor_override is None
        ),
        dimorder.upsample_bilinear2d_nhwc.default: Row(bilinear, check_bilinear),
        dimorder.upsample_nearest2d_nhwc.default: Row(nearest, check_float, halves=is_of_one_type),
    }
)
