"""Write special functions in arithmetic, exponentials, logarithms and selections."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten

_LN2 = math.log(2)
_LARGE = 1e9  # from here on the square of a number is all that its root needs


def of_floats(function: Callable[..., Any]) -> Callable[..., Any]:
    """Leave calls whose tensors are not all of float32."""

    @functools.wraps(function)
    def compute(*args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in args if isinstance(each, Tensor)]
        return function(*args, **kwargs) if all(t.dtype == torch.float32 for t in tensors) else NotImplemented

    return compute


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Evaluate a polynomial whose highest coefficient comes first."""
    y = x * coefficients[0] + coefficients[1]
    for each in coefficients[2:]:
        y = y * x + each
    return y


# -- hyperbolic functions, angles, signs


def _asinh(x: Tensor) -> Tensor:
    size = x.abs()
    near = torch.log1p(size + size * size / (1 + torch.sqrt(size * size + 1)))
    y = torch.where(size > _LARGE, torch.log(size) + _LN2, near)
    return torch.where(x < 0, -y, y)


def _acosh(x: Tensor) -> Tensor:
    more = x - 1
    near = torch.log1p(more + torch.sqrt(more) * torch.sqrt(more + 2))
    return torch.where(x > _LARGE, torch.log(x) + _LN2, near)


def _angle(x: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), x, torch.where(x < 0, math.pi, 0.0))


def _signbit(x: Tensor) -> Tensor:
    """Return whether a number has the sign -, which -0 has too. A NaN has none here."""
    return (torch.where(x == 0, 1 / x, x) if x.is_floating_point() else x) < 0


def _copysign(x: Tensor, sign: Tensor | float) -> Tensor:
    is_below = torch.signbit(sign) if isinstance(sign, Tensor) else math.copysign(1, sign) < 0
    size = x.abs()
    if isinstance(is_below, bool):
        return -size if is_below else size
    return torch.where(is_below, -size, size)


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.abs(), y.abs()
    most, least = torch.maximum(x, y), torch.minimum(x, y)
    ratio = least / most
    near = most * torch.sqrt(1 + ratio * ratio)
    near = torch.where(most == 0, most, near)
    return torch.where((x == math.inf) | (y == math.inf), math.inf, near)


