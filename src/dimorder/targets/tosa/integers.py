"""The operators of quantised networks as TOSA INT operators: what is computed between a dequantize and a
quantize, on the integers of both. What no row can compute in integers is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dimorder.errors import UnsupportedError
from dimorder.lowering.capture.scaled import Scaled
from dimorder.lowering.exactly import in_float32
from dimorder.lowering.integer_type import IntegerType
from dimorder.lowering.operators.dialect import OPS as dimorder
from dimorder.lowering.operators.quantisation import DEQUANTIZE, QUANTIZE
from dimorder.targets.table import Arguments, Row, Table, View, whole
from dimorder.targets.tosa import moves, reductions, spatial
from dimorder.targets.tosa.numbers import (
    Accumulator,
    IntegerWriter,
    Lookup,
    Numbers,
    Operand,
    added,
    as_int8,
    as_sum,
    is_int8,
    multiplied,
    on_grid,
    quantised,
)
from dimorder.targets.tosa.ops import unsupported_value
from dimorder.targets.tosa.quotients import layer_norm, softmax
from dimorder.targets.tosa.reductions import reduced_dims
from dimorder.targets.tosa.rescale import rescale
from dimorder.targets.tosa.writer import TosaValue

aten = torch.ops.aten
W = IntegerWriter


def _refuse(found: str) -> UnsupportedError:
    return UnsupportedError("an operator", found, "quantise it")


# -- the boundary of what is computed ----------------------------------------------------------------------


def unfit(value: Any) -> str | None:
    """What keeps a value of a quantised program from being a tensor of TOSA, or None."""
    return None if isinstance(value, Tensor) and value.dtype == torch.uint8 else unsupported_value(value)


def _quantize(w: W, a: Arguments) -> TosaValue:
    of = IntegerType(a.dtype, a.scale, a.zero_point)
    integers = quantised(w, _numbers(w, a.input), of.as_type(torch.int8))
    if of.dtype == torch.int8:
        return integers
    return rescale(w, integers, [1.0], "INT8", zero_point=-128, to_unsigned=True)


def _dequantize(w: W, a: Arguments) -> View[Any]:
    held: View[TosaValue] = a.input
    of = IntegerType(_RANGES[a.quant_min, a.quant_max], a.scale, a.zero_point)
    integers = held.value
    if of.dtype == torch.uint8:
        integers = rescale(w, integers, [1.0], "INT8", to_zero_point=-128, unsigned=True)
    return View(Lookup.dequantised(integers, of.as_type(torch.int8)), held.order)


_RANGES = MappingProxyType({(-128, 127): torch.int8, (0, 255): torch.uint8})


def _check_range(a: Arguments) -> str | None:
    if (a.quant_min, a.quant_max) in _RANGES:
        return None
    return f"integers from {a.quant_min} to {a.quant_max}, where this target has int8, and uint8 at the boundary"


def _numbers(w: W, operand: Any) -> Numbers:
    held = w.dense(operand)
    if isinstance(held, TosaValue):
        raise _refuse(f"{held.dtype}, where quantised values are computed with")
    return held  # type: ignore[no-any-return]


# -- products ----------------------------------------------------------------------------------------------


def _product(write: Callable[..., TosaValue], name: str, of_channels: int) -> Callable[..., Accumulator]:
    """A convolution; `name` is the weight's argument, `of_channels` its dimension of output channels."""

    def build(w: W, a: Arguments) -> Accumulator:
        x, of = as_int8(w, w.dense(a.x))
        weight, scales, zero_point = _weight(getattr(a, name), of_channels)
        scales = scales * in_float32(of.scale)
        bias = _bias(a.bias, scales)
        given = {name: weight, "bias": bias, "x": whole(x), "zero_points": (of.zero_point, zero_point)}
        sums = write(w, SimpleNamespace(**{**vars(a), **given}))
        return Accumulator(sums, scales, _limit(weight.int() - zero_point, bias, of, of_channels))

    return build


