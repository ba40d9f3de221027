"""The operators that XNNPACK computes: one row per operator of a physical program.

A row says when the operator is supported and which XNNPACK nodes compute it; nothing here chooses an order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node

from dimorder.lowering.operators import dialect as dialect  # registers torch.ops.dimorder
from dimorder.lowering.operators.convolution import PART_TAPS
from dimorder.targets.table import Arguments, Row, Table, View, is_conversion, is_transposed, results

if TYPE_CHECKING:
    from dimorder.targets.xnnpack.backend import XnnValue, XnnWriter

aten = torch.ops.aten
dimorder = torch.ops.dimorder

MAX_RANK = 6  # XNN_MAX_TENSOR_DIMS
MAX_CONCATENATED = 5

Build: TypeAlias = "Callable[[XnnWriter, Arguments], XnnValue | View[XnnValue]]"


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


def wrong_outside(node: Node) -> str | None:
    """Why no portable kernel of ExecuTorch 1.5.1 computes a call of a physical program right, or None.

    Whether the runtime that is installed has the kernel is asked when the file is made.
    """
    value = results(node)[0]
    if getattr(node.target, "namespace", None) == "dimorder":
        return f"ExecuTorch has no {node.target}"
    if any(map(is_transposed, node.all_input_nodes)):
        return "portable kernels read no transposed operand"
    if node.target is aten.linear.default:
        return "ExecuTorch transposes the weight at each call"
    if node.target is aten.convolution.default and value.ndim > 4:
        return "the portable kernel convolves in one and two dimensions"
    if node.target in (aten.remainder.Scalar, aten.remainder.Tensor) and not value.is_floating_point():
        return "the portable kernel gives the remainder of a negative integer the sign that C gives it"
    return None


# Elementwise


def _unary(kind: str) -> Build:
    return lambda w, a: _apply(w, kind, w.dense(a.self))


def _apply(w: XnnWriter, kind: str, x: XnnValue, **fields: Any) -> XnnValue:
    return w.node(kind, x.shape, input_id=x.id, **fields)


def _pair(w: XnnWriter, kind: str, x: XnnValue, y: XnnValue) -> XnnValue:
    return w.node(kind, _broadcast(x.shape, y.shape), input1_id=x.id, input2_id=y.id)


def _broadcast(x: Sequence[int], y: Sequence[int]) -> list[int]:
    rank = max(len(x), len(y))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in (x, y)]
    return [b if a == 1 else a for a, b in zip(*padded, strict=True)]


def _times(w: XnnWriter, x: XnnValue, factor: float) -> XnnValue:
    return x if factor == 1 else _pair(w, "Multiply", x, w.dense(factor))


def _plus(w: XnnWriter, x: XnnValue, term: float) -> XnnValue:
    return _pair(w, "Add", x, w.dense(term))


def _binary(kind: str, *, reverse: bool = False) -> Build:
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
    return _pair(w, "Multiply", x, _apply(w, "Sigmoid", x))


def _gelu(w: XnnWriter, a: Arguments) -> XnnValue:
    x = w.dense(a.self)
    if a.approximate == "none":
        return _apply(w, "Gelu", x)
    # 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    cubic = _plus(w, _times(w, _apply(w, "Square", x), 0.044715), 1)
    inner = _times(w, _pair(w, "Multiply", x, cubic), math.sqrt(2 / math.pi))
    gate = _plus(w, _times(w, _apply(w, "Tanh", inner), 0.5), 0.5)
    return _pair(w, "Multiply", x, gate)


def _elu(w: XnnWriter, a: Arguments) -> XnnValue:
    return _apply(w, "ELU", w.dense(a.self), alpha=float(a.alpha))


def _check_elu(a: Arguments) -> str | None:
    if (a.scale, a.input_scale) != (1, 1) or a.alpha <= 0:
        return "elu with a scale, an input scale or an alpha that is not positive"
    return None


def _leaky_relu(w: XnnWriter, a: Arguments) -> XnnValue:
    return _apply(w, "LeakyReLU", w.dense(a.self), negative_slope=float(a.negative_slope))


def _prelu_last(w: XnnWriter, a: Arguments) -> XnnValue:
    return _pair(w, "PReLU", w.dense(a.x), w.dense(a.weight))


def _reciprocal(w: XnnWriter, a: Arguments) -> XnnValue:
    return _pair(w, "Div", w.dense(1.0), w.dense(a.self))


def _power(w: XnnWriter, a: Arguments) -> XnnValue:
    """Whole exponents by squaring, half ones by a root too, negative ones by a division."""
    x, exponent = w.dense(a.self), abs(a.exponent)
    if a.exponent == -0.5:
        return _apply(w, "ReciprocalSquareRoot", x)
    whole, square, y = int(exponent), x, None
    if exponent != whole:
        y = _apply(w, "SquareRoot", x)
    while whole:
        if whole % 2:
            y = square if y is None else _pair(w, "Multiply", y, square)
        whole //= 2
        if whole:
            square = _apply(w, "Square", square)
    assert y is not None
    return y if a.exponent > 0 else _pair(w, "Div", w.dense(1.0), y)


MAX_EXPONENT = 16  # beyond, rounding errors of products add up


def _check_power(a: Arguments) -> str | None:
    if a.exponent == 0 or (2 * a.exponent) % 1 or abs(a.exponent) > MAX_EXPONENT:
        return f"the exponent {a.exponent}; XNNPACK has products and square roots"
    return None


# Contractions


def _full(w: XnnWriter, x: XnnValue, weight: XnnValue, bias: XnnValue | None) -> XnnValue:
    """x (…, I) times weight (O, I), plus bias (O)."""
    return w.node(
        "FullyConnected",
        (*x.shape[:-1], weight.shape[0]),
        input1_id=x.id,
        filter_id=weight.id,
        bias_id=None if bias is None else bias.id,
    )


def _linear(w: XnnWriter, a: Arguments) -> XnnValue:
    return _full(w, w.dense(a.input), w.dense(a.weight), _optional(w, a.bias))


def _check_linear(a: Arguments) -> str | None:
    return None if a.is_constant(a.bias) else "a bias that is not constant"


def _optional(w: XnnWriter, operand: Any) -> XnnValue | None:
    return None if operand is None else w.dense(operand)


def _matmul(w: XnnWriter, a: Arguments) -> XnnValue:
    left, right = a.self, a.other
    if isinstance(right, Tensor) and right.ndim == 2:
        return _full(w, w.dense(left), w.constant(right.t()), None)
    x = w.dense(left)
    batch, rows = (x.shape[:-2], x.shape[-2]) if len(right.shape) > 2 else ((1,), math.prod(x.shape[:-1]))
    x = w.reshape(x, (*batch, rows, x.shape[-1]))
    flags: tuple[str, ...] = ()
    y, columns = None, right.shape[-1]
    if isinstance(right, View) and right.order == _last_two_swapped(len(right.order)):
        flags, y = ("TRANSPOSE_B",), right.value
    y = y or w.dense(right)
    y = w.reshape(y, (*batch, *y.shape[-2:]))
    return w.node("BatchMatrixMultiply", (*batch, rows, columns), flags=flags, input1_id=x.id, input2_id=y.id)


def _last_two_swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _check_matmul(a: Arguments) -> str | None:
    left, right = (tuple(operand.meta["val"].shape) for operand in (a.self, a.other))
    if min(len(left), len(right)) < 2:
        return "a product with a vector"
    if is_transposed(a.self):
        return "a product whose left operand lies transposed"
    if len(right) > 2 and left[:-2] != right[:-2]:
        return f"batches that broadcast: {left} by {right}"
    return None


# Convolution: NHWC, weights (O, KH, KW, I/groups), padding (top, bottom, left, right)


def _conv2d(w: XnnWriter, a: Arguments) -> XnnValue:
    x, weight, bias = w.dense(a.x), a.weight_ohwi, a.bias
    if _is_depthwise(a.groups, weight.shape):
        return _depthwise(w, x, weight.permute(3, 1, 2, 0), bias, a.stride, a.padding, a.dilation, a.shape)
    return _convolve(w, "Conv2d", x, weight, bias, a.stride, a.padding, a.dilation, a.groups, a.shape)


def _is_depthwise(groups: int, weight_ohwi: Sequence[int]) -> bool:
    return groups > 1 and weight_ohwi[3] == 1


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
    """Weight (1, KH, KW, O)."""
    arguments = (stride, padding, dilation, x.shape[3], shape)
    return _convolve(w, "DepthwiseConv2d", x, weight, bias, *arguments)


def _conv_transpose2d(w: XnnWriter, a: Arguments) -> XnnValue:
    (vertical, horizontal), x = a.padding, w.dense(a.x)
    padding = (vertical, vertical, horizontal, horizontal)
    arguments = (x, a.weight_ohwi, a.bias, a.stride, padding, a.dilation, a.groups, a.shape)
    return _convolve(w, "ConvTranspose2d", *arguments, adjustment=a.output_padding)


def _check_conv(a: Arguments) -> str | None:
    if not (a.is_constant(a.weight_ohwi) and a.is_constant(a.bias)):
        return "a weight or a bias that is not constant"
    output_padding = getattr(a, "output_padding", (0, 0))
    if any(added >= step for added, step in zip(output_padding, a.stride, strict=True) if added):
        return f"an output padding {output_padding} that is not below the stride {a.stride}"
    return None


def _check_conv2d(a: Arguments) -> str | None:
    """A depthwise kernel of many taps is computed, but by no fast kernel (see convolution.PART_TAPS)."""
    weight = tuple(a.weight_ohwi.meta["val"].shape)
    taps = math.prod(weight[1:3])
    if _is_depthwise(a.groups, weight) and taps > PART_TAPS:
        return f"a depthwise kernel of {taps} taps; XNNPACK is fast up to {PART_TAPS}"
    return _check_conv(a)


def _convolve(
    w: XnnWriter,
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
    depthwise = kind == "DepthwiseConv2d"
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
        bias_id=None if bias_value is None else bias_value.id,
    )


# Pooling and resizing, NHWC


def _max_pool2d(w: XnnWriter, a: Arguments) -> XnnValue:
    x = w.dense(a.x)
    if list(a.kernel_size) == [1, 1]:
        return _subsample(w, x, a.stride, a.shape)
    return _pool(w, "MaxPooling2d", x, a, a.padding, a.dilation)


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
    return _times(w, _pool(w, "AvgPooling2d", x, a, padding, (1, 1)), factor)


def _pool(
    w: XnnWriter, kind: str, x: XnnValue, a: Arguments, padding: Sequence[int], dilation: Sequence[int]
) -> XnnValue:
    below, beside = _overhang(x, a, padding, dilation)
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
        "StaticResizeBilinear2D",
        a.shape,
        flags=("ALIGN_CORNERS",) if a.align_corners else (),
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
    return _pair(w, "Multiply", spread, w.constant(torch.ones(1, 1, down, 1, across, 1)))


def _check_nearest(a: Arguments) -> str | None:
    sizes = zip(a.output_size, a.x.meta["val"].shape[1:3], (a.scales_h, a.scales_w), strict=True)
    for new, old, scale in sizes:
        if new % old or (scale is not None and scale != new / old):
            return f"nearest from {old} to {new}, which is no whole multiple"
    return None


# Normalisation and reduction


def _softmax(w: XnnWriter, a: Arguments) -> XnnValue:
    return _apply(w, "Softmax", w.dense(a.self))


def _check_softmax(a: Arguments) -> str | None:
    rank = a.self.meta["val"].ndim
    return None if a.dim % rank == rank - 1 else f"softmax over dimension {a.dim} of {rank}, not the last"


def _layer_norm(w: XnnWriter, a: Arguments) -> XnnValue:
    x = w.dense(a.input)
    size = math.prod(a.normalized_shape)
    x = w.reshape(x, (*x.shape[: len(x.shape) - len(a.normalized_shape)], size))
    average = w.constant(torch.full((1, size), 1 / size))
    centred = _pair(w, "Subtract", x, _full(w, x, average, None))
    variance = _full(w, _apply(w, "Square", centred), average, w.constant(torch.tensor([a.eps])))
    y = _pair(w, "Multiply", centred, _apply(w, "ReciprocalSquareRoot", variance))
    if a.weight is not None:
        y = _pair(w, "Multiply", y, w.reshape(w.dense(a.weight), (size,)))
    if a.bias is not None:
        y = _pair(w, "Add", y, w.reshape(w.dense(a.bias), (size,)))
    return y


def _reduce(mean: bool) -> Build:
    def build(w: XnnWriter, a: Arguments) -> XnnValue:
        x = w.dense(a.self)
        reduced = {d % len(x.shape) for d in a.dim}
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
    return w.node("GlobalAvgPooling2d", (n, 1, 1, channels), flags=("KEEP_DIMS",), input_id=x.id)


# Moving elements


def _clone(w: XnnWriter, a: Arguments) -> View[XnnValue] | XnnValue:
    return w.transposed(a.self) if is_conversion(a) else a.self


def _permute(w: XnnWriter, a: Arguments) -> View[XnnValue]:
    return a.self.permute([d % len(a.self.shape) for d in a.dims])  # type: ignore[no-any-return]


def _view(w: XnnWriter, a: Arguments) -> View[XnnValue] | XnnValue:
    if tuple(a.self.shape) == a.shape:
        return a.self  # type: ignore[no-any-return]
    return w.reshape(w.dense(a.self), a.shape)


def _expand(w: XnnWriter, a: Arguments) -> View[XnnValue] | XnnValue:
    """Broadcasting is a product with ones in the dimensions that grow."""
    old = (1,) * (len(a.shape) - len(a.self.shape)) + tuple(a.self.shape)
    if old == a.shape:
        return _view(w, a)
    ones = [new if new != size else 1 for new, size in zip(a.shape, old, strict=True)]
    return _pair(w, "Multiply", w.reshape(w.dense(a.self), old), w.constant(torch.ones(ones)))


def _slice(w: XnnWriter, x: XnnValue, offsets: Sequence[int], sizes: Sequence[int]) -> XnnValue:
    if tuple(sizes) == x.shape:
        return x
    return w.node(
        "StaticSlice",
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
    ids = [value.id for value in values] + [None] * (MAX_CONCATENATED - len(values))
    inputs: dict[str, Any] = {f"input{i}_id": index for i, index in enumerate(ids, start=1)}
    return w.node(f"Concatenate{len(values)}", shape, axis=axis, **inputs)


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
        "StaticConstantPad",
        [b + size + c for b, size, c in zip(before, x.shape, after, strict=True)],
        pre_paddings=list(before),
        post_paddings=list(after),
        padding_value=value,
        input_id=x.id,
    )


_ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        dimorder.conv2d_nhwc.default: Row(_conv2d, _check_conv2d),
        dimorder.conv_transpose2d_nhwc.default: Row(_conv_transpose2d, _check_conv),
        dimorder.max_pool2d_nhwc.default: Row(_max_pool2d, _check_subsample),
        dimorder.avg_pool2d_nhwc.default: Row(_avg_pool2d, _check_subsample),
        dimorder.upsample_bilinear2d_nhwc.default: Row(_bilinear, _check_bilinear),
        dimorder.upsample_nearest2d_nhwc.default: Row(_nearest, _check_nearest),
        dimorder.prelu_last.default: Row(_prelu_last),
        aten.linear.default: Row(_linear, _check_linear),
        aten.matmul.default: Row(_matmul, _check_matmul),
        aten.add.Tensor: Row(_binary("Add")),
        aten.add.Scalar: Row(_binary("Add")),
        aten.sub.Tensor: Row(_binary("Subtract")),
        aten.sub.Scalar: Row(_binary("Subtract")),
        aten.rsub.Tensor: Row(_binary("Subtract", reverse=True)),
        aten.rsub.Scalar: Row(_binary("Subtract", reverse=True)),
        aten.mul.Tensor: Row(_binary("Multiply")),
        aten.mul.Scalar: Row(_binary("Multiply")),
        aten.div.Tensor: Row(_binary("Div")),
        aten.div.Scalar: Row(_binary("Div")),
        aten.maximum.default: Row(_binary("Maximum")),
        aten.minimum.default: Row(_binary("Minimum")),
        aten.relu.default: Row(lambda w, a: w.clamp(w.dense(a.self), 0, math.inf)),
        aten.relu6.default: Row(lambda w, a: w.clamp(w.dense(a.self), 0, 6)),
        aten.hardtanh.default: Row(
            lambda w, a: w.clamp(w.dense(a.self), a.min_val, a.max_val),
            lambda a: None if a.min_val < a.max_val else f"the empty range [{a.min_val}, {a.max_val}]",
        ),
        aten.clamp.default: Row(_clamp, _check_clamp),
        aten.clamp_min.default: Row(_clamp),
        aten.clamp_max.default: Row(_clamp),
        aten.hardswish.default: Row(_unary("Hardswish")),
        aten.hardsigmoid.default: Row(_hardsigmoid),
        aten.silu.default: Row(_silu),
        aten.gelu.default: Row(_gelu),
        aten.elu.default: Row(_elu, _check_elu),
        aten.leaky_relu.default: Row(_leaky_relu),
        aten.sigmoid.default: Row(_unary("Sigmoid")),
        aten.tanh.default: Row(_unary("Tanh")),
        aten.exp.default: Row(_unary("Exp")),
        aten.log.default: Row(_unary("Log")),
        aten.sin.default: Row(_unary("Sin")),
        aten.cos.default: Row(_unary("Cos")),
        aten.sqrt.default: Row(_unary("SquareRoot")),
        aten.rsqrt.default: Row(_unary("ReciprocalSquareRoot")),
        aten.abs.default: Row(_unary("Abs")),
        aten.neg.default: Row(_unary("Negate")),
        aten.floor.default: Row(_unary("Floor")),
        aten.ceil.default: Row(_unary("Ceiling")),
        aten.square.default: Row(_unary("Square")),
        aten.pow.Tensor_Scalar: Row(_power, _check_power),
        aten.reciprocal.default: Row(_reciprocal),
        aten.softmax.int: Row(_softmax, _check_softmax),
        aten.layer_norm.default: Row(_layer_norm),
        aten.mean.dim: Row(_reduce(mean=True)),
        aten.sum.dim_IntList: Row(_reduce(mean=False)),
        aten.cat.default: Row(_cat),
        aten.slice.Tensor: Row(_slice_tensor, _check_slice),
        aten.constant_pad_nd.default: Row(_constant_pad),
        aten.expand.default: Row(_expand),
        aten.permute.default: Row(_permute, relabel=True),
        aten.view.default: Row(_view, relabel=True),
        aten.clone.default: Row(_clone, relabel=True),
    }
)

OPERATORS = Table("XNNPACK", _ROWS, _unfit)
