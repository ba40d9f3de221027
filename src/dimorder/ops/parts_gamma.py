"""Write the gamma function's logarithm and its derivatives in series, and by reflection below 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.ops.parts_special import of_floats, polynomial

aten = torch.ops.aten


def _from_whole(x: Tensor) -> Tensor:
    """Return x less the nearest whole number."""
    return x - torch.round(x)


def _lgamma_above(x: Tensor) -> Tensor:
    """Return lgamma from 0.5 on: the Lanczos approximation of Numerical Recipes, gammln."""
    series = x * 0 + 1.000000000190015
    for k, each in enumerate(
        (76.18009172947146, -86.50532032941677, 24.01409824083091, -1.231739572450155, 1.208650973866179e-3),
        start=1,
    ):
        series = series + each / (x + k)
    return (x + 0.5) * torch.log(x + 5.5) - (x + 5.5) + torch.log(2.5066282746310005 * series / x)


def _lgamma(x: Tensor) -> Tensor:
    is_below = x < 0.5
    above = _lgamma_above(torch.where(is_below, 1 - x, x))
    reflected = math.log(math.pi) - torch.log(torch.sin(_from_whole(x) * math.pi).abs()) - above
    y = torch.where(is_below, reflected, above)
    return torch.where(x.abs() == math.inf, math.inf, y)


def _mvlgamma(x: Tensor, p: int) -> Tensor:
    y = _lgamma(x) + p * (p - 1) / 4 * math.log(math.pi)
    for i in range(1, p):
        y = y + _lgamma(x - i / 2)
    return y


_SHIFT = 8  # by so much the argument of an asymptotic series is raised


def _digamma(x: Tensor) -> Tensor:
    is_below = x < 0
    size = torch.where(is_below, 1 - x, x)
    raised = size + _SHIFT
    square = 1 / (raised * raised)
    y = torch.log(raised) - 0.5 / raised - square * polynomial(square, (1 / 252, -1 / 120, 1 / 12))
    for k in range(_SHIFT):
        y = y - 1 / (size + k)
    reflected = torch.where(_from_whole(x) == 0, math.nan, y - math.pi * _cotangent(x))
    y = torch.where(is_below, reflected, y)
    return torch.where(x == 0, -1 / x, y)


_EVEN_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66)


def _hurwitz(s: int, x: Tensor) -> Tensor:
    """Return the sum of (x + k)^-s over all k from 0 on, for positive x, by Euler and Maclaurin."""
    raised = x + _SHIFT
    y = raised ** (1 - s) / (s - 1) + 0.5 * raised**-s
    factor = float(s)
    for i, bernoulli in enumerate(_EVEN_BERNOULLI, start=1):
        y = y + bernoulli / math.factorial(2 * i) * factor * raised ** (1 - s - 2 * i)
        factor *= (s + 2 * i - 1) * (s + 2 * i)
    for k in range(_SHIFT):
        y = y + (x + k) ** -s
    return y


def _cotangent(x: Tensor) -> Tensor:
    """Return cot(pi x), which is 0 between two whole numbers."""
    part = _from_whole(x)
    angle, rest = part * math.pi, (0.5 - part.abs()) * math.pi
    far = torch.sin(rest) / torch.cos(rest)
    far = torch.where(part < 0, -far, far)
    return torch.where(part.abs() > 0.25, far, torch.cos(angle) / torch.sin(angle))


def _cotangent_derivative(n: int) -> list[float]:
    """Return the n-th derivative of pi cot(pi x) as a polynomial in cot(pi x), lowest power first."""
    powers = [0.0, math.pi]
    for _ in range(n):
        slope = [i * each for i, each in enumerate(powers)][1:]
        powers = [
            -math.pi * ((slope[i] if i < len(slope) else 0) + (slope[i - 2] if i >= 2 else 0))
            for i in range(len(slope) + 2)
        ]
    return powers


MOST_DERIVED = 6  # beyond it, float32 loses the powers of the cotangent


def _polygamma(n: int, x: Tensor) -> Any:
    if n == 0:
        return _digamma(x)
    if n > MOST_DERIVED:
        return NotImplemented
    is_below = x < 0
    y = (-1) ** (n + 1) * math.factorial(n) * _hurwitz(n + 1, torch.where(is_below, 1 - x, x))
    if n == 1:  # at a pole torch divides by the sine of nearly a multiple of pi
        reflected = (math.pi / torch.sin(x * math.pi)) ** 2 - y
    else:
        reflected = (-1) ** n * y - polynomial(_cotangent(x), _cotangent_derivative(n)[::-1])
        is_pole = torch.logical_and(_from_whole(x) == 0, is_below)
        reflected = torch.where(is_pole, math.inf * (-1) ** (n + 1), reflected)
    y = torch.where(is_below, reflected, y)
    return torch.where(x == 0, math.inf * (-1) ** (n + 1), y)


_LARGE = 20.0  # from here on Temme's expansion of the incomplete gamma function has float32's digits
_TERMS, _FRACTIONS = 60, 40  # that are enough up to there
_NEAR = (-139 / 777600, 1 / 2835, 1 / 864, -2 / 135, 1 / 12, -1 / 3)  # of 1 / apart - 1 / eta, in eta


def _incomplete(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return both normalised incomplete gamma functions, whose sum is 1, of positive numbers."""
    small = a.clamp(max=_LARGE)
    scale = torch.exp(small * torch.log(x) - x - _lgamma_above(small + 1))
    series = torch.ones(())
    for n in reversed(range(1, _TERMS)):
        series = 1 + series * x / (small + n)
    fraction = torch.zeros(())
    for n in reversed(range(1, _FRACTIONS)):
        fraction = n * (n - small) / (x + (2 * n + 1) - small - fraction)
    lower, upper = scale * series, scale * small / (x + 1 - small - fraction)
    is_low = x < small + 1
    lower, upper = torch.where(is_low, lower, 1 - upper), torch.where(is_low, 1 - lower, upper)
    far = _incomplete_of_large(a, x)
    return torch.where(a > _LARGE, far[0], lower), torch.where(a > _LARGE, far[1], upper)