def _weight(weight: Any, of_channels: int) -> tuple[Tensor, Tensor, int]:
    """The integers of a constant weight, their scales, one or for each output channel, and the zero point."""
    if not isinstance(weight, Scaled):
        raise _refuse("a weight that is not quantised")
    held = weight.integers
    if held.scale is not None:
        return held.values, torch.tensor([held.scale], dtype=torch.float64), held.zero_point
    scales = held.along(of_channels)
    if scales is None:
        raise _refuse("a weight whose scales are not those of its output channels")
    return held.values, scales.double(), held.zero_point


def _bias(bias: Tensor | None, scales: Tensor) -> Tensor | None:
    if bias is None:
        return None
    held = bias.integers.values if isinstance(bias, Scaled) else (bias.double() / scales).round()
    return held.clamp(-(2**31) + 1, 2**31 - 1).to(torch.int32)


def _limit(weight: Tensor, bias: Tensor | None, of: IntegerType, of_channels: int) -> int:
    """The largest magnitude of a sum, whatever the input."""
    most = max(of.high - of.zero_point, of.zero_point - of.low)
    dims = [d for d in range(weight.dim()) if d != of_channels]
    sums = weight.to(torch.int64).abs().sum(dims) * most
    return int((sums if bias is None else sums + bias.abs()).max())


def _matmul(w: W, a: Arguments) -> Accumulator:
    left, right = a.self, a.other
    if isinstance(right, Tensor):
        x, of = as_int8(w, w.dense(left))
        weight, scales, zero_point = _weight(right.reshape(right.shape[-2:]).t(), 0)
        sums = reductions.full(w, x, weight, None, (of.zero_point, zero_point))
        scales = scales * in_float32(of.scale)
        return Accumulator(sums, scales, _limit(weight.int() - zero_point, None, of, 0))
    if isinstance(left, Tensor):
        return _weight_first(w, left, *as_int8(w, w.dense(right)))
    (x, x_of), (y, y_of) = as_int8(w, w.dense(left)), as_int8(w, w.dense(right))
    sums = reductions.product(w, x, y, (x_of.zero_point, y_of.zero_point))
    scale = torch.tensor(in_float32(x_of.scale) * in_float32(y_of.scale), dtype=torch.float64)
    return Accumulator(sums, scale, x.shape[-1] * 255 * 255)


def _weight_first(w: W, left: Tensor, x: TosaValue, of: IntegerType) -> Accumulator:
    """W x, whose scales are those of rows."""
    weight, scales, zero_point = _weight(left.reshape(left.shape[-2:]), 0)
    sums = reductions.product(w, w.constant(weight), x, (zero_point, of.zero_point))
    scales = (scales * in_float32(of.scale))[:, None]
    return Accumulator(sums, scales, _limit(weight.int() - zero_point, None, of, 0))


def _check_matmul(a: Arguments) -> str | None:
    for operand in (a.self, a.other):
        if a.is_constant(operand) and math.prod(operand.meta["val"].shape[:-2]) != 1:
            return "a batch of constant matrices"
    return reductions.check_matmul(a)


# -- element by element ------------------------------------------------------------------------------------


def _function(target: Any, arithmetic: Callable[..., Numbers] | None = None) -> Callable[[W, Arguments], Any]:
    """An operator that computes each element by itself.

    Where it reads one quantised value, and numbers besides, its result is a function of that value. Else
    `arithmetic` writes it in integers.
    """
    names = [argument.name for argument in target._schema.arguments]
    named = {argument.name for argument in target._schema.arguments if argument.kwarg_only}

    def build(w: W, a: Arguments) -> Numbers:
        given = {name: _operand(w, getattr(a, name)) for name in names}
        held = [x for x in given.values() if isinstance(x, Numbers)]
        lookups = [x for x in held if isinstance(x, Lookup)]
        constants = [x for x in given.values() if isinstance(x, Tensor)]
        if held and len(lookups) == len(held) and all(x.numel() == 1 for x in constants):
            first = lookups[0]
            if all(x.integers == first.integers for x in lookups):
                plain = {name: _plain(x) for name, x in given.items()}
                args = [plain[name] for name in names if name not in named]
                numbers = target(*args, **{name: plain[name] for name in named})
                return replace(first, numbers=numbers)
        if arithmetic is None:
            sums = any(isinstance(x, Accumulator) for x in held)
            raise _refuse("a function of a sum that is not quantised" if sums else "a function of two values")
        return arithmetic(w, SimpleNamespace(**{**vars(a), **given}))

    return build


