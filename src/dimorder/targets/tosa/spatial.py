"""Convolution, pooling and resizing as TOSA operators, NHWC or NDHWC.

TOSA wants output sizes to divide exactly: padding that no window reaches is not asked for, and input that no window
reaches is sliced off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.targets.tosa.calls import Arguments, Row, size
from dimorder.targets.tosa.moves import concat, pad, slice_, take
from dimorder.targets.tosa.pointwise import mul
from dimorder.targets.tosa.writer import GraphWriter, Value

aten = torch.ops.aten
dimorder = torch.ops.dimorder

MAX_SCALE_NUMERATOR = 2048  # RESIZE, spec 1.0: scale_y_n <= 1 << 11
MAX_SHRINK = 16  # scale_y_d < 16 * scale_y_n
MAX_GROW = 256  # MAX_SCALE of level 8K


# -- convolution ---------------------------------------------------------------------------------------------------


def _convolution(w: GraphWriter, a: Arguments) -> Value:
    """`weight` is (O, *kernel, I / groups), `padding` before and after each dimension."""
    x, weight = w.dense(a.x), getattr(a, "weight_ohwi", None)
    weight = a.weight_odhwi if weight is None else weight
    dims = weight.dim() - 2
    padding, x = _exact(w, x, [d * (k - 1) + 1 for d, k in zip(a.dilation, weight.shape[1:], strict=False)], a.stride, a.padding, a.shape)
    options = {"pad": padding, "stride": list(a.stride), "dilation": list(a.dilation)}
    if dims == 2 and a.groups > 1 and a.groups == x.shape[-1]:  # depthwise: weight (H, W, C, multiplier)
        by_channel = weight.reshape(a.groups, -1, *weight.shape[1:3]).permute(2, 3, 0, 1)
        return _conv(w, "DEPTHWISE_CONV2D", x, by_channel, a.bias, a.shape, options)
    kind = "CONV2D" if dims == 2 else "CONV3D"
    return _in_groups(w, x, weight, a, lambda *part: _conv(w, kind, *part, options))


def _conv_transpose2d(w: GraphWriter, a: Arguments) -> Value:
    """Padding crops the output; a dilated kernel is spelt out with zeros between its taps."""
    weight = _dilated(a.weight_ohwi, a.dilation)
    out_pad = [side for p, more in zip(a.padding, a.output_padding, strict=True) for side in (-p, more - p)]
    options = {"out_pad": out_pad, "stride": list(a.stride)}
    return _in_groups(
        w, w.dense(a.x), weight, a, lambda *part: _conv(w, "TRANSPOSE_CONV2D", *part, options)
    )


def _dilated(weight: Tensor, dilation: Sequence[int]) -> Tensor:
    o, height, width, i = weight.shape
    down, across = dilation
    stuffed = weight.new_zeros(o, (height - 1) * down + 1, (width - 1) * across + 1, i)
    stuffed[:, ::down, ::across] = weight
    return stuffed


def _in_groups(
    w: GraphWriter, x: Value, weight: Tensor, a: Arguments, conv: Callable[[Value, Tensor, Tensor | None, Sequence[int]], Value]
) -> Value:
    """One convolution per group of channels, and a CONCAT."""
    if a.groups == 1:
        return conv(x, weight, a.bias, a.shape)
    axis, inputs, outputs = len(a.shape) - 1, x.shape[-1] // a.groups, a.shape[-1] // a.groups
    parts = []
    for g in range(a.groups):
        rows = slice(g * outputs, (g + 1) * outputs)
        bias = None if a.bias is None else a.bias[rows]
        part = slice_(w, x, axis, g * inputs, inputs)
        parts.append(conv(part, weight[rows], bias, (*a.shape[:-1], outputs)))
    return concat(w, parts, axis)


def _conv(
    w: GraphWriter, kind: str, x: Value, weight: Tensor, bias: Tensor | None, shape: Sequence[int], options: Mapping[str, Any]
) -> Value:
    bias = weight.new_zeros(shape[-1]) if bias is None else bias
    zero = w.number(0, x.dtype)
    operands = [x, w.constant(weight), w.constant(bias), zero, zero]
    return w.op(kind, operands, shape, "FP32", local_bound=False, acc_type="FP32", **options)


def _exact(
    w: GraphWriter, x: Value, window: Sequence[int], stride: Sequence[int], padding: Sequence[int], shape: Sequence[int]
) -> tuple[list[int], Value]:
    """The padding before and after each spatial dimension with which the windows end where the input does, and
    the input without what no window reaches. `x` is (N, *space, C)."""
    exact = []
    for d, (extent, step) in enumerate(zip(window, stride, strict=True)):
        before = padding[2 * d]
        after = (shape[d + 1] - 1) * step + extent - x.shape[d + 1] - before
        if after < 0:
            x = slice_(w, x, d + 1, 0, x.shape[d + 1] + after)
        exact += [before, max(after, 0)]
    return exact, x


def _check_convolution(a: Arguments) -> str | None:
    weight = getattr(a, "weight_ohwi", None)
    weight = a.weight_odhwi if weight is None else weight
    return None if a.is_constant(weight) and a.is_constant(a.bias) else "a weight or a bias that is not constant"


def _check_transposed(a: Arguments) -> str | None:
    kernel = [d * (k - 1) + 1 for d, k in zip(a.dilation, size(a.weight_ohwi)[1:3], strict=True)]
    if any(p >= k for p, k in zip(a.padding, kernel, strict=True)):
        return f"padding {a.padding} that is not below the kernel {kernel}"
    return _check_convolution(a)


# -- pooling -------------------------------------------------------------------------------------------------------


def _max_pool2d(w: GraphWriter, a: Arguments) -> Value:
    return _max_pool(w, w.dense(a.x), a.kernel_size, a.stride, a.padding, a.shape)


def _max_pool(w: GraphWriter, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], shape: Sequence[int]) -> Value:
    pads, x = _exact(w, x, kernel, stride, [p for p in padding for _ in range(2)], shape)
    return w.op("MAX_POOL2D", [x], shape, kernel=list(kernel), stride=list(stride), pad=pads)


def _check_max_pool(a: Arguments) -> str | None:
    pair = a.dilation if isinstance(a.dilation, (list, tuple)) else [a.dilation]
    return None if set(pair) <= {1} else f"dilation {a.dilation}; TOSA's MAX_POOL2D has none"


def _avg_pool2d(w: GraphWriter, a: Arguments) -> Value:
    return _avg_pool(w, w.dense(a.x), a.kernel_size, a.stride, a.padding, a.shape, a.count_include_pad, a.divisor_override)


def _avg_pool(
    w: GraphWriter,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    shape: Sequence[int],
    count_include_pad: bool,
    divisor: int | None = None,
) -> Value:
    """AVG_POOL2D divides by the taps inside the input: zeros that count are written out as part of it."""
    sides, taps = [p for p in padding for _ in range(2)], math.prod(kernel)
    if divisor is not None:  # what ceil mode adds counts too
        sides, x = _exact(w, x, kernel, stride, sides, shape)
    if count_include_pad or divisor is not None:
        x = pad(w, x, (0, *sides[::2], 0), (0, *sides[1::2], 0))
        sides = [0] * len(sides)
    sides, x = _exact(w, x, kernel, stride, sides, shape)
    zero = w.number(0, x.dtype)
    options = {"kernel": list(kernel), "stride": list(stride), "pad": sides, "acc_type": "FP32"}
    y = w.op("AVG_POOL2D", [x, zero, zero], shape, **options)
    return y if divisor is None else mul(w, y, taps / divisor)


# A pool over row-major (…, C, *space) is one over (N · C, *space, 1), and one over three dimensions is one over the last
# two, then one over the first: maxima and means (also of the padded parts) separate.


def _rows(a: Arguments, dims: int) -> tuple[list[int], list[int], list[int]]:
    kernel = _several(a.kernel_size, dims)
    return kernel, _several(a.stride, dims) if a.stride else kernel, _several(a.padding, dims)


def _several(given: Any, count: int) -> list[int]:
    values = [given] if isinstance(given, int) else list(given)
    return values * count if len(values) == 1 else values


def _row_major(dims: int, pool: Callable[..., Value], *options: str) -> Callable[[GraphWriter, Arguments], Value]:
    def build(w: GraphWriter, a: Arguments) -> Value:
        x = w.dense(a.self)
        kernel, stride, padding = _rows(a, dims)
        given = [getattr(a, name) for name in options]
        source, shape = x.shape[-dims:], a.shape[-dims:]
        outer = math.prod(x.shape[:-dims])
        if dims == 3:
            x = w.reshape(x, (outer * source[0], *source[1:], 1))
            y = pool(w, x, kernel[1:], stride[1:], padding[1:], (outer * source[0], *shape[1:], 1), *given)
            inner = math.prod(shape[1:])
            y = w.reshape(y, (outer, source[0], inner, 1))
            y = pool(w, y, (kernel[0], 1), (stride[0], 1), (padding[0], 0), (outer, shape[0], inner, 1), *given)
        else:
            x = w.reshape(x, (outer, *(1,) * (2 - dims), *source, 1))
            ones, zeros = [1] * (2 - dims), [0] * (2 - dims)
            out = (outer, *ones, *shape, 1)
            y = pool(w, x, [*ones, *kernel], [*ones, *stride], [*zeros, *padding], out, *given)
        return w.reshape(y, a.shape)

    return build


def _check_avg_rows(a: Arguments) -> str | None:
    return "divisor_override over three dimensions" if getattr(a, "divisor_override", None) else None


# -- resizing ------------------------------------------------------------------------------------------------------


def _bilinear(w: GraphWriter, a: Arguments) -> Value:
    """RESIZE reads at (o · d + offset) / n. Half-pixel centres: n / d is the scale, offset / n = (d / n - 1) / 2."""
    x, scales = w.dense(a.x), _scales(a)
    if a.align_corners:
        for d in (1, 2):
            if a.shape[d] == 1:  # reads the first element alone
                x = slice_(w, x, d, 0, 1)
    terms = [_bilinear_terms(x.shape[d + 1], a.shape[d + 1], scales[d], a.align_corners) for d in range(2)]
    return _resize(w, "BILINEAR", x, terms, a.shape)


def _bilinear_terms(old: int, new: int, scale: Fraction, align_corners: bool) -> tuple[int, int, int]:
    """RESIZE's numerator, denominator and offset."""
    if align_corners and old > 1 and new > 1:
        scale = Fraction(new - 1, old - 1)
        return scale.numerator, scale.denominator, 0
    n, d = scale.numerator, scale.denominator
    return 2 * n, 2 * d, d - n


