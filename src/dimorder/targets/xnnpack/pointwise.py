"""Write pointwise operators as XNNPACK nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE, IntegerType
from dimorder.ops.dialect import OPS
from dimorder.ops.pointwise import CLAMP_BOUNDS, clamp_bounds
from dimorder.ops.quantization import FAKE_QUANTIZE_DYNAMIC
from dimorder.physical.fuse_quantized import MOVE, FoundKernel
from dimorder.targets.integer_kernels import (
    CHOICE,
    FUNCTION,
    OTHERWISE,
    PLUS,
    TIMES,
    unfit_dynamic,
    unfit_quantize,
)
from dimorder.targets.rows import MAX_EXPONENT, by_overload
from dimorder.targets.table import Arguments, Row, View, has_exact_numbers

if TYPE_CHECKING:
    from dimorder.targets.xnnpack.builder import XnnBuilder
    from dimorder.targets.xnnpack.graph import XnnValue

aten = torch.ops.aten

FLOAT16 = frozenset((torch.float16,))

Build: TypeAlias = "Callable[[XnnBuilder, Arguments], XnnValue | View[XnnValue]]"


def _unary(kind: str) -> Build:
    return lambda w, a: apply(w, kind, w.dense(a.self))


def _single(kind: str) -> Row:
    """Return the row of a function that one node computes, in float16 too.

    Sigmoid, tanh, exp and hardswish are too inexact in float16. They return 0 for small results, or are off
    in the last digit. Hardswish rounds the factor 1/6, so that it is always off to the same side.
    """
    return Row(_unary(kind), halves=is_float16, kernel=FUNCTION)


def is_float16(a: Arguments) -> bool:
    """Return whether all floats of a call are float16. For bfloat16 XNNPACK has only casts and moves."""
    return bool(a.floats == FLOAT16)


def apply(w: XnnBuilder, kind: str, x: XnnValue, **fields: Any) -> XnnValue:
    return w.node(kind, x.shape, input_id=x.id, **fields)


def pair(w: XnnBuilder, kind: str, x: XnnValue, y: XnnValue) -> XnnValue:
    return w.node(kind, _broadcast(x.shape, y.shape), input1_id=x.id, input2_id=y.id)


def _broadcast(x: Sequence[int], y: Sequence[int]) -> list[int]:
    rank = max(len(x), len(y))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in (x, y)]
    return [b if a == 1 else a for a, b in zip(*padded, strict=True)]


def times(w: XnnBuilder, x: XnnValue, factor: float) -> XnnValue:
    return x if factor == 1 else pair(w, "Multiply", x, w.dense(factor))


def plus(w: XnnBuilder, x: XnnValue, term: float) -> XnnValue:
    return pair(w, "Add", x, w.dense(term))


def _binary(kind: str, kernel: FoundKernel = PLUS, *, reverse: bool = False) -> Row:
    def build(w: XnnBuilder, a: Arguments) -> XnnValue:
        alpha = getattr(a, "alpha", 1)
        x, y = w.dense(a.self), w.dense(a.other)
        if reverse:
            return pair(w, kind, y, times(w, x, alpha))
        return pair(w, kind, x, times(w, y, alpha))

    return Row(
        build,
        halves=lambda a: _has_its_numbers(a) and getattr(a, "alpha", 1) == 1,
        kernel=lambda a: kernel if getattr(a, "alpha", 1) == 1 else None,
    )


def _clamp(target: Any) -> Row:
    def build(w: XnnBuilder, a: Arguments) -> XnnValue:
        return w.clamp(w.dense(a.self), *clamp_bounds(target, vars(a)))

    def check(a: Arguments) -> str | None:
        low, high = clamp_bounds(target, vars(a))
        return f"the empty range [{low}, {high}]" if low >= high else None

    return Row(build, check, halves=_keeps_bounds, kernel=FUNCTION)


def _has_its_numbers(a: Arguments) -> bool:
    return is_float16(a) and has_exact_numbers(a)


def _keeps_bounds(a: Arguments) -> bool:
    """Return whether the bounds of a clamp stay distinct in half precision."""
    bounds = {number for number in vars(a).values() if type(number) in (int, float)}
    return is_float16(a) and len({float(torch.tensor(b, dtype=a.dtype)) for b in bounds}) == len(bounds)


def _hardsigmoid(w: XnnBuilder, a: Arguments) -> XnnValue:
    return w.clamp(plus(w, times(w, w.dense(a.self), 1 / 6), 0.5), 0, 1)


def _silu(w: XnnBuilder, a: Arguments) -> XnnValue:
    x = w.dense(a.self)
    return pair(w, "Multiply", x, apply(w, "Sigmoid", x))


def _gelu(w: XnnBuilder, a: Arguments) -> XnnValue:
    x = w.dense(a.self)
    if a.approximate == "none":
        return apply(w, "Gelu", x)
    # 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    cubic = plus(w, times(w, apply(w, "Square", x), 0.044715), 1)
    inner = times(w, pair(w, "Multiply", x, cubic), math.sqrt(2 / math.pi))
    gate = plus(w, times(w, apply(w, "Tanh", inner), 0.5), 0.5)
    return pair(w, "Multiply", x, gate)


def _quantize(w: XnnBuilder, a: Arguments) -> XnnValue:
    return w.quantize(w.dense(a.input), IntegerType(a.dtype, a.scale, a.zero_point))


def _check_quantize(a: Arguments) -> str | None:
    return unfit_quantize(a, "XNNPACK", ", as XNNPACKQuantizer makes them")


def _elu(w: XnnBuilder, a: Arguments) -> XnnValue:
    """Compute elu of k·x with k·alpha, divided by k, where x is scaled by k."""
    bent = apply(w, "ELU", times(w, w.dense(a.self), a.input_scale), alpha=float(a.alpha * a.input_scale))
    return times(w, bent, a.scale / a.input_scale)


def _check_elu(a: Arguments) -> str | None:
    positive = a.input_scale > 0 and a.alpha > 0
    return None if positive else "elu with an input scale or an alpha that is not positive"


def _leaky_relu(w: XnnBuilder, a: Arguments) -> XnnValue:
    return apply(w, "LeakyReLU", w.dense(a.self), negative_slope=float(a.negative_slope))


def _softplus(w: XnnBuilder, a: Arguments) -> XnnValue:
    """Compute log(1 + exp(x)) as max(x, 0) + log(1 + e), where e = exp(-|x|) never overflows.

    The logarithm is 2 · (z + z³/3 + z⁵/5 …), where z = e / (e + 2) is at most a third. XNNPACK's own
    logarithm is off by 1e-7 near 1, which is as large as a softplus of -16.
    """
    x = times(w, w.dense(a.self), a.beta)
    power = apply(w, "Exp", apply(w, "Negate", apply(w, "Abs", x)))
    z = pair(w, "Div", power, plus(w, power, 2))
    square, series = pair(w, "Multiply", z, z), w.dense(2 / 13)
    for odd in (11, 9, 7, 5, 3, 1):
        series = plus(w, pair(w, "Multiply", square, series), 2 / odd)
    logarithm = pair(w, "Multiply", z, series)
    return times(w, pair(w, "Add", w.clamp(x, 0, math.inf), logarithm), 1 / a.beta)


def _mish(w: XnnBuilder, a: Arguments) -> XnnValue:
    """Compute `x · tanh(log(1 + e))`, where e = exp(x), as `x · n / (n + 2)`, where `n = e · (e + 2)`.

    The result is x from 20 on.
    """
    x = w.dense(a.self)
    power = apply(w, "Exp", w.clamp(x, -math.inf, 20))
    n = pair(w, "Multiply", power, plus(w, power, 2))
    return pair(w, "Multiply", x, pair(w, "Div", n, plus(w, n, 2)))


def _check_softplus(a: Arguments) -> str | None:
    """Check the threshold, above which torch returns x: from 17 on that is the nearest number to the sum."""
    if a.beta <= 0 or a.threshold < 17:
        return f"softplus with beta {a.beta} and threshold {a.threshold}"
    return None


def _prelu_last(w: XnnBuilder, a: Arguments) -> XnnValue:
    return pair(w, "PReLU", w.dense(a.x), w.dense(a.weight))


def _reciprocal(w: XnnBuilder, a: Arguments) -> XnnValue:
    return pair(w, "Div", w.dense(1.0), w.dense(a.self))


def _rsqrt(w: XnnBuilder, a: Arguments) -> XnnValue:
    """Compute a reciprocal root by a division.

    XNNPACK's node for it gives NaN for 0 instead of infinity.

    At 56²×64 the division takes 229 µs, and the node 165 µs.
    """
    return pair(w, "Div", w.dense(0.5), _half_root(w, w.dense(a.self)))


def _half_root(w: XnnBuilder, x: XnnValue) -> XnnValue:
    """Compute half of the root as the root of a fourth.

    From 2^126 on XNNPACK's own root is 1.5 times too large.
    """
    return apply(w, "SquareRoot", times(w, x, 0.25))


def _sqrt(w: XnnBuilder, a: Arguments) -> XnnValue:
    return times(w, _half_root(w, w.dense(a.self)), 2)


def _power(w: XnnBuilder, a: Arguments) -> XnnValue:
    """Compute whole exponents by squaring, half ones with a root, and negative ones with a division."""
    if a.exponent == 0:
        return w.ones(a.shape)
    x, exponent = w.dense(a.self), abs(a.exponent)
    whole, square, y = int(exponent), x, None
    if exponent != whole:
        y = times(w, _half_root(w, x), 2)
    while whole:
        if whole % 2:
            y = square if y is None else pair(w, "Multiply", y, square)
        whole //= 2
        if whole:
            square = apply(w, "Square", square)
    assert y is not None
    return y if a.exponent > 0 else pair(w, "Div", w.dense(1.0), y)


def _power_kernel(a: Arguments) -> FoundKernel:
    known: Mapping[float, FoundKernel] = {1: MOVE, 2: FUNCTION, -1: OTHERWISE}
    return known.get(a.exponent)


def _check_power(a: Arguments) -> str | None:
    if (2 * a.exponent) % 1 or abs(a.exponent) > MAX_EXPONENT:
        return f"the exponent {a.exponent}; XNNPACK has products and square roots"
    return None


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        OPS.prelu_last.default: Row(_prelu_last, halves=is_float16, kernel=OTHERWISE),
        QUANTIZE: Row(_quantize, _check_quantize, integers=True),
        DEQUANTIZE: Row(lambda w, a: a.input, _check_quantize, integers=True),
        aten._to_copy.default: Row(lambda w, a: w.cast(a.self, a.dtype), halves=lambda a: True),
        FAKE_QUANTIZE_DYNAMIC: Row(lambda w, a: a.x, unfit_dynamic),  # the reader quantises, or reads floats
        **by_overload(
            {
                aten.add: _binary("Add"),
                aten.sub: _binary("Subtract"),
                aten.rsub: _binary("Subtract", reverse=True),
                aten.mul: _binary("Multiply", TIMES),
                aten.div: _binary("Div", OTHERWISE),
            }
        ),
        aten.maximum.default: _binary("Maximum", CHOICE),
        aten.minimum.default: _binary("Minimum", CHOICE),
        **{target: _clamp(target) for target in CLAMP_BOUNDS},
        aten.hardswish.default: Row(_unary("Hardswish"), kernel=FUNCTION),
        aten.hardsigmoid.default: Row(_hardsigmoid),
        aten.silu.default: Row(_silu),
        aten.gelu.default: Row(_gelu, kernel=lambda a: FUNCTION if a.approximate == "none" else None),
        aten.elu.default: Row(
            _elu, _check_elu, kernel=lambda a: FUNCTION if a.input_scale == a.scale == 1 else None
        ),
        aten.mish.default: Row(_mish),
        aten.softplus.default: Row(_softplus, _check_softplus),
        aten.leaky_relu.default: Row(_leaky_relu, halves=_has_its_numbers, kernel=OTHERWISE),
        aten.sigmoid.default: Row(_unary("Sigmoid"), kernel=FUNCTION),
        aten.tanh.default: Row(_unary("Tanh"), kernel=FUNCTION),
        aten.exp.default: Row(_unary("Exp"), kernel=FUNCTION),
        aten.log.default: Row(_unary("Log"), kernel=OTHERWISE),
        aten.log2.default: Row(lambda w, a: times(w, apply(w, "Log", w.dense(a.self)), 1 / math.log(2))),
        aten.log10.default: Row(lambda w, a: times(w, apply(w, "Log", w.dense(a.self)), 1 / math.log(10))),
        aten.sin.default: Row(_unary("Sin"), kernel=FUNCTION),
        aten.cos.default: Row(_unary("Cos"), kernel=FUNCTION),
        aten.sqrt.default: Row(_sqrt),
        aten.rsqrt.default: Row(_rsqrt),
        aten.abs.default: _single("Abs"),
        aten.neg.default: _single("Negate"),
        aten.floor.default: _single("Floor"),
        aten.ceil.default: _single("Ceiling"),
        aten.square.default: _single("Square"),
        aten.pow.Tensor_Scalar: Row(_power, _check_power, kernel=_power_kernel),
        aten.reciprocal.default: Row(_reciprocal, kernel=OTHERWISE),
    }
)
