"""Write elementary functions in exponentials, quotients and comparisons, for a target that has only these."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from dimorder.ops.parts_indexed import MOST_PAIRS
from dimorder.ops.parts_special import of_floats, polynomial

aten = torch.ops.aten

MOST_STEPS = 128  # of a topk among too many values to compare all pairs

# atan(x) / x on 0 … 1, by the square of x: off by 7e-8 at most in float32.
_ATAN = (
    *(-0.00174370115, 0.0106807195, -0.0307175089, 0.0574635579, -0.0837206395),
    *(0.10940199, -0.142615737, 0.199982306, -0.333332823, 0.999999998),
)


def _atan_near(x: Tensor) -> Tensor:
    return x * polynomial(x * x, _ATAN)


def _atan(x: Tensor) -> Tensor:
    """Return the angle, of either sign: that of -0 is -0."""
    is_far = x.abs() > 1
    angle = _atan_near(torch.where(is_far, 1 / x, x))
    return torch.where(is_far, torch.where(x < 0, -math.pi / 2, math.pi / 2) - angle, angle)


def _is_below(x: Tensor) -> Tensor:
    """Return whether numbers are negative; -0 is."""
    return torch.where(x == 0, 1 / x < 0, x < 0)


def _atan2(y: Tensor, x: Tensor) -> Tensor:
    above, right = y.abs(), x.abs()
    ratio = torch.minimum(above, right) / torch.maximum(above, right)
    ratio = torch.where(above == right, torch.where(above == 0, 0.0, 1.0), ratio)  # two zeros, two infinities
    angle = _atan_near(ratio)
    angle = torch.where(above > right, math.pi / 2 - angle, angle)
    angle = torch.where(_is_below(x), math.pi - angle, angle)
    angle = torch.where(torch.logical_or(torch.isnan(x), torch.isnan(y)), x + y, angle)
    return torch.where(_is_below(y), -angle, angle)


def _halved_powers(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return half of the powers of |x| and -|x|. The first power itself exceeds float32 earlier than half."""
    root = torch.exp(x.abs() / 2)
    return root * (root / 2), torch.exp(-x.abs()) / 2


def _cosh(x: Tensor) -> Tensor:
    more, less = _halved_powers(x)
    return more + less


def _sinh(x: Tensor) -> Tensor:
    (more, less), t = _halved_powers(x), torch.tanh(x / 2)
    far = more - less
    return torch.where(x.abs() < 1, 2 * t / (1 - t * t), torch.where(x < 0, -far, far))


def _sign(x: Tensor) -> Tensor:
    return torch.where(x > 0, 1.0, torch.where(x < 0, -1.0, 0.0))


def _nan_to_num(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    if not x.is_floating_point():
        return x
    limits = torch.finfo(x.dtype)
    y = torch.where(x == math.inf, limits.max if posinf is None else posinf, x)
    y = torch.where(x == -math.inf, limits.min if neginf is None else neginf, y)
    return torch.where(torch.isnan(x), nan or 0.0, y)


def _softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, x * 0))


def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rows, columns = x.shape[dim1], x.shape[dim2]
    places = torch.arange(rows * columns).reshape(rows, columns).diagonal(offset)
    rest = [d for d in range(x.dim()) if d not in (dim1 % x.dim(), dim2 % x.dim())]
    return torch.index_select(x.permute(*rest, dim1, dim2).flatten(-2), -1, places)


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Rank the values by the sort that is stable, or take the largest one after the other."""
    if not x.dim():
        return x, torch.zeros((), dtype=torch.int64)
    if largest and k <= MOST_STEPS and x.numel() * x.shape[dim] > MOST_PAIRS:
        return _topk_in_steps(x, k, dim)
    values, places = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


def _topk_in_steps(x: Tensor, k: int, dim: int) -> tuple[Tensor, Tensor]:
    """Take the largest value that is left, k times. The first of equal values is taken first."""
    y, size = x.transpose(dim, -1), x.shape[dim]
    places, is_float = torch.arange(size), x.is_floating_point()
    least = (torch.where(torch.isnan(y), 0.0, y) if is_float else y).amin(-1, True)
    taken, left, found = None, y, list[Tensor]()
    for _ in range(k):
        top = left.amax(-1, True)
        is_top = left == top
        if is_float:  # a NaN is the largest
            is_top = torch.logical_or(is_top, torch.logical_and(torch.isnan(left), torch.isnan(top)))
        if taken is not None:
            is_top = torch.logical_and(is_top, torch.logical_not(taken))
        at = torch.where(is_top, places, size).amin(-1, True)
        taken = places == at if taken is None else torch.logical_or(taken, places == at)
        left = torch.where(taken, least, y)
        found.append(at)
    at = torch.cat(found, -1)
    return torch.gather(y, -1, at).transpose(dim, -1), at.transpose(dim, -1)


def _arg_of_integers(extreme: Callable[..., Tensor], lacking: Collection[torch.dtype]) -> Callable[..., Any]:
    """Return a function for the place of an extreme integer: the first 1 among those equal to it."""

    def compute(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if x.dtype not in lacking or not x.dim() or (dim is None and keepdim):
            return NotImplemented
        x, dim = (x.reshape(-1), 0) if dim is None else (x, dim)
        return torch.argmax((x == extreme(x, dim, True)).to(torch.float32), dim, keepdim)

    return compute


def places_of(lacking: Collection[torch.dtype]) -> dict[Any, Callable[..., Any]]:
    """Return how places of extremes are written for a target that lacks these operators of some integers."""
    return {
        aten.argmax.default: _arg_of_integers(torch.amax, lacking),
        aten.argmin.default: _arg_of_integers(torch.amin, lacking),
    }


_OF_FLOATS: Mapping[Any, Callable[..., Any]] = {
    aten.atan.default: _atan,
    aten.asin.default: lambda x: _atan(x / torch.sqrt((1 - x) * (1 + x))),
    aten.acos.default: lambda x: 2 * _atan(torch.sqrt((1 - x) / (1 + x))),
    aten.atan2.default: _atan2,
    aten.expm1.default: lambda x: torch.where(
        x > 1, torch.exp(x) - 1, torch.tanh(x / 2) * (torch.exp(x) + 1)
    ),
    aten.cosh.default: _cosh,
    aten.sinh.default: _sinh,
    aten.tan.default: lambda x: torch.sin(x) / torch.cos(x),
    aten.sign.default: _sign,
    aten.sgn.default: _sign,
    aten.isfinite.default: lambda x: x.abs() < math.inf,
    aten.softshrink.default: _softshrink,
    **{packet.default: decomposition_table[packet.default] for packet in (aten.isinf, aten.hardshrink)},
}


def clamp_by_tensors(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Clamp by tensors, of which either may be missing."""
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


BOUNDS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {aten.clamp_min.Tensor: torch.maximum, aten.clamp_max.Tensor: torch.minimum}
)
LIMITS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {aten.nan_to_num.default: _nan_to_num, aten.clamp.Tensor: clamp_by_tensors, **BOUNDS}
)
ELEMENTARY: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        **{target: of_floats(function) for target, function in _OF_FLOATS.items()},
        **LIMITS,
        aten.diagonal.default: _diagonal,
        aten.topk.default: _topk,
    }
)
