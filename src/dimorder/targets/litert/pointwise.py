"""Write the operators that compute each element from the elements at the same place as LiteRT operators.

Operators that XNNPACK computes are preferred to operators that only LiteRT's own kernels compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.ops.dialect import OPS as dimorder
from dimorder.ops.pointwise import CLAMP_BOUNDS
from dimorder.targets.litert.coefficients import ERF_P, ERF_Q
from dimorder.targets.litert.integer_writer import LiteRtValue
from dimorder.targets.litert.integers import ACTIVATIONS, CLAMPS
from dimorder.targets.litert.writer import LiteRtWriter
from dimorder.targets.rows import (
    CLAMPS_OF_FLOATS,
    MAX_EXPONENT,
    by_overload,
    ordered_bounds,
    unfit_elu,
    unfit_softplus,
)
from dimorder.targets.table import Arguments, Row, View

aten = torch.ops.aten
F16, F32, I32, I64, BOOL = torch.float16, torch.float32, torch.int32, torch.int64, torch.bool

_OfOne = Callable[[LiteRtWriter, LiteRtValue], LiteRtValue]
_OfTwo = Callable[[LiteRtWriter, LiteRtValue, LiteRtValue], LiteRtValue]

_CLAMPS_OF_BOUNDS = {ACTIVATIONS[number]: kind for kind, number in CLAMPS.items()}


# -- parts: values to values -------------------------------------------------------------------------------


def cast(w: LiteRtWriter, x: LiteRtValue, dtype: torch.dtype) -> LiteRtValue:
    """Cast as torch does: a cast to an integer goes towards zero, and wraps to 8 bits."""
    if x.dtype == dtype or (x.of is not None and x.of.dtype == dtype):
        return x
    x = w.floats(x)
    known = w.data(x)
    if known is not None:
        return w.constant(known.to(dtype))
    if F16 in (x.dtype, dtype) and F32 not in (x.dtype, dtype):
        x = w.elementwise("CAST", x, dtype=F32)
    if dtype in (torch.int8, torch.uint8) and x.dtype != BOOL:
        half = -torch.iinfo(dtype).min
        x = x if x.dtype in (I32, I64) else w.elementwise("CAST", x, dtype=I32)
        x = w.elementwise("FLOOR_MOD", add(w, x, half) if half else x, 256)
        x = add(w, x, -half) if half else x
    return w.elementwise("CAST", x, dtype=dtype)


def mul(w: LiteRtWriter, x: LiteRtValue, y: LiteRtValue | float) -> LiteRtValue:
    return x if isinstance(y, (int, float)) and y == 1 else w.elementwise("MUL", x, y)


def add(w: LiteRtWriter, x: LiteRtValue, y: LiteRtValue | float) -> LiteRtValue:
    return w.elementwise("ADD", x, y)


def clamp(w: LiteRtWriter, x: LiteRtValue, low: float = -math.inf, high: float = math.inf) -> LiteRtValue:
    """Return min(max(x, low), high)."""
    if w.in_integers is not None:
        return w.clamp_integers(x, low, high)
    kind = _CLAMPS_OF_BOUNDS.get((low, high))
    may_vary = w.varying and isinstance(high, int)  # a size that is 6 here is another number elsewhere
    if kind is not None and x.dtype == F32 and not may_vary:
        return w.elementwise(kind, x)
    x = x if low == -math.inf else w.elementwise("MAXIMUM", x, low)
    return x if high == math.inf else w.elementwise("MINIMUM", x, high)


def truncate(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    """Return floor(max(x, 0)) - floor(max(-x, 0))."""
    above, below = (w.elementwise("FLOOR", clamp(w, y, 0)) for y in (x, w.elementwise("NEG", x)))
    return w.elementwise("SUB", above, below)


def hardsigmoid(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    return mul(w, w.elementwise("RELU6", add(w, x, 3.0)), 1 / 6)


def softplus(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    """Compute log(1 + exp(x)) as max(x, 0) + log(1 + e), where e = exp(-|x|) never overflows.

    The logarithm is 2 · (z + z³/3 + z⁵/5 …), where z = e / (e + 2) is at most a third. A logarithm of nearly
    1 would be off by 1e-7, which is as large as a softplus of -16.
    """
    power = w.elementwise("EXP", w.elementwise("NEG", w.elementwise("ABS", x)))
    z = w.elementwise("DIV", power, add(w, power, 2.0))
    square, series = mul(w, z, z), None
    for odd in (13, 11, 9, 7, 5, 3, 1):
        series = w.number(2 / odd, F32) if series is None else add(w, mul(w, square, series), 2 / odd)
    assert series is not None
    return add(w, clamp(w, x, 0), mul(w, z, series))


def mish(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    """Compute `x · tanh(log(1 + e))`, where e = exp(x), as `x · n / (n + 2)`, where `n = e · (e + 2)`.

    The result is x from 20 on.
    """
    power = w.elementwise("EXP", clamp(w, x, high=20.0))
    n = mul(w, power, add(w, power, 2.0))
    return mul(w, x, w.elementwise("DIV", n, add(w, n, 2.0)))


def erf(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    x = clamp(w, x, -4.0, 4.0)
    square = mul(w, x, x)
    return w.elementwise("DIV", mul(w, x, _polynomial(w, square, ERF_P)), _polynomial(w, square, ERF_Q))


def _polynomial(w: LiteRtWriter, x: LiteRtValue, coefficients: Sequence[float]) -> LiteRtValue:
    total = add(w, mul(w, x, coefficients[0]), coefficients[1])
    for coefficient in coefficients[2:]:
        total = add(w, mul(w, total, x), coefficient)
    return total


def log1p(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    """Return log(1 + x). Near 0, where the sum would lose x, it is x - x²/2 + x³/3 - x⁴/4."""
    near = mul(w, x, _polynomial(w, x, (-1 / 4, 1 / 3, -1 / 2, 1.0)))
    is_near = w.elementwise("LESS", w.elementwise("ABS", x), 0.01, dtype=BOOL)
    return select(w, is_near, near, w.elementwise("LOG", add(w, x, 1.0)))


def expm1(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    """Return exp(x) - 1, which ELU computes below 0; above, it is -expm1(-x) exp(x)."""
    below = w.elementwise("ELU", w.elementwise("NEG", w.elementwise("ABS", x)))
    positive = w.elementwise("NEG", mul(w, below, w.elementwise("EXP", x)))
    return select(w, w.elementwise("LESS", x, 0.0, dtype=BOOL), below, positive)


def atan2(w: LiteRtWriter, x: LiteRtValue, y: LiteRtValue) -> LiteRtValue:
    """Write ATAN2, which wants operands of one shape."""
    shape = torch.broadcast_shapes(x.shape, y.shape)
    return w.op("ATAN2", [w.expanded(x, shape), w.expanded(y, shape)], shape)


def _cosine(w: LiteRtWriter, sine: LiteRtValue) -> LiteRtValue:
    """Return sqrt((1 - x) (1 + x)), which loses nothing near 1."""
    return w.elementwise("SQRT", mul(w, w.elementwise("SUB", 1.0, sine), add(w, sine, 1.0)))


# Half of pi in three parts. The products of the first two and a small integer are exact.
_HALF_PI = (1.5703125, 4.837512969970703e-4, 7.54978995489188e-8)


def _tangent(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    """Return the tangent by angles within a quarter of pi: XNNPACK's cosine loses digits near its zeros."""
    turns = w.elementwise("FLOOR", add(w, mul(w, x, 2 / math.pi), 0.5))
    for part in _HALF_PI:
        x = w.elementwise("SUB", x, mul(w, turns, part))
    odd = w.elementwise("SUB", turns, mul(w, w.elementwise("FLOOR", mul(w, turns, 0.5)), 2.0))
    even = w.elementwise("SUB", 1.0, odd)
    sine, cosine = w.elementwise("SIN", x), w.elementwise("COS", x)
    above = w.elementwise("SUB", mul(w, sine, even), mul(w, cosine, odd))
    return w.elementwise("DIV", above, add(w, mul(w, cosine, even), mul(w, sine, odd)))


