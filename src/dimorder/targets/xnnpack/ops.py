"""The operators that XNNPACK computes: one row per operator of a physical program.

A row says when the operator is supported and which XNNPACK nodes compute it; nothing here chooses an order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from executorch.backends.xnnpack.utils.xnnpack_constants import (
    XNN_FLAG_ALIGN_CORNERS,
    XNN_FLAG_KEEP_DIMS,
    XNN_FLAG_TRANSPOSE_B,
)
from torch import Tensor

from dimorder.lowering.operators import dialect as dialect  # registers torch.ops.dimorder
from dimorder.targets.table import COPIES, VIEWS, Arguments, Row, Table, View, whole
from dimorder.targets.xnnpack.backend import MAX_RANK, NONE_ID, XnnValue, XnnWriter

aten = torch.ops.aten
dimorder = torch.ops.dimorder

# A depthwise kernel of more taps has no fast XNNPACK kernel: 7 x 7 takes 10.1 ms at 56 x 56 x 96,
# three kernels of at most 25 taps and two additions under 2 ms.
MAX_DEPTHWISE_TAPS = 25
MAX_CONCATENATED = 5

Build = Callable[[XnnWriter, Arguments], "XnnValue | View[XnnValue] | list[XnnValue]"]


def _unfit(value: Any, is_constant: bool) -> str | None:
    if is_constant:
        return None
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__} where XNNPACK wants a tensor"
    if value.dtype != torch.float32:
        return f"{value.dtype} where this target computes in torch.float32"
    if not all(isinstance(size, int) for size in value.shape):
        return f"the symbolic shape {tuple(value.shape)}"
    if value.ndim > MAX_RANK:
        return f"{value.ndim} dimensions where XNNPACK has at most {MAX_RANK}"
    if value.numel() == 0:
        return f"the empty shape {tuple(value.shape)}"
    return None


# Elementwise


def _unary(kind: type[Any]) -> Build:
    return lambda w, a: _apply(w, kind, w.dense(a.self))


def _apply(w: XnnWriter, kind: type[Any], x: XnnValue, **fields: Any) -> XnnValue:
    return w.node(kind, x.shape, input_id=x.id, **fields)


def _pair(w: XnnWriter, kind: type[Any], x: XnnValue, y: XnnValue) -> XnnValue:
    return w.node(kind, _broadcast(x.shape, y.shape), input1_id=x.id, input2_id=y.id)


def _broadcast(x: Sequence[int], y: Sequence[int]) -> list[int]:
    rank = max(len(x), len(y))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in (x, y)]
    return [b if a == 1 else a for a, b in zip(*padded, strict=True)]


def _times(w: XnnWriter, x: XnnValue, factor: float) -> XnnValue:
    return x if factor == 1 else _pair(w, schema.XNNMultiply, x, w.dense(factor))


def _plus(w: XnnWriter, x: XnnValue, term: float) -> XnnValue:
    return _pair(w, schema.XNNAdd, x, w.dense(term))


def _binary(kind: type[Any], *, reverse: bool = False) -> Build:
    def build(w: XnnWriter, a: Arguments) -> XnnValue:
        alpha = getattr(a, "alpha", 1)
        x, y = w.dense(a.self), w.dense(a.other)
        if reverse:
            return _pair(w, kind, y, _times(w, x, alpha))
        return _pair(w, kind, x, _times(w, y, alpha))

    return build


def _clamp(w: XnnWriter, a: Arguments) -> XnnValue:
    low, high = getattr(a, "min", None), getattr(a, "max", None)
    return w.clamp(w.dense(a.self), -math.inf if low is None else low, math.inf if high is None else high)


def _check_clamp(a: Arguments) -> str | None:
    low, high = getattr(a, "min", None), getattr(a, "max", None)
    if low is not None and high is not None and low >= high:
        return f"the empty range [{low}, {high}]"
    return None


def _hardsigmoid(w: XnnWriter, a: Arguments) -> XnnValue:
    return w.clamp(_plus(w, _times(w, w.dense(a.self), 1 / 6), 0.5), 0, 1)


def _silu(w: XnnWriter, a: Arguments) -> XnnValue:
    x = w.dense(a.self)
    return _pair(w, schema.XNNMultiply, x, _apply(w, schema.XNNSigmoid, x))


def _gelu(w: XnnWriter, a: Arguments) -> XnnValue:
    x = w.dense(a.self)
    if a.approximate == "none":
        return _apply(w, schema.XNNGelu, x)
    # 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    cubic = _plus(w, _times(w, _apply(w, schema.XNNSquare, x), 0.044715), 1)
    inner = _times(w, _pair(w, schema.XNNMultiply, x, cubic), math.sqrt(2 / math.pi))
    gate = _plus(w, _times(w, _apply(w, schema.XNNTanh, inner), 0.5), 0.5)
    return _pair(w, schema.XNNMultiply, x, gate)


def _elu(w: XnnWriter, a: Arguments) -> XnnValue:
    return _apply(w, schema.XNNELU, w.dense(a.self), alpha=float(a.alpha))


def _check_elu(a: Arguments) -> str | None:
    if (a.scale, a.input_scale) != (1, 1) or a.alpha <= 0:
        return "elu with a scale, an input scale or an alpha that is not positive"
    return None


def _leaky_relu(w: XnnWriter, a: Arguments) -> XnnValue:
    return _apply(w, schema.XNNLeakyReLU, w.dense(a.self), negative_slope=float(a.negative_slope))


def _prelu_last(w: XnnWriter, a: Arguments) -> XnnValue:
    return _pair(w, schema.XNNPReLU, w.dense(a.x), w.dense(a.weight))


def _reciprocal(w: XnnWriter, a: Arguments) -> XnnValue:
    return _pair(w, schema.XNNDiv, w.dense(1.0), w.dense(a.self))


def _power(w: XnnWriter, a: Arguments) -> XnnValue:
    x = w.dense(a.self)
    return _POWERS[a.exponent](w, x)


_POWERS: Mapping[float, Callable[[XnnWriter, XnnValue], XnnValue]] = MappingProxyType(
    {
        1: lambda w, x: x,
        2: lambda w, x: _apply(w, schema.XNNSquare, x),
        3: lambda w, x: _pair(w, schema.XNNMultiply, x, _apply(w, schema.XNNSquare, x)),
        0.5: lambda w, x: _apply(w, schema.XNNSquareRoot, x),
        -0.5: lambda w, x: _apply(w, schema.XNNReciprocalSquareRoot, x),
        -1: lambda w, x: _pair(w, schema.XNNDiv, w.dense(1.0), x),
    }
)


def _check_power(a: Arguments) -> str | None:
    return None if a.exponent in _POWERS else f"the exponent {a.exponent}; XNNPACK has {sorted(_POWERS)}"


# Contractions


def _full(w: XnnWriter, x: XnnValue, weight: XnnValue, bias: XnnValue | None) -> XnnValue:
    """x (…, I) times weight (O, I), plus bias (O)."""
    return w.node(
        schema.XNNFullyConnected,
        (*x.shape[:-1], weight.shape[0]),
        input1_id=x.id,
        filter_id=weight.id,
        bias_id=NONE_ID if bias is None else bias.id,
    )


def _linear(w: XnnWriter, a: Arguments) -> XnnValue:
    return _full(w, w.dense(a.input), w.dense(a.weight), _optional(w, a.bias))


def _check_linear(a: Arguments) -> str | None:
    return None if a.is_constant(a.bias) else "a bias that is not constant"


def _addmm(w: XnnWriter, a: Arguments) -> XnnValue:
    return _full(w, w.dense(a.mat1), w.constant(a.mat2.t()), _optional(w, a.self))


def _check_addmm(a: Arguments) -> str | None:
    if not (a.is_constant(a.self) and a.is_constant(a.mat2) and a.self.meta["val"].ndim == 1):
        return "a matrix or a bias that is not constant"
    return None if (a.alpha, a.beta) == (1, 1) else "addmm with alpha or beta"


def _optional(w: XnnWriter, operand: Any) -> XnnValue | None:
    return None if operand is None else w.dense(operand)


def _matmul(w: XnnWriter, a: Arguments) -> XnnValue:
    left, right = a.self, getattr(a, "other", getattr(a, "mat2", None))
    assert right is not None
    if isinstance(right, Tensor) and right.ndim == 2:
        return _full(w, w.dense(left), w.constant(right.t()), None)
    x = w.dense(left)
    batch, rows = (x.shape[:-2], x.shape[-2]) if len(right.shape) > 2 else ((1,), math.prod(x.shape[:-1]))
    x = w.reshape(x, (*batch, rows, x.shape[-1]))
    flags, y, columns = 0, None, right.shape[-1]
    if isinstance(right, View) and right.order == _last_two_swapped(len(right.order)):
        flags, y = XNN_FLAG_TRANSPOSE_B, right.value
    y = y or w.dense(right)
    y = w.reshape(y, (*batch, *y.shape[-2:]))
    return w.node(
        schema.XNNBatchMatrixMultiply, (*batch, rows, columns), flags=flags, input1_id=x.id, input2_id=y.id
    )


def _last_two_swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _check_matmul(a: Arguments) -> str | None:
    left, right = a.self, getattr(a, "other", getattr(a, "mat2", None))
    assert right is not None
    left_shape, right_shape = tuple(left.meta["val"].shape), tuple(right.meta["val"].shape)
    if len(left_shape) < 2 or len(right_shape) < 2:
        return "a product with a vector"
    if len(right_shape) > 2 and left_shape[:-2] != right_shape[:-2]:
        return f"batches that broadcast: {left_shape} by {right_shape}"
    return None


def _attention(w: XnnWriter, a: Arguments) -> XnnValue:
    scale = 1 / math.sqrt(a.query.shape[-1]) if a.scale is None else a.scale
    swapped = _last_two_swapped(len(a.key.shape))
    query = whole(_times(w, w.dense(a.query), scale))
    key = a.key.permute(swapped)
    scores = _matmul(w, Arguments(self=query, other=key))
    mask = a.attn_mask
    if a.is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    if mask is not None:
        scores = _pair(w, schema.XNNAdd, scores, w.dense(mask))
    weights = whole(_apply(w, schema.XNNSoftmax, scores))
    return _matmul(w, Arguments(self=weights, other=a.value))


def _check_attention(a: Arguments) -> str | None:
    shapes = [tuple(n.meta["val"].shape) for n in (a.query, a.key, a.value)]
    if a.dropout_p or a.enable_gqa:
        return "attention with dropout or grouped queries"
    if len({shape[:-2] for shape in shapes}) > 1 or len(shapes[0]) < 3:
        return f"batches that broadcast: {shapes}"
    return None


# Convolution: NHWC, weights (O, KH, KW, I/groups), padding (top, bottom, left, right)


def _conv2d(w: XnnWriter, a: Arguments) -> XnnValue:
    x, weight, bias = w.dense(a.x), a.weight_ohwi, a.bias
    if a.groups > 1 and weight.shape[3] == 1 and a.groups == x.shape[3]:
        return _depthwise(w, x, weight.permute(3, 1, 2, 0), bias, a.stride, a.padding, a.dilation, a.shape)
    return _convolve(w, schema.XNNConv2d, x, weight, bias, a.stride, a.padding, a.dilation, a.groups, a.shape)


def _conv_transpose2d(w: XnnWriter, a: Arguments) -> XnnValue:
    (vertical, horizontal), x = a.padding, w.dense(a.x)
    padding = (vertical, vertical, horizontal, horizontal)
    arguments = (x, a.weight_ohwi, a.bias, a.stride, padding, a.dilation, a.groups, a.shape)
    return _convolve(w, schema.XNNConvTranspose2d, *arguments, adjustment=a.output_padding)


def _check_conv(a: Arguments) -> str | None:
    if not (a.is_constant(a.weight_ohwi) and a.is_constant(a.bias)):
        return "a weight or a bias that is not constant"
    output_padding = getattr(a, "output_padding", (0, 0))
    if any(added >= step for added, step in zip(output_padding, a.stride, strict=True) if added):
        return f"an output padding {output_padding} that is not below the stride {a.stride}"
    return None


def _convolve(
    w: XnnWriter,
    kind: type[Any],
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
    depthwise = kind is schema.XNNDepthwiseConv2d
    bias_value = _optional(w, bias)
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
        bias_id=NONE_ID if bias_value is None else bias_value.id,
    )


def _depthwise(
    w: XnnWriter,
    x: XnnValue,
    weight: Tensor,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    shape: Sequence[int],
) -> XnnValue:
    """Weight (1, KH, KW, O). Rows and columns are dealt out to kernels of few taps, whose results are added.

    Every n-th row with n times the dilation needs no more padding than the whole kernel where that is "same";
    consecutive rows would have to crop the input.
    """
    _, height, width, _ = weight.shape
    down, across = _split(height, width)
    total: XnnValue | None = None
    for i in range(down):
        for j in range(across):
            part = weight[:, i::down, j::across, :]
            top, bottom = _part_padding(i, down, height, part.shape[1], dilation[0], padding[:2])
            left, right = _part_padding(j, across, width, part.shape[2], dilation[1], padding[2:])
            cropped = _crop(w, x, (-top, -bottom, -left, -right))
            y = _convolve(
                w,
                schema.XNNDepthwiseConv2d,
                cropped,
                part,
                bias if total is None else None,
                stride,
                [max(p, 0) for p in (top, bottom, left, right)],
                (dilation[0] * down, dilation[1] * across),
                x.shape[3],
                shape,
            )
            total = y if total is None else _pair(w, schema.XNNAdd, total, y)
    assert total is not None
    return total


def _split(height: int, width: int) -> tuple[int, int]:
    """Into how many kernels the rows and the columns are dealt out: as few as the taps allow."""
    return min(
        (
            (down, across)
            for down in range(1, height + 1)
            for across in range(1, width + 1)
            if math.ceil(height / down) * math.ceil(width / across) <= MAX_DEPTHWISE_TAPS
        ),
        key=lambda parts: (math.prod(parts), parts),
    )


def _part_padding(
    first: int, step: int, size: int, taps: int, dilation: int, padding: Sequence[int]
) -> tuple[int, int]:
    """The padding before and after of the kernel that has each `step`-th of `size` taps; negative: a crop."""
    last = first + (taps - 1) * step
    return padding[0] - first * dilation, padding[1] - (size - 1 - last) * dilation


def _crop(w: XnnWriter, x: XnnValue, cut: Sequence[int]) -> XnnValue:
    """NHWC `x` without what is positive in `cut`: top, bottom, left, right."""
    top, bottom, left, right = (max(c, 0) for c in cut)
    n, height, width, channels = x.shape
    return _slice(w, x, (0, top, left, 0), (n, height - top - bottom, width - left - right, channels))


# Pooling and resizing, NHWC


def _max_pool2d(w: XnnWriter, a: Arguments) -> XnnValue:
    x = w.dense(a.x)
    if list(a.kernel_size) == [1, 1]:
        return _subsample(w, x, a.stride, a.shape)
    return _pool(w, schema.XNNMaxPooling2d, x, a, a.padding, a.dilation)


def _avg_pool2d(w: XnnWriter, a: Arguments) -> XnnValue:
    x, padding, taps = w.dense(a.x), tuple(a.padding), math.prod(a.kernel_size)
    factor = 1.0 if a.divisor_override is None else taps / a.divisor_override
    if taps == 1:
        return _times(w, _subsample(w, x, a.stride, a.shape), factor)
    # XNNPACK divides by the taps inside the input: zeros that count are written out as part of it.
    if a.divisor_override is not None:
        over = _overhang(x, a, padding, (1, 1))
        x = _pad(w, x, (0, *padding, 0), (0, padding[0] + over[0], padding[1] + over[1], 0), 0.0)
        padding = (0, 0)
    elif a.count_include_pad:
        x = _pad(w, x, (0, *padding, 0), (0, *padding, 0), 0.0)
        padding = (0, 0)
    return _times(w, _pool(w, schema.XNNAvgPooling2d, x, a, padding, (1, 1)), factor)


def _pool(
    w: XnnWriter, kind: type[Any], x: XnnValue, a: Arguments, padding: Sequence[int], dilation: Sequence[int]
) -> XnnValue:
    below, beside = _overhang(x, a, padding, dilation)
    return w.node(
        kind,
        a.shape,
        flags=XNN_FLAG_KEEP_DIMS if kind is schema.XNNAvgPooling2d else 0,
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


def _overhang(x: XnnValue, a: Arguments, padding: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """How far the last window of a ceil-mode pool reaches beyond the padded input, down and right."""
    return [
        max(0, (a.shape[d + 1] - 1) * a.stride[d] + dilation[d] * (a.kernel_size[d] - 1) + 1 - padded)
        for d, padded in enumerate(x.shape[d + 1] + 2 * padding[d] for d in range(2))
    ]


def _subsample(w: XnnWriter, x: XnnValue, stride: Sequence[int], shape: Sequence[int]) -> XnnValue:
    """Every stride-th pixel: XNNPACK refuses to pool over one."""
    if list(stride) == [1, 1]:
        return x
    ones = torch.ones(1, 1, 1, x.shape[3])
    return _depthwise(w, x, ones, None, stride, (0, 0, 0, 0), (1, 1), shape)


def _check_subsample(a: Arguments) -> str | None:
    if list(a.kernel_size) == [1, 1] and a.x.meta["val"].shape[3] == 1 and list(a.stride) != [1, 1]:
        return "a pool of one pixel over one channel"
    return None


def _bilinear(w: XnnWriter, a: Arguments) -> XnnValue:
    height, width = a.output_size
    return w.node(
        schema.XNNStaticResizeBilinear2D,
        a.shape,
        flags=XNN_FLAG_ALIGN_CORNERS if a.align_corners else 0,
        new_height=height,
        new_width=width,
        input_id=w.dense(a.x).id,
    )


def _check_bilinear(a: Arguments) -> str | None:
    sizes = zip(a.output_size, a.x.meta["val"].shape[1:3], (a.scales_h, a.scales_w), strict=True)
    for new, old, scale in sizes:
        if scale is not None and not a.align_corners and new != old * scale:
            return f"the scale {scale} from {old} to {new}; XNNPACK takes the ratio of the sizes"
    return None


def _nearest(w: XnnWriter, a: Arguments) -> XnnValue:
    """A whole multiple, as a product with ones over two more dimensions."""
    x = w.dense(a.x)
    n, height, width, channels = x.shape
    down, across = a.output_size[0] // height, a.output_size[1] // width
    spread = w.reshape(x, (n, height, 1, width, 1, channels))
    return _pair(w, schema.XNNMultiply, spread, w.constant(torch.ones(1, 1, down, 1, across, 1)))


def _check_nearest(a: Arguments) -> str | None:
    sizes = zip(a.output_size, a.x.meta["val"].shape[1:3], (a.scales_h, a.scales_w), strict=True)
    for new, old, scale in sizes:
        if new % old or (scale is not None and scale != new / old):
            return f"nearest from {old} to {new}, which is no whole multiple"
    return None


# Normalisation and reduction


def _softmax(w: XnnWriter, a: Arguments) -> XnnValue:
    return _apply(w, schema.XNNSoftmax, w.dense(a.self))


def _check_softmax(a: Arguments) -> str | None:
    rank = a.self.meta["val"].ndim
    return None if a.dim % rank == rank - 1 else f"softmax over dimension {a.dim} of {rank}, not the last"


def _layer_norm(w: XnnWriter, a: Arguments) -> XnnValue:
    x = w.dense(a.input)
    size = math.prod(a.normalized_shape)
    x = w.reshape(x, (*x.shape[: len(x.shape) - len(a.normalized_shape)], size))
    average = w.constant(torch.full((1, size), 1 / size))
    centred = _pair(w, schema.XNNSubtract, x, _full(w, x, average, None))
    variance = _full(w, _apply(w, schema.XNNSquare, centred), average, w.constant(torch.tensor([a.eps])))
    y = _pair(w, schema.XNNMultiply, centred, _apply(w, schema.XNNReciprocalSquareRoot, variance))
    if a.weight is not None:
        y = _pair(w, schema.XNNMultiply, y, w.reshape(w.dense(a.weight), (size,)))
    if a.bias is not None:
        y = _pair(w, schema.XNNAdd, y, w.reshape(w.dense(a.bias), (size,)))
    return y


def _reduce(mean: bool) -> Build:
    def build(w: XnnWriter, a: Arguments) -> XnnValue:
        x = w.dense(a.self)
        dims = getattr(a, "dim", None) or range(len(x.shape))
        reduced = {d % len(x.shape) for d in dims}
        count = math.prod(x.shape[d] for d in reduced)
        y = _mean(w, x, reduced)
        return w.reshape(_times(w, y, 1 if mean else count), a.shape)

    return build


def _mean(w: XnnWriter, x: XnnValue, dims: set[int]) -> XnnValue:
    """The mean over `dims`, in some shape of the right order: one run of adjacent dimensions at a time."""
    dims = {d for d in dims if x.shape[d] != 1}
    if not dims:
        return x
    if len(x.shape) == 4 and dims == {1, 2}:
        return _mean_over_space(w, x)
    last = max(dims)
    first = last
    while first > 0 and (first - 1 in dims or x.shape[first - 1] == 1):
        first -= 1
    outer, size, inner = (
        math.prod(x.shape[cut]) for cut in (slice(first), slice(first, last + 1), slice(last + 1, None))
    )
    if inner == 1:
        if x.shape[-1] != size:
            x = w.reshape(x, (*x.shape[:first], size))
        y = _full(w, x, w.constant(torch.full((1, size), 1 / size)), None)
    else:
        y = _mean_over_space(w, w.reshape(x, (outer, size, 1, inner)))
    rest = {d for d in dims if d < first}
    if not rest:
        return y
    y = w.reshape(y, (*x.shape[:first], inner))
    return _mean(w, y, rest)


def _mean_over_space(w: XnnWriter, x: XnnValue) -> XnnValue:
    n, _, _, channels = x.shape
    return w.node(schema.XNNGlobalAvgPooling2d, (n, 1, 1, channels), flags=XNN_FLAG_KEEP_DIMS, input_id=x.id)


# Moving elements


def _same(w: XnnWriter, a: Arguments) -> View[XnnValue] | XnnValue:
    operand = getattr(a, "self", getattr(a, "input", None))
    return operand if isinstance(operand, View) else w.dense(operand)  # type: ignore[arg-type]  # one of the two is there


def _check_dropout(a: Arguments) -> str | None:
    return "dropout in training mode" if a.train and a.p else None


def _permute(dims: Callable[[Arguments, int], Sequence[int]]) -> Build:
    return lambda w, a: a.self.permute(dims(a, len(a.self.shape)))


def _permuted_dims(a: Arguments, rank: int) -> list[int]:
    return [d % rank for d in a.dims]


def _transposed_dims(a: Arguments, rank: int) -> list[int]:
    dims, (i, j) = list(range(rank)), (a.dim0 % rank, a.dim1 % rank)
    dims[i], dims[j] = j, i
    return dims


def _view(w: XnnWriter, a: Arguments) -> View[XnnValue] | XnnValue:
    if tuple(a.self.shape) == a.shape:
        return _same(w, a)
    return w.reshape(w.dense(a.self), a.shape)


def _expand(w: XnnWriter, a: Arguments) -> View[XnnValue] | XnnValue:
    """Broadcasting is a product with ones in the dimensions that grow."""
    old = (1,) * (len(a.shape) - len(a.self.shape)) + tuple(a.self.shape)
    if old == a.shape:
        return _view(w, a)
    ones = [new if new != size else 1 for new, size in zip(a.shape, old, strict=True)]
    return _pair(w, schema.XNNMultiply, w.reshape(w.dense(a.self), old), w.constant(torch.ones(ones)))


def _slice(w: XnnWriter, x: XnnValue, offsets: Sequence[int], sizes: Sequence[int]) -> XnnValue:
    if tuple(sizes) == x.shape:
        return x
    return w.node(
        schema.XNNStaticSlice,
        sizes,
        num_dims=len(x.shape),
        offsets=list(offsets),
        sizes=list(sizes),
        input_id=x.id,
    )


def _cut(w: XnnWriter, x: XnnValue, dim: int, start: int, length: int) -> XnnValue:
    dim %= len(x.shape)
    offsets = [start if d == dim else 0 for d in range(len(x.shape))]
    return _slice(w, x, offsets, [length if d == dim else size for d, size in enumerate(x.shape)])


def _slice_tensor(w: XnnWriter, a: Arguments) -> XnnValue:
    x = w.dense(a.self)
    size = x.shape[a.dim]
    start = a.start or 0
    start = min(max(start + size if start < 0 else start, 0), size)
    return _cut(w, x, a.dim, start, a.shape[a.dim])


def _check_slice(a: Arguments) -> str | None:
    return None if a.step == 1 else f"a slice of step {a.step}; XNNPACK has step 1"


def _select(w: XnnWriter, a: Arguments) -> XnnValue:
    x = w.dense(a.self)
    return _cut(w, x, a.dim, a.index % x.shape[a.dim], 1)


def _split_tensor(w: XnnWriter, a: Arguments) -> list[XnnValue]:
    x, start, pieces = w.dense(a.self), 0, []
    for shape in a.shapes:
        pieces.append(_cut(w, x, a.dim, start, shape[a.dim]))
        start += shape[a.dim]
    return pieces


def _unbind(w: XnnWriter, a: Arguments) -> list[XnnValue]:
    x = w.dense(a.self)
    return [w.reshape(_cut(w, x, a.dim, i, 1), shape) for i, shape in enumerate(a.shapes)]


_CONCATENATE = (
    schema.XNNConcatenate2,
    schema.XNNConcatenate3,
    schema.XNNConcatenate4,
    schema.XNNConcatenate5,
)


def _cat(w: XnnWriter, a: Arguments) -> XnnValue:
    values = [w.dense(operand) for operand in a.tensors]
    axis = a.dim % len(a.shape)
    while len(values) > 1:
        values = [
            _concatenate(w, values[i : i + MAX_CONCATENATED], axis)
            for i in range(0, len(values), MAX_CONCATENATED)
        ]
    return values[0]


def _concatenate(w: XnnWriter, values: Sequence[XnnValue], axis: int) -> XnnValue:
    if len(values) == 1:
        return values[0]
    shape = list(values[0].shape)
    shape[axis] = sum(value.shape[axis] for value in values)
    ids = [value.id for value in values] + [NONE_ID] * (MAX_CONCATENATED - len(values))
    inputs = {f"input{i}_id": index for i, index in enumerate(ids, start=1)}
    return w.node(_CONCATENATE[len(values) - 2], shape, axis=axis, **inputs)


def _constant_pad(w: XnnWriter, a: Arguments) -> XnnValue:
    x = w.dense(a.self)
    before, after = [0] * len(x.shape), [0] * len(x.shape)
    for i in range(len(a.pad) // 2):  # torch lists the last dimension first
        before[-1 - i], after[-1 - i] = a.pad[2 * i], a.pad[2 * i + 1]
    kept = [size + min(b, 0) + min(c, 0) for b, size, c in zip(before, x.shape, after, strict=True)]
    x = _slice(w, x, [max(-b, 0) for b in before], kept)
    return _pad(w, x, [max(b, 0) for b in before], [max(c, 0) for c in after], float(a.value or 0))


def _pad(w: XnnWriter, x: XnnValue, before: Sequence[int], after: Sequence[int], value: float) -> XnnValue:
    if not any(before) and not any(after):
        return x
    return w.node(
        schema.XNNStaticConstantPad,
        [b + size + c for b, size, c in zip(before, x.shape, after, strict=True)],
        pre_paddings=list(before),
        post_paddings=list(after),
        padding_value=value,
        input_id=x.id,
    )


def _check_pad(a: Arguments) -> str | None:
    if getattr(a, "mode", "constant") != "constant":
        return f"padding in mode {a.mode!r}"
    return None


_ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        dimorder.conv2d_nhwc.default: Row(_conv2d, _check_conv),
        dimorder.conv_transpose2d_nhwc.default: Row(_conv_transpose2d, _check_conv),
        dimorder.max_pool2d_nhwc.default: Row(_max_pool2d, _check_subsample),
        dimorder.avg_pool2d_nhwc.default: Row(_avg_pool2d, _check_subsample),
        dimorder.upsample_bilinear2d_nhwc.default: Row(_bilinear, _check_bilinear),
        dimorder.upsample_nearest2d_nhwc.default: Row(_nearest, _check_nearest),
        dimorder.prelu_last.default: Row(_prelu_last),
        aten.linear.default: Row(_linear, _check_linear),
        aten.addmm.default: Row(_addmm, _check_addmm),
        aten.mm.default: Row(_matmul, _check_matmul),
        aten.bmm.default: Row(_matmul, _check_matmul),
        aten.matmul.default: Row(_matmul, _check_matmul),
        aten.scaled_dot_product_attention.default: Row(_attention, _check_attention),
        aten.add.Tensor: Row(_binary(schema.XNNAdd)),
        aten.add.Scalar: Row(_binary(schema.XNNAdd)),
        aten.sub.Tensor: Row(_binary(schema.XNNSubtract)),
        aten.sub.Scalar: Row(_binary(schema.XNNSubtract)),
        aten.rsub.Tensor: Row(_binary(schema.XNNSubtract, reverse=True)),
        aten.rsub.Scalar: Row(_binary(schema.XNNSubtract, reverse=True)),
        aten.mul.Tensor: Row(_binary(schema.XNNMultiply)),
        aten.mul.Scalar: Row(_binary(schema.XNNMultiply)),
        aten.div.Tensor: Row(_binary(schema.XNNDiv)),
        aten.div.Scalar: Row(_binary(schema.XNNDiv)),
        aten.maximum.default: Row(_binary(schema.XNNMaximum)),
        aten.minimum.default: Row(_binary(schema.XNNMinimum)),
        aten.relu.default: Row(lambda w, a: w.clamp(w.dense(a.self), 0, math.inf)),
        aten.relu6.default: Row(lambda w, a: w.clamp(w.dense(a.self), 0, 6)),
        aten.hardtanh.default: Row(
            lambda w, a: w.clamp(w.dense(a.self), a.min_val, a.max_val),
            lambda a: None if a.min_val < a.max_val else f"the empty range [{a.min_val}, {a.max_val}]",
        ),
        aten.clamp.default: Row(_clamp, _check_clamp),
        aten.clamp_min.default: Row(_clamp),
        aten.clamp_max.default: Row(_clamp),
        aten.hardswish.default: Row(_unary(schema.XNNHardswish)),
        aten.hardsigmoid.default: Row(_hardsigmoid),
        aten.silu.default: Row(_silu),
        aten.gelu.default: Row(_gelu),
        aten.elu.default: Row(_elu, _check_elu),
        aten.leaky_relu.default: Row(_leaky_relu),
        aten.sigmoid.default: Row(_unary(schema.XNNSigmoid)),
        aten.tanh.default: Row(_unary(schema.XNNTanh)),
        aten.exp.default: Row(_unary(schema.XNNExp)),
        aten.log.default: Row(_unary(schema.XNNLog)),
        aten.sin.default: Row(_unary(schema.XNNSin)),
        aten.cos.default: Row(_unary(schema.XNNCos)),
        aten.sqrt.default: Row(_unary(schema.XNNSquareRoot)),
        aten.rsqrt.default: Row(_unary(schema.XNNReciprocalSquareRoot)),
        aten.abs.default: Row(_unary(schema.XNNAbs)),
        aten.neg.default: Row(_unary(schema.XNNNegate)),
        aten.floor.default: Row(_unary(schema.XNNFloor)),
        aten.ceil.default: Row(_unary(schema.XNNCeiling)),
        aten.square.default: Row(_unary(schema.XNNSquare)),
        aten.pow.Tensor_Scalar: Row(_power, _check_power),
        aten.reciprocal.default: Row(_reciprocal),
        aten.softmax.int: Row(_softmax, _check_softmax),
        aten._softmax.default: Row(_softmax, _check_softmax),
        aten.layer_norm.default: Row(_layer_norm),
        aten.mean.dim: Row(_reduce(mean=True)),
        aten.mean.default: Row(_reduce(mean=True)),
        aten.sum.dim_IntList: Row(_reduce(mean=False)),
        aten.sum.default: Row(_reduce(mean=False)),
        aten.cat.default: Row(_cat),
        aten.slice.Tensor: Row(_slice_tensor, _check_slice),
        aten.narrow.default: Row(_slice_tensor),
        aten.select.int: Row(_select),
        aten.split.Tensor: Row(_split_tensor),
        aten.split_with_sizes.default: Row(_split_tensor),
        aten.chunk.default: Row(_split_tensor),
        aten.unbind.int: Row(_unbind),
        aten.constant_pad_nd.default: Row(_constant_pad, _check_pad),
        aten.pad.default: Row(_constant_pad, _check_pad),
        aten.expand.default: Row(_expand),
        aten.permute.default: Row(_permute(_permuted_dims), relabel=True),
        aten.transpose.int: Row(_permute(_transposed_dims), relabel=True),
        aten.t.default: Row(_permute(lambda a, rank: range(rank)[::-1]), relabel=True),
        **dict.fromkeys(VIEWS, Row(_view, relabel=True)),
        **dict.fromkeys(COPIES, Row(_same, relabel=True)),
        aten.dropout.default: Row(_same, _check_dropout, relabel=True),
    }
)

OPERATORS = Table("XNNPACK", _ROWS, _unfit)
