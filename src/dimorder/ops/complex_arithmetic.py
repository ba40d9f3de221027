"""Write arithmetic and functions of complex numbers in plain torch, on pairs of real tensors."""

from __future__ import annotations

import cmath
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.pairs import Pair

aten = torch.ops.aten

_PairOperand = Any  # a pair, a real tensor or a Python number


def split(x: _PairOperand) -> tuple[Any, Any]:
    """Return the real part, and the imaginary part or None."""
    if isinstance(x, Pair):
        return x
    return (x.real, x.imag) if isinstance(x, complex) else (x, None)


def _added(x: Any, y: Any, sign: int) -> Any:
    """Return a sum or difference in which None is 0."""
    if y is None:
        return x
    if x is None:
        return y if sign > 0 else -y
    return x + y if sign > 0 else x - y


def _pair(re: Tensor, im: Any) -> Pair:
    """Return a pair of parts that may have different shapes, or of which the second may be a number."""
    if im is None:
        return Pair(re, None)
    im = im if isinstance(im, Tensor) else torch.full_like(re, im)
    return Pair(*torch.broadcast_tensors(re, im))


def _add(x: _PairOperand, y: _PairOperand, alpha: float = 1, sign: int = 1) -> Pair:
    (a, b), (c, d) = split(x), split(y if alpha == 1 else _mul(y, alpha))
    return _pair(_added(a, c, sign), _added(b, d, sign))


def _rsub(x: _PairOperand, y: _PairOperand, alpha: float = 1) -> Pair:
    return _add(y, x if alpha == 1 else _mul(x, alpha), sign=-1)


def _bilinear(of: Callable[..., Any]) -> Callable[[_PairOperand, _PairOperand], Pair]:
    """Return a product of complex numbers, from `of`, the same product of real ones."""

    def compute(x: _PairOperand, y: _PairOperand) -> Pair:
        def product(left: Any, right: Any) -> Any:
            return None if left is None or right is None else of(left, right)

        (a, b), (c, d) = split(x), split(y)
        return _pair(_added(of(a, c), product(b, d), -1), _added(product(a, d), product(b, c), 1))

    return compute


_mul = _bilinear(operator.mul)


def _linear(x: _PairOperand, weight: _PairOperand, bias: _PairOperand = None) -> Pair:
    y = _bilinear(torch.nn.functional.linear)(x, weight)
    return y if bias is None else _add(y, bias)


def _convolution(
    x: _PairOperand, weight: _PairOperand, bias: _PairOperand, stride: Sequence[int], *args: Any
) -> Pair:
    y = _bilinear(lambda a, b: torch.convolution(a, b, None, stride, *args))(x, weight)
    if bias is None:
        return y
    columns = [part if part is None else part.reshape(-1, *([1] * len(stride))) for part in split(bias)]
    return _add(y, Pair(*columns))


def _sized(z: Pair) -> Pair:
    return z if z.im is not None else Pair(z.re, torch.zeros_like(z.re))


def _conj(z: Pair) -> Pair:
    return Pair(z.re, None if z.im is None else -z.im)


def _abs(z: Pair) -> Tensor:
    return z.re.abs() if z.im is None else torch.sqrt(z.re * z.re + z.im * z.im)


def _angle(z: Pair) -> Tensor:
    re, im = _sized(z)
    return torch.atan2(im, re)


def _reciprocal(z: Pair) -> Pair:
    re, im = _sized(z)
    square = re * re + im * im
    return Pair(re / square, -im / square)


def _div(x: _PairOperand, y: _PairOperand) -> Pair:
    if isinstance(y, Pair):
        return _mul(x, _reciprocal(y))
    if isinstance(y, complex):
        return _mul(x, 1 / y)
    re, im = split(x)
    return _pair(re / y, None if im is None else im / y)


def _exp(z: Pair) -> Pair:
    re, im = _sized(z)
    size = torch.exp(re)
    return Pair(size * torch.cos(im), size * torch.sin(im))


def _log(z: Pair) -> Pair:
    return Pair(torch.log(_abs(z)), _angle(z))


def _sqrt(z: Pair) -> Pair:
    re, im = _sized(z)
    size = _abs(z)
    half = torch.sqrt((size - re).clamp(min=0.0) * 0.5)
    return Pair(torch.sqrt((size + re).clamp(min=0.0) * 0.5), torch.where(im < 0, -half, half))


def _pow(z: _PairOperand, power: _PairOperand) -> Any:
    if isinstance(power, (int, float)) and power in (1, 2, 3, 4):
        result = z
        for _ in range(int(power) - 1):
            result = _mul(result, z)
        return result
    return _exp(_mul(_log(z), power))


def _sgn(z: Pair) -> Pair:
    re, im = _sized(z)
    size = _abs(z)
    size = torch.where(size == 0, 1.0, size)
    return Pair(re / size, im / size)


def polar(size: Tensor, angle: Tensor) -> Pair:
    return Pair(size * torch.cos(angle), size * torch.sin(angle))


def _addmm(x: _PairOperand, a: _PairOperand, b: _PairOperand, beta: float = 1, alpha: float = 1) -> Pair:
    product = _bilinear(torch.matmul)(a, b)
    return _add(_mul(x, beta), _mul(product, alpha))


# -- functions, none of which leaves the range of floats sooner than its result


def _tanh(z: Pair) -> Pair:
    re, im = _sized(z)
    e = torch.exp(-2 * re.abs())
    square = (1 - e) ** 2 + 4 * e * torch.cos(im) ** 2
    return Pair(torch.tanh(2 * re) * (1 + e * e) / square, 2 * e * torch.sin(2 * im) / square)