def _sinh(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    below = expm1(w, w.elementwise("NEG", x))
    return mul(w, w.elementwise("SUB", expm1(w, x), below), 0.5)


def _cosh(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    return mul(w, add(w, w.elementwise("EXP", x), w.elementwise("EXP", w.elementwise("NEG", x))), 0.5)


def _logarithm(base: float) -> _OfOne:
    return lambda w, x: mul(w, w.elementwise("LOG", x), 1 / math.log(base))


def half_root(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    """Return half of the root as the root of a fourth: from 2^126 on XNNPACK's own is 1.5 times too large."""
    return w.elementwise("SQRT", mul(w, x, 0.25))


def power(w: LiteRtWriter, x: LiteRtValue, exponent: float) -> LiteRtValue:
    """Raise to a power: by squaring and roots, which XNNPACK computes, if the exponent is small."""
    if exponent == 0:
        return w.constant(torch.ones(x.shape, dtype=x.dtype))
    if (2 * exponent) % 1 or abs(exponent) > MAX_EXPONENT:
        return w.elementwise("POW", x, exponent)
    if exponent < 0:
        return w.elementwise("DIV", 1.0, power(w, x, -exponent))
    result = mul(w, half_root(w, x), 2.0) if exponent % 1 else None
    whole, square = int(exponent), x
    while whole:
        if whole % 2:
            result = square if result is None else mul(w, result, square)
        whole //= 2
        if whole:
            square = mul(w, square, square)
    assert result is not None
    return result


def select(
    w: LiteRtWriter, condition: LiteRtValue, x: LiteRtValue | float, y: LiteRtValue | float
) -> LiteRtValue:
    """Return x where the condition holds, else y."""
    dtype = next(value.dtype for value in (x, y) if isinstance(value, LiteRtValue))
    return w.elementwise("SELECT_V2", condition, *_numbers(w, dtype, x, y), dtype=dtype)


def _numbers(w: LiteRtWriter, dtype: torch.dtype, *values: LiteRtValue | float) -> list[LiteRtValue]:
    return [value if isinstance(value, LiteRtValue) else w.number(value, dtype) for value in values]


# -- rows --------------------------------------------------------------------------------------------------


def value(w: LiteRtWriter, operand: View[LiteRtValue] | Tensor | float, dtype: torch.dtype) -> LiteRtValue:
    """Return an operand, which may be a number, as a value of that type."""
    if isinstance(operand, View):
        return cast(w, w.dense(operand), dtype)
    if isinstance(operand, Tensor):
        return w.constant(operand if operand.dtype == dtype else operand.to(dtype))
    return w.number(operand, dtype)


def check_float(a: Arguments) -> str | None:
    return None if a.dtype == F32 else f"{a.dtype}, where LiteRT computes this in torch.float32"


def check_number(a: Arguments) -> str | None:
    return f"arithmetic on {a.dtype}" if a.dtype == BOOL else None


def _check_sign(a: Arguments) -> str | None:
    return None if a.dtype in (F32, I32, I64) else f"a sign of {a.dtype}"


def _sign(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    return clamp(w, x, -1, 1) if x.dtype == I64 else w.elementwise("SIGN", x)


def _check_type(a: Arguments) -> str | None:
    """Truth values are added, multiplied and compared too."""
    return None if getattr(a, "alpha", 1) == 1 else check_number(a)


def _with(
    function: Callable[[LiteRtWriter, LiteRtValue, Arguments], LiteRtValue],
    check: Callable[[Arguments], str | None] = check_float,
) -> Row:
    """Return the row of a function of one value and the call's other arguments."""
    return Row(lambda w, a: function(w, value(w, a.self, a.dtype), a), check)


def _unary(function: _OfOne, check: Callable[[Arguments], str | None] = check_float) -> Row:
    return _with(lambda w, x, a: function(w, x), check)


_OF_TRUTH: Mapping[str, str] = MappingProxyType(
    {"ADD": "LOGICAL_OR", "MUL": "LOGICAL_AND", "MAXIMUM": "LOGICAL_OR", "MINIMUM": "LOGICAL_AND"}
)


def kind1(kind: str) -> _OfOne:
    return lambda w, x: w.elementwise(kind, x)


def kind2(kind: str) -> _OfTwo:
    return lambda w, x, y: w.elementwise(_OF_TRUTH[kind] if x.dtype == BOOL else kind, x, y)


def both(w: LiteRtWriter, a: Arguments) -> tuple[LiteRtValue, LiteRtValue]:
    """Return the two operands of a call, which may be numbers, as values of its result's type."""
    x, y = (value(w, operand, a.dtype) for operand in (a.self, a.other))
    return x, y


def _binary(
    function: _OfTwo, check: Callable[[Arguments], str | None] = check_number, *, reverse: bool = False
) -> Row:
    def build(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
        x, y = both(w, a)
        x, y = (y, x) if reverse else (x, y)
        return function(w, x, mul(w, y, getattr(a, "alpha", 1)))

    return Row(build, check)


def absolute(w: LiteRtWriter, x: LiteRtValue) -> LiteRtValue:
    if x.dtype != I64:
        return w.elementwise("ABS", x)
    return w.elementwise("MAXIMUM", x, w.elementwise("NEG", x))  # ABS has no int64


def _pow(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    return w.elementwise("POW", *(value(w, each, a.dtype) for each in (a.self, a.exponent)))


def _clamp(target: Any) -> Row:
    check = check_float if target in CLAMPS_OF_FLOATS else check_number
    return _with(lambda w, x, a: clamp(w, x, *ordered_bounds(target, a)), check)


def _elu(w: LiteRtWriter, x: LiteRtValue, a: Arguments) -> LiteRtValue:
    """Return scale (max(x, 0) + alpha (exp(min(0, x input_scale)) - 1)); x input_scale has the sign of x."""
    if a.alpha == a.input_scale == 1:
        return mul(w, w.elementwise("ELU", x), a.scale)
    below = w.elementwise("ELU", mul(w, clamp(w, x, high=0), a.input_scale))
    return add(w, mul(w, clamp(w, x, 0), a.scale), mul(w, below, a.alpha * a.scale))


def _softplus(w: LiteRtWriter, x: LiteRtValue, a: Arguments) -> LiteRtValue:
    """Write softplus. Above a threshold torch returns x, which from 17 on is the nearest number anyway."""
    scaled = mul(w, x, a.beta)
    smooth = mul(w, softplus(w, scaled), 1 / a.beta)
    if a.threshold >= 17:
        return smooth
    return select(w, w.elementwise("GREATER", scaled, float(a.threshold), dtype=BOOL), x, smooth)


def _prelu(w: LiteRtWriter, a: Arguments) -> LiteRtValue:
    x, slope = w.dense(a.x), w.dense(a.weight)
    if w.data(slope) is not None and x.shape:
        return w.op("PRELU", [x, slope], x.shape)
    return add(w, clamp(w, x, 0), mul(w, clamp(w, x, high=0), slope))


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        **by_overload(
            {
                aten.add: _binary(kind2("ADD"), _check_type),
                aten.sub: _binary(kind2("SUB")),
                aten.rsub: _binary(kind2("SUB"), reverse=True),
                aten.mul: _binary(kind2("MUL"), _check_type),
                aten.div: _binary(kind2("DIV"), check_float),
            }
        ),
        aten.maximum.default: _binary(kind2("MAXIMUM"), _check_type),
        aten.minimum.default: _binary(kind2("MINIMUM"), _check_type),
        aten.atan2.default: _binary(atan2, check_float),
        aten.pow.Tensor_Scalar: _with(lambda w, x, a: power(w, x, a.exponent)),
        **{name: Row(_pow, check_float) for name in (aten.pow.Tensor_Tensor, aten.pow.Scalar)},
        aten.abs.default: _unary(absolute, check_number),
        aten.neg.default: _unary(kind1("NEG"), check_number),
        aten.square.default: _unary(lambda w, x: mul(w, x, x)),
        aten.reciprocal.default: _unary(lambda w, x: w.elementwise("DIV", 1.0, x)),
        aten.sqrt.default: _unary(lambda w, x: mul(w, half_root(w, x), 2.0)),
        aten.rsqrt.default: _unary(lambda w, x: w.elementwise("DIV", 0.5, half_root(w, x))),
        aten.exp.default: _unary(kind1("EXP")),
        aten.expm1.default: _unary(expm1),
        aten.log.default: _unary(kind1("LOG")),
        aten.log2.default: _unary(_logarithm(2)),
        aten.log10.default: _unary(_logarithm(10)),
        aten.log1p.default: _unary(log1p),
        aten.sin.default: _unary(kind1("SIN")),
        aten.cos.default: _unary(kind1("COS")),
        aten.tan.default: _unary(_tangent),
        aten.atan.default: _unary(lambda w, x: atan2(w, x, w.number(1.0, F32))),
        aten.asin.default: _unary(lambda w, x: atan2(w, x, _cosine(w, x))),
        aten.acos.default: _unary(lambda w, x: atan2(w, _cosine(w, x), x)),
        aten.sinh.default: _unary(_sinh),
        aten.cosh.default: _unary(_cosh),
        aten.erf.default: _unary(erf),
        aten.floor.default: _unary(kind1("FLOOR")),
        aten.ceil.default: _unary(kind1("CEIL")),
        aten.trunc.default: _unary(truncate),
        aten.round.default: _unary(kind1("ROUND")),
        **{name: _unary(_sign, _check_sign) for name in (aten.sign.default, aten.sgn.default)},
        aten.softshrink.default: _with(
            lambda w, x, a: w.elementwise("SUB", x, clamp(w, x, -float(a.lambd), float(a.lambd)))
        ),
        aten.sigmoid.default: _unary(kind1("LOGISTIC")),
        aten.tanh.default: _unary(kind1("TANH")),
        **{target: _clamp(target) for target in CLAMP_BOUNDS},
        aten.hardsigmoid.default: _unary(hardsigmoid),
        aten.hardswish.default: _unary(kind1("HARD_SWISH")),
        aten.silu.default: _unary(lambda w, x: mul(w, x, w.elementwise("LOGISTIC", x))),
        aten.mish.default: _unary(mish),
        aten.softplus.default: _with(_softplus, lambda a: check_float(a) or unfit_softplus(a)),
        aten.log_sigmoid.default: _unary(
            lambda w, x: w.elementwise("NEG", softplus(w, w.elementwise("NEG", x)))
        ),
        aten.gelu.default: _with(
            lambda w, x, a: w.elementwise("GELU", x, approximate=a.approximate != "none")
        ),
        aten.elu.default: _with(_elu, lambda a: check_float(a) or unfit_elu(a)),
        aten.leaky_relu.default: _with(
            lambda w, x, a: w.elementwise("LEAKY_RELU", x, alpha=float(a.negative_slope))
        ),
        dimorder.prelu_last.default: Row(_prelu),
    }
)