def _operand(w: W, argument: Any) -> Any:
    if isinstance(argument, View):
        return _numbers(w, argument)
    return argument


def _plain(argument: Any) -> Any:
    if isinstance(argument, Lookup):
        return argument.numbers
    return argument.double().reshape(()) if isinstance(argument, Tensor) else argument


def _constant(argument: Any) -> Operand:
    return argument if isinstance(argument, (Tensor, Numbers)) else torch.tensor([float(argument)])


def _add(w: W, a: Arguments) -> Numbers:
    return added(w, _constant(a.self), _scaled(w, _constant(a.other), a.alpha))


def _subtract(w: W, a: Arguments) -> Numbers:
    return added(w, _constant(a.self), _scaled(w, _constant(a.other), a.alpha), "SUB")


def _multiply(w: W, a: Arguments) -> Numbers:
    return _times(w, _constant(a.self), _constant(a.other))


def _times(w: W, x: Operand, y: Operand) -> Numbers:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Tensor) and one.numel() == 1 and not isinstance(other, Tensor):
            return _scaled(w, other, float(one))  # type: ignore[return-value]
    return multiplied(w, x, y)


def _divide(w: W, a: Arguments) -> Numbers:
    y = _constant(a.other)
    if isinstance(y, Tensor):
        return _times(w, _constant(a.self), 1 / y.double())
    if isinstance(y, Lookup):
        return _times(w, _constant(a.self), replace(y, numbers=1 / y.numbers))
    raise _refuse("a division by a sum that is not quantised")


def _scaled(w: W, x: Operand, factor: float) -> Operand:
    if factor == 1:
        return x
    if isinstance(x, Tensor):
        return x * factor
    if isinstance(x, Lookup):
        return replace(x, numbers=x.numbers * factor)
    if factor <= 0:
        return multiplied(w, x, torch.tensor([factor]))
    return replace(x, scales=x.scales * factor, low=x.low * factor, high=x.high * factor)


def _extreme(kind: str) -> Callable[[W, Arguments], Numbers]:
    def build(w: W, a: Arguments) -> Numbers:
        x, y = _constant(a.self), _constant(a.other)
        if isinstance(x, Lookup) and isinstance(y, Lookup) and x.of == y.of:
            (p, of), (q, _) = as_int8(w, x), as_int8(w, y)
            wide = [W.elementwise(w, "CAST", v, dtype="INT32") for v in (p, q)]
            chosen = w.elementwise(kind, *wide)
            return Lookup.dequantised(w.elementwise("CAST", chosen, dtype="INT8"), of)
        return added(w, x, y, kind)

    return build


def _bounded(bounds: Callable[[Arguments], tuple[float | None, float | None]]) -> Callable[..., Numbers]:
    """A clamp of a sum: held until that is quantised, which clips it."""

    def build(w: W, a: Arguments) -> Numbers:
        x = next(value for value in vars(a).values() if isinstance(value, Numbers))
        low, high = bounds(a)
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        assert isinstance(x, Accumulator)
        return replace(x, low=min(max(x.low, low), high), high=max(min(x.high, high), low))

    return build


def _prelu(w: W, a: Arguments) -> Numbers:
    """max(x, 0) + weight · min(x, 0)"""
    if not isinstance(a.x, Lookup):
        raise _refuse("a function of a sum that is not quantised")
    positive, negative = (replace(a.x, numbers=n) for n in (a.x.numbers.clamp(0), a.x.numbers.clamp(max=0)))
    return added(w, positive, _times(w, a.weight, negative))