def _nearest(w: GraphWriter, a: Arguments) -> Value:
    """torch reads at floor(o / scale); RESIZE rounds to the nearest, so it is asked for half an element less.

    Where torch's float32 product falls on the other side of a whole number, elements are gathered one by one.
    """
    x, scales = w.dense(a.x), _scales(a)
    terms = [(2 * s.numerator, 2 * s.denominator, -s.numerator) for s in scales]
    reads = [_nearest_reads(old, new, s) for old, new, s in zip(x.shape[1:3], a.shape[1:3], (a.scales_h, a.scales_w), strict=True)]
    exact = [[min(int(o / s), old - 1) for o in range(new)] for old, new, s in zip(x.shape[1:3], a.shape[1:3], scales, strict=True)]
    if reads == exact and _check_terms(terms) is None:
        return _resize(w, "NEAREST", x, terms, a.shape)
    for d, indices in enumerate(reads):
        x = take(w, x, d + 1, torch.tensor(indices))
    return x


def _nearest_reads(old: int, new: int, factor: float | None) -> list[int]:
    step = torch.tensor(old / new if factor is None else 1 / factor, dtype=torch.float32)
    return (torch.arange(new, dtype=torch.float32) * step).floor().long().clamp(max=old - 1).tolist()


def _scales(a: Arguments) -> list[Fraction]:
    """New size over old for height and width, or the factor that was given in its place."""
    olds, news, factors = size(a.x)[1:3], a.shape[1:3], (a.scales_h, a.scales_w)
    return [
        Fraction(new, old) if factor is None else Fraction(factor).limit_denominator(MAX_SCALE_NUMERATOR)
        for old, new, factor in zip(olds, news, factors, strict=True)
    ]