def _sigmoid(z: Pair) -> Pair:
    return _add(_mul(_tanh(_mul(z, 0.5)), 0.5), 0.5)


def _silu(z: Pair) -> Pair:
    return _mul(z, _sigmoid(z))


def _sinh(z: Pair) -> Pair:
    re, im = _sized(z)
    return Pair(torch.sinh(re) * torch.cos(im), torch.cosh(re) * torch.sin(im))


def _cosh(z: Pair) -> Pair:
    re, im = _sized(z)
    return Pair(torch.cosh(re) * torch.cos(im), torch.sinh(re) * torch.sin(im))


def _turned(function: Callable[[Pair], Pair], back: complex) -> Callable[[Pair], Pair]:
    """Return `back` times a function of i z, as sin(z) = -i sinh(i z)."""
    return lambda z: _mul(function(_mul(_sized(z), 1j)), back)


def _expm1(z: Pair) -> Pair:
    re, im = _sized(z)
    real = torch.expm1(re) * torch.cos(im) - 2 * torch.sin(im / 2) ** 2
    return Pair(real, torch.exp(re) * torch.sin(im))


def _log1p(z: Pair) -> Pair:
    re, im = _sized(z)
    return Pair(torch.log1p(re * (re + 2) + im * im) / 2, torch.atan2(im, re + 1))


def _log_to(base: float) -> Callable[[Pair], Pair]:
    return lambda z: _div(_log(z), math.log(base))


def _raised(base: float | complex, z: Pair) -> Pair:
    return _exp(_mul(z, cmath.log(base) if isinstance(base, complex) or base < 0 else math.log(base)))


def _norm(z: Pair, *args: Any, **kwargs: Any) -> Any:
    return torch.linalg.vector_norm(_abs(z), *args, **kwargs)


def _var(z: Pair, *args: Any, **kwargs: Any) -> Tensor:
    re, im = _sized(z)
    return torch.var(re, *args, **kwargs) + torch.var(im, *args, **kwargs)


def _std(z: Pair, *args: Any, **kwargs: Any) -> Tensor:
    return torch.sqrt(_var(z, *args, **kwargs))


def _ne(x: _PairOperand, y: _PairOperand) -> Any:
    (a, b), (c, d) = split(x), split(y)
    if b is None and d is None:
        return a != c
    return (a != c) | ((0.0 if b is None else b) != (0.0 if d is None else d))


def _eq(x: _PairOperand, y: _PairOperand) -> Tensor:
    return torch.logical_not(_ne(x, y))


def _isnan(z: Pair) -> Any:
    re, im = _sized(z)
    return re.isnan() | im.isnan()


def _ones_like(z: Pair, **_: Any) -> Pair:
    return Pair(torch.ones_like(z.re), None)


_MATMULS = (aten.mm.default, aten.bmm.default, aten.matmul.default, aten.mv.default, aten.dot.default)

IN_PLAIN_TORCH: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.add.Tensor: _add,
        aten.add.Scalar: _add,
        aten.sub.Tensor: partial(_add, sign=-1),
        aten.sub.Scalar: partial(_add, sign=-1),
        aten.rsub.Scalar: _rsub,
        aten.rsub.Tensor: _rsub,
        aten.mul.Tensor: _mul,
        aten.mul.Scalar: _mul,
        aten.div.Tensor: _div,
        aten.div.Scalar: _div,
        **dict.fromkeys(_MATMULS, _bilinear(torch.matmul)),
        aten.linear.default: _linear,
        aten.convolution.default: _convolution,
        aten.addmm.default: _addmm,
        aten.baddbmm.default: _addmm,
        aten._conj.default: _conj,
        aten._conj_physical.default: _conj,
        aten.conj_physical.default: _conj,
        aten.abs.default: _abs,
        aten.angle.default: _angle,
        aten.reciprocal.default: _reciprocal,
        aten.exp.default: _exp,
        aten.log.default: _log,
        aten.sqrt.default: _sqrt,
        aten.pow.Tensor_Scalar: _pow,
        aten.pow.Tensor_Tensor: _pow,
        aten.sgn.default: _sgn,
        aten.tanh.default: _tanh,
        aten.sigmoid.default: _sigmoid,
        aten.silu.default: _silu,
        aten.sinh.default: _sinh,
        aten.cosh.default: _cosh,
        aten.sin.default: _turned(_sinh, -1j),
        aten.cos.default: _turned(_cosh, 1),
        aten.tan.default: _turned(_tanh, -1j),
        aten.rsqrt.default: lambda z: _reciprocal(_sqrt(z)),
        aten.expm1.default: _expm1,
        aten.log1p.default: _log1p,
        aten.exp2.default: partial(_raised, 2.0),
        aten.log2.default: _log_to(2),
        aten.log10.default: _log_to(10),
        aten.pow.Scalar: _raised,
        aten.linalg_vector_norm.default: _norm,
        **dict.fromkeys((aten.var.default, aten.var.dim, aten.var.correction), _var),
        **dict.fromkeys((aten.std.default, aten.std.dim, aten.std.correction), _std),
        **dict.fromkeys((aten.eq.Tensor, aten.eq.Scalar), _eq),
        **dict.fromkeys((aten.ne.Tensor, aten.ne.Scalar), _ne),
        aten.isnan.default: _isnan,
        aten.ones_like.default: _ones_like,
    }
)