# -- reductions, pools -------------------------------------------------------------------------------------


def _sum(w: W, a: Arguments) -> Accumulator:
    return _summed(w, _numbers(w, a.self), reduced_dims(a), a.shape)


def _mean(w: W, a: Arguments) -> Numbers:
    dims = reduced_dims(a)
    count = math.prod(a.self.shape[d] for d in dims)
    return _scaled(w, _summed(w, _numbers(w, a.self), dims, a.shape), 1 / count)  # type: ignore[return-value]


def _summed(w: W, x: Numbers, dims: set[int], shape: tuple[int, ...]) -> Accumulator:
    """Of int8 over neighbours by a convolution with ones, which reads them as they lie: Vela transposes what
    REDUCE_SUM adds up along any but the last dimension."""
    kernel = _kernel(x.shape, dims)
    if isinstance(x, Lookup) and kernel is not None and is_int8(x):
        values, of = as_int8(w, x)
        first, last = min(dims), max(dims)
        outer, channels = math.prod(x.shape[:first]), math.prod(x.shape[last + 1 :])
        total = _with_ones(w, w.reshape(values, (outer, *kernel, channels)), of, kernel, (1, 1))
        return w.reshape(total, shape)  # type: ignore[no-any-return]
    held = as_sum(w, x)
    limit = held.limit * math.prod(x.shape[d] for d in dims)
    total = reductions.reduce(w, "REDUCE_SUM", held.integers, dims)
    return Accumulator(w.reshape(total, shape), held.scales, limit)


MAX_KERNEL = 64  # that Ethos-U has, in height and in width


def _kernel(shape: tuple[int, ...], dims: set[int]) -> tuple[int, int] | None:
    """The window that holds neighbouring dimensions, if it has both sides and something is behind it."""
    sizes = [shape[d] for d in sorted(dims)]
    if len(dims) != max(dims, default=0) - min(dims, default=0) + 1 or max(dims, default=0) == len(shape) - 1:
        return None
    sides = (sizes[0], math.prod(sizes[1:])) if sizes else (1, 1)
    return sides if 1 < math.prod(sides) and max(sides) <= MAX_KERNEL else None


def _with_ones(
    w: W,
    x: TosaValue,
    of: IntegerType,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] = (0, 0),
    shape: tuple[int, ...] | None = None,
) -> Accumulator:
    """The sums of windows of int8 (N, H, W, C), in which padding counts for nothing."""
    channels = x.shape[-1]
    ones = torch.ones(channels, *kernel, 1, dtype=torch.int8)
    call = SimpleNamespace(
        x=whole(x),
        weight_ohwi=ones,
        bias=None,
        stride=stride,
        padding=[p for p in padding for _ in range(2)],
        dilation=[1, 1],
        groups=channels,
        shape=shape or (x.shape[0], 1, 1, channels),
        zero_points=(of.zero_point, 0),
    )
    scale = torch.tensor([in_float32(of.scale)], dtype=torch.float64)
    return Accumulator(spatial.convolution(w, call), scale, _limit(ones, None, of, 0))


def _extreme_of(kind: str) -> Callable[[W, Arguments], Lookup]:
    def build(w: W, a: Arguments) -> Lookup:
        x, of = as_int8(w, w.dense(a.self))
        y = reductions.reduce(w, kind, x, reduced_dims(a))
        return Lookup.dequantised(w.reshape(y, a.shape), of)

    return build


def _softmax(w: W, a: Arguments) -> Accumulator:
    x = w.dense(a.self)
    if not isinstance(x, Lookup):
        raise _refuse("a softmax of what is not quantised")
    return softmax(w, x, a.dim % len(x.shape))


def _layer_norm(w: W, a: Arguments) -> Accumulator:
    x = w.dense(a.input)
    if not isinstance(x, Lookup):
        raise _refuse("a normalisation of what is not quantised")
    rank = len(x.shape)
    dims = range(rank - len(a.normalized_shape), rank)
    return layer_norm(w, x, set(dims), a.weight, a.bias, a.eps)