def _resize(w: GraphWriter, mode: str, x: Value, terms: Sequence[tuple[int, int, int]], shape: Sequence[int]) -> Value:
    scale = [number for n, d, _ in terms for number in (n, d)]
    offsets = [offset for _, _, offset in terms]
    borders = [
        (shape[i + 1] - 1) * d - (x.shape[i + 1] - 1) * n + offset for i, (n, d, offset) in enumerate(terms)
    ]
    operands = [x, w.shape(scale), w.shape(offsets), w.shape(borders)]
    return w.op("RESIZE", operands, shape, mode=mode)


def _check_terms(terms: Sequence[tuple[int, int, int]]) -> str | None:
    for n, d, _ in terms:
        if n > MAX_SCALE_NUMERATOR or d >= MAX_SHRINK * n or n > MAX_GROW * d:
            return f"the scale {n}/{d}; TOSA's RESIZE has numerators up to {MAX_SCALE_NUMERATOR} and scales from 1/{MAX_SHRINK} to {MAX_GROW}"
    return None


def _check_bilinear(a: Arguments) -> str | None:
    old, new = size(a.x), a.shape
    terms = [
        _bilinear_terms(old[d + 1] if new[d + 1] > 1 or not a.align_corners else 1, new[d + 1], s, a.align_corners)
        for d, s in enumerate(_scales(a))
    ]
    return _check_terms(terms)


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        dimorder.conv2d_nhwc.default: Row(_convolution, _check_convolution),
        dimorder.conv3d_ndhwc.default: Row(_convolution, _check_convolution),
        dimorder.conv_transpose2d_nhwc.default: Row(_conv_transpose2d, _check_transposed),
        dimorder.max_pool2d_nhwc.default: Row(_max_pool2d, _check_max_pool),
        dimorder.avg_pool2d_nhwc.default: Row(_avg_pool2d),
        dimorder.upsample_bilinear2d_nhwc.default: Row(_bilinear, _check_bilinear),
        dimorder.upsample_nearest2d_nhwc.default: Row(_nearest),
        aten.max_pool1d.default: Row(_row_major(1, _max_pool), _check_max_pool),
        aten.max_pool2d.default: Row(_row_major(2, _max_pool), _check_max_pool),
        aten.max_pool3d.default: Row(_row_major(3, _max_pool), _check_max_pool),
        aten.avg_pool1d.default: Row(_row_major(1, _avg_pool, "count_include_pad")),
        aten.avg_pool2d.default: Row(_row_major(2, _avg_pool, "count_include_pad", "divisor_override")),
        aten.avg_pool3d.default: Row(_row_major(3, _avg_pool, "count_include_pad"), _check_avg_rows),
    }
)