def _extreme(choose: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a maximum or minimum that a NaN loses."""

    def compute(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, choose(x, y)))

    return compute


def _ldexp(x: Tensor, power: Tensor) -> Any:
    if x.dtype != torch.float32:
        return NotImplemented
    return x * torch.exp2(power.to(torch.float32))


def _float_power(x: Any, exponent: Any) -> Tensor:
    x, exponent = (each.double() if isinstance(each, Tensor) else each for each in (x, exponent))
    return torch.pow(x, exponent)


# -- logarithms and exponentials


def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    x = x if eps is None else x.clamp(eps, 1 - eps)
    return torch.log(x / (1 - x))


def _times_logarithm(x: Any, y: Any, of_tensor: Any, of_number: Any) -> Any:
    if not isinstance(y, Tensor):
        return torch.where(x == 0, 0.0, x * of_number(y)) if y > 0 else NotImplemented
    if not isinstance(x, Tensor):
        return torch.where(torch.isnan(y), y, 0.0) if x == 0 else x * of_tensor(y)
    is_zero = torch.logical_and(x == 0, torch.logical_not(torch.isnan(y)))
    return torch.where(is_zero, 0.0, x * of_tensor(y))


def _entr(x: Tensor) -> Tensor:
    y = torch.where(x == 0, 0.0, -x * torch.log(x))
    return torch.where(x < 0, -math.inf, y)


def _logaddexp(x: Tensor, y: Tensor) -> Tensor:
    most, apart = torch.maximum(x, y), (x - y).abs()
    added = most + torch.log1p(torch.exp(-apart))
    return torch.where(torch.logical_and(x == y, most.abs() == math.inf), most, added)


# -- error functions


def scaled_erfc(x: Tensor) -> Tensor:
    """Return exp(x²) erfc(x) from 0 on: Numerical Recipes, erfcc, to 1.2e-7."""
    t = 1 / (1 + 0.5 * x)
    coefficients = (
        *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
        *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
    )
    return t * torch.exp(polynomial(t, coefficients))


def _erfc(x: Tensor) -> Tensor:
    size = x.abs().clamp(max=20.0)
    y = scaled_erfc(size) * torch.exp(-size * size)
    return torch.where(x < 0, 2 - y, y)


def _erfcx(x: Tensor) -> Tensor:
    size = x.abs()
    y = scaled_erfc(size)
    return torch.where(x < 0, 2 * torch.exp(x * x) - y, y)


def _log_ndtr(x: Tensor) -> Tensor:
    z = x * -math.sqrt(0.5)
    far = torch.log(scaled_erfc(z.clamp(min=0.0)) * 0.5) - z * z
    return torch.where(x < -1, far, torch.log1p(_erfc(-z) * -0.5))


def _erfinv(x: Tensor) -> Tensor:
    """Return erfinv: Giles, Approximating the erfinv function."""
    rest = (1 - x) * (1 + x)
    w = -torch.log(rest)
    near = polynomial(
        w - 2.5,
        (
            *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
            *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
        ),
    )
    far = polynomial(
        torch.sqrt(w) - 3,
        (
            *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
            *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
        ),
    )
    return torch.where(rest == 0, x * math.inf, torch.where(w < 5, near, far) * x)


_STEPS = 4  # of Newton's method, by which the smallest subnormal number has converged


def _ndtri(p: Tensor) -> Tensor:
    """Return the inverse of ndtr. The tails solve log(ndtr(-y)) = log(p) for y."""
    tail = torch.minimum(p, 1 - p)
    wanted = torch.log(tail)
    y = torch.sqrt(wanted.clamp(-1000.0, -1.0) * -2)
    for _ in range(_STEPS):
        scaled = scaled_erfc(y * math.sqrt(0.5))
        y = y + (torch.log(scaled * 0.5) - y * y * 0.5 - wanted) * scaled * math.sqrt(math.pi / 2)
    far = torch.where(tail == 0, math.inf, y)
    return torch.where(tail < 0.1, torch.where(p < 0.5, -far, far), _erfinv(2 * p - 1) * math.sqrt(2))


# -- Bessel functions: Abramowitz and Stegun, 9.8.1 to 9.8.4


_I0_NEAR = (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0)
_I0_FAR = (
    *(0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281),
    *(-0.00157565, 0.00225319, 0.01328592, 0.39894228),
)
_I1_NEAR = (0.00032411, 0.00301532, 0.02658733, 0.15084934, 0.51498869, 0.87890594, 0.5)
_I1_FAR = (
    *(-0.00420059, 0.01787654, -0.02895312, 0.02282967, -0.01031555),
    *(0.00163801, -0.00362018, -0.03988024, 0.39894228),
)


def _bessel(near: Sequence[float], far: Sequence[float], odd: bool, scaled: bool) -> Callable[..., Tensor]:
    def compute(x: Tensor) -> Tensor:
        size = x.abs()
        square = (size.clamp(max=3.75) * (1 / 3.75)) ** 2
        small, beyond = polynomial(square, near), size.clamp(min=3.75)
        small = small * x if odd else small
        large = polynomial(3.75 / beyond, far) / torch.sqrt(beyond)
        large = torch.where(x < 0, -large, large) if odd else large
        if scaled:
            small = small * torch.exp(-size)
        else:
            half = torch.exp(beyond * 0.5)  # the whole power would overflow before the result does
            large = large * half * half
        return torch.where(size < 3.75, small, large)

    return compute


_OF_FLOATS: Mapping[Any, Callable[..., Any]] = {
    aten.atanh.default: lambda x: torch.log1p(2 * x / (1 - x)) * 0.5,
    aten.asinh.default: _asinh,
    aten.acosh.default: _acosh,
    aten.angle.default: _angle,
    aten.copysign.Tensor: _copysign,
    aten.copysign.Scalar: _copysign,
    aten.hypot.default: _hypot,
    aten.heaviside.default: lambda x, value: torch.where(x == 0, value, (x > 0).to(torch.float32)),
    aten.fmax.default: _extreme(torch.maximum),
    aten.fmin.default: _extreme(torch.minimum),
    **{
        packet.default: decomposition_table[packet.default]
        for packet in (aten.sinc, aten.frac, aten.deg2rad, aten.rad2deg, aten.isposinf, aten.isneginf)
    },
    **{target: decomposition_table[target] for target in (aten.dist.default, aten.lerp.Tensor)},
    aten.lerp.Scalar: lambda x, y, weight: (
        x + weight * (y - x) if abs(weight) < 0.5 else y - (y - x) * (1 - weight)
    ),
    **{
        getattr(aten.float_power, name): _float_power for name in ("Tensor_Tensor", "Scalar", "Tensor_Scalar")
    },
    aten.logit.default: _logit,
    **dict.fromkeys(
        (aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other),
        lambda x, y: _times_logarithm(x, y, torch.log, math.log),
    ),
    **dict.fromkeys(
        (getattr(aten.special_xlog1py, name) for name in ("default", "self_scalar", "other_scalar")),
        lambda x, y: _times_logarithm(x, y, torch.log1p, math.log1p),
    ),
    aten.special_entr.default: _entr,
    aten.exp2.default: lambda x: torch.pow(2.0, x),
    aten.logaddexp.default: _logaddexp,
    aten.logaddexp2.default: lambda x, y: _logaddexp(x * _LN2, y * _LN2) * (1 / _LN2),
    aten.erfc.default: _erfc,
    aten.special_erfcx.default: _erfcx,
    aten.special_log_ndtr.default: _log_ndtr,
    aten.erfinv.default: _erfinv,
    aten.special_ndtri.default: _ndtri,
    aten.i0.default: _bessel(_I0_NEAR, _I0_FAR, odd=False, scaled=False),
    aten.special_i0e.default: _bessel(_I0_NEAR, _I0_FAR, odd=False, scaled=True),
    aten.special_i1.default: _bessel(_I1_NEAR, _I1_FAR, odd=True, scaled=False),
    aten.special_i1e.default: _bessel(_I1_NEAR, _I1_FAR, odd=True, scaled=True),
}
SPECIAL: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.ldexp.Tensor: _ldexp,
        aten.signbit.default: _signbit,
        **{target: of_floats(function) for target, function in _OF_FLOATS.items()},
    }
)