def _check_layer_norm(a: Arguments) -> str | None:
    constant = a.is_constant(a.weight) and a.is_constant(a.bias)
    return None if constant else "a weight or a bias that is not constant"


def _max_pool(w: W, a: Arguments) -> Lookup:
    x, of = as_int8(w, w.dense(a.x))
    y = spatial.max_pool(w, x, a.kernel_size, a.stride, a.padding, a.shape)
    return Lookup.dequantised(y, of)


def _avg_pool(w: W, a: Arguments) -> Numbers:
    """A depthwise convolution with ones, and the reciprocals of how many elements lie in each window."""
    x, of = as_int8(w, w.dense(a.x))
    total = _with_ones(w, x, of, a.kernel_size, a.stride, a.padding, a.shape)
    counts = _counts(a, x.shape[1:3])
    if bool((counts == counts.flatten()[0]).all()):
        return _scaled(w, total, 1 / float(counts.flatten()[0]))  # type: ignore[return-value]
    return multiplied(w, total, (1 / counts)[None, :, :, None])


def _counts(a: Arguments, sizes: tuple[int, ...]) -> Tensor:
    """By how much torch divides each window: what lies in the input, or in its padding too."""
    if a.divisor_override is not None:
        return torch.full((1, 1), a.divisor_override, dtype=torch.float64)
    along = []
    for size, kernel, step, pad, count in zip(
        sizes, a.kernel_size, a.stride, a.padding, a.shape[1:3], strict=True
    ):
        begin = torch.arange(count) * step - pad
        end = (begin + kernel).clamp(max=size + pad)
        if not a.count_include_pad:
            begin, end = begin.clamp(min=0), end.clamp(max=size)
        along.append((end - begin).double())
    return along[0][:, None] * along[1][None, :]


def _nearest(w: W, a: Arguments) -> Lookup:
    x, of = as_int8(w, w.dense(a.x))
    y = spatial.nearest(w, SimpleNamespace(**{**vars(a), "x": whole(x)}))
    return Lookup.dequantised(y, of)


# -- moves -------------------------------------------------------------------------------------------------


def _moved(row: Row) -> Row:
    """A move of one value: of integers as it is, of numbers by their integers."""

    def build(w: W, a: Arguments) -> Any:
        if not isinstance(a.self, View) or isinstance(a.self.value, TosaValue):
            return row.build(w, a)
        held = a.self.value
        if isinstance(held, Accumulator):
            held = as_sum(w, held)
        inner = View(held.integers, a.self.order)
        result = row.build(w, SimpleNamespace(**{**vars(a), "self": inner}))
        if isinstance(result, View):
            return View(held.with_integers(result.value), result.order)
        return held.with_integers(result)

    return Row(build, row.check, row.relabel)


def _cat(w: W, a: Arguments) -> Any:
    dim = a.dim % len(a.shape)
    if not a.dtype.is_floating_point:
        return moves.concat(w, [w.dense(x) for x in a.tensors], dim)
    operands: list[Operand] = [_operand(w, x) for x in a.tensors]
    step = max(float(x.abs().max()) if isinstance(x, Tensor) else x.most for x in operands) / 2**29
    joined = moves.concat(w, [on_grid(w, x, step) for x in operands], dim)
    return Accumulator(joined, torch.tensor(step, dtype=torch.float64), 2**29 + 1)


def _pad(w: W, a: Arguments) -> Any:
    value = getattr(a, "value", None) or 0
    held = w.dense(a.self)
    if isinstance(held, TosaValue):
        return _constant_pad(w, held, a, value)
    if value == 0 and not isinstance(held, Lookup):
        held = as_sum(w, held)
        return held.with_integers(_constant_pad(w, held.integers, a, 0))
    x, of = as_int8(w, held)
    fill = value / in_float32(of.scale) + of.zero_point
    if abs(fill - round(fill)) > 1e-6 or not of.low <= round(fill) <= of.high:
        raise _refuse(f"a padding of {value}, which no integer stands for")
    return Lookup.dequantised(_constant_pad(w, x, a, round(fill)), of)