def _incomplete_of_large(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Temme's uniform expansion (1979), of which two terms are enough."""
    apart = (x - a) / a
    half = apart - torch.log1p(apart)
    eta = torch.sqrt(2 * half) * torch.sign(apart)
    first = torch.where(apart.abs() < 0.1, polynomial(eta, _NEAR), 1 / apart - 1 / eta)
    rest = torch.exp(-a * half) / torch.sqrt(2 * math.pi * a) * (first - 1 / (540 * a))
    tail = 0.5 * torch.erfc(eta.abs() * torch.sqrt(a * 0.5))
    is_below = apart < 0
    return torch.where(is_below, tail, 1 - tail) - rest, torch.where(is_below, 1 - tail, tail) + rest


def _at_edges(a: Tensor, x: Tensor, y: Tensor, least: float) -> Tensor:
    """Choose the value at 0 and at infinity; `least` is that of the least x."""
    y = torch.where(a == 0, 1 - least, y)
    y = torch.where(torch.isnan(a) | torch.isnan(x), math.nan, y)
    y = torch.where((x == 0) | (a == math.inf), least, y)
    y = torch.where(x == math.inf, 1 - least, y)
    is_odd = (a < 0) | (x < 0) | ((a == 0) & (x == 0)) | ((a == math.inf) & (x == math.inf))
    return torch.where(is_odd, math.nan, y)


GAMMA: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.lgamma.default: of_floats(_lgamma),
        aten.mvlgamma.default: of_floats(_mvlgamma),
        aten.digamma.default: of_floats(_digamma),
        aten.polygamma.default: of_floats(_polygamma),
    }
)
INCOMPLETE: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.igamma.default: of_floats(lambda a, x: _at_edges(a, x, _incomplete(a, x)[0], 0.0)),
        aten.igammac.default: of_floats(lambda a, x: _at_edges(a, x, _incomplete(a, x)[1], 1.0)),
    }
)