def _constant_pad(w: W, x: TosaValue, a: Arguments, fill: float) -> TosaValue:
    before, after = moves.paddings(a.pad, len(x.shape))
    return moves.pad(w, x, before, after, fill)


# -- the table ---------------------------------------------------------------------------------------------

_UNARY = (
    *(aten.abs.default, aten.neg.default, aten.square.default, aten.reciprocal.default, aten.sqrt.default),
    *(aten.rsqrt.default, aten.exp.default, aten.log.default, aten.sin.default, aten.cos.default),
    *(aten.erf.default, aten.floor.default, aten.ceil.default, aten.sigmoid.default, aten.tanh.default),
    *(aten.hardsigmoid.default, aten.hardswish.default, aten.silu.default, aten.mish.default),
    *(aten.softplus.default, aten.gelu.default, aten.elu.default, aten.leaky_relu.default),
    aten.pow.Tensor_Scalar,
)
_CLAMPS: Mapping[Any, Callable[[Arguments], tuple[float | None, float | None]]] = MappingProxyType(
    {
        aten.relu.default: lambda a: (0.0, None),
        aten.relu6.default: lambda a: (0.0, 6.0),
        aten.hardtanh.default: lambda a: (a.min_val, a.max_val),
        aten.clamp.default: lambda a: (a.min, a.max),
        aten.clamp_min.default: lambda a: (a.min, None),
        aten.clamp_max.default: lambda a: (None, a.max),
    }
)
_BINARY: Mapping[Any, Callable[[W, Arguments], Numbers]] = MappingProxyType(
    {
        **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), _add),
        **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), _subtract),
        **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _multiply),
        **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), _divide),
        aten.maximum.default: _extreme("MAXIMUM"),
        aten.minimum.default: _extreme("MINIMUM"),
        dimorder.prelu_last.default: _prelu,
    }
)
_MOVES = (
    *(aten.slice.Tensor, aten.expand.default, aten.flip.default, aten.permute.default),
    *(aten.view.default, aten.clone.default),
)

OPERATORS = Table(
    "TOSA INT",
    MappingProxyType(
        {
            QUANTIZE: Row(_quantize, _check_range),
            DEQUANTIZE: Row(_dequantize, _check_range),
            dimorder.conv2d_nhwc.default: Row(
                _product(spatial.convolution, "weight_ohwi", 0), spatial.check_convolution
            ),
            dimorder.conv3d_ndhwc.default: Row(
                _product(spatial.convolution, "weight_odhwi", 0), spatial.check_convolution
            ),
            dimorder.conv_transpose2d_nhwc.default: Row(
                _product(spatial.conv_transpose2d, "weight_ohwi", 0), spatial.check_transposed
            ),
            aten.matmul.default: Row(_matmul, _check_matmul),
            **{target: Row(_function(target)) for target in _UNARY},
            **{target: Row(_function(target, _bounded(ends))) for target, ends in _CLAMPS.items()},
            **{target: Row(_function(target, write)) for target, write in _BINARY.items()},
            aten.sum.dim_IntList: Row(_sum),
            aten.mean.dim: Row(_mean),
            aten.amax.default: Row(_extreme_of("REDUCE_MAX")),
            aten.amin.default: Row(_extreme_of("REDUCE_MIN")),
            aten.softmax.int: Row(_softmax),
            aten.layer_norm.default: Row(_layer_norm, _check_layer_norm),
            dimorder.max_pool2d_nhwc.default: Row(_max_pool, spatial.check_max_pool),
            dimorder.avg_pool2d_nhwc.default: Row(_avg_pool),
            dimorder.upsample_nearest2d_nhwc.default: Row(_nearest),
            **{target: _moved(moves.ROWS[target]) for target in _MOVES},
            aten.cat.default: Row(_cat),
            aten.constant_pad_nd.default: Row(_pad),
        }
    ),
    lambda value, is_constant: None if is_constant and not value.dim() else unfit(value),
)
