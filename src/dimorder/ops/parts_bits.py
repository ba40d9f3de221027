"""Write functions of a float's bits in arithmetic on int32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.ops.parts_special import of_floats

aten = torch.ops.aten

_STEP = 1 << 23  # the bits of the exponent begin here
_HALF = 126  # the exponent's bits in 0.5
_NORMAL = torch.finfo(torch.float32).tiny


def _frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    is_small = x.abs() < _NORMAL
    bits = torch.where(is_small, x * 2.0**24, x).abs().view(torch.int32)
    exponent = torch.div(bits, _STEP, rounding_mode="floor")
    size = (bits - (exponent - _HALF) * _STEP).view(torch.float32)
    is_odd = torch.logical_or(x == 0, torch.logical_not(torch.isfinite(x)))
    exponent = torch.where(is_odd, 0, exponent - torch.where(is_small, _HALF + 24, _HALF))
    return torch.where(is_odd, x, torch.where(x < 0, -size, size)), exponent.to(torch.int32)


def _nextafter(x: Tensor, y: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(x.shape, y.shape)
    x, y = x.expand(shape), y.expand(shape)
    bits = x.view(torch.int32)
    away = (x < y) == (x > 0)
    near = (bits + torch.where(away, 1, -1).to(torch.int32)).view(torch.float32)
    least = torch.where(y < 0, -(2**31) + 1, 1).to(torch.int32).view(torch.float32)
    near = torch.where(x == 0, least, near)
    is_nan = torch.logical_or(torch.isnan(x), torch.isnan(y))
    return torch.where(is_nan, x + y, torch.where(x == y, y, near))


def _signbit(x: Tensor) -> Tensor:
    return (x.to(torch.float32).view(torch.int32) if x.is_floating_point() else x) < 0


BITS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.frexp.Tensor: of_floats(_frexp),
        aten.nextafter.default: of_floats(_nextafter),
    }
)
# For a target that has the bits of floats: other targets compute a sign, which they do not see in a NaN.
SIGN_BITS: Mapping[Any, Callable[..., Any]] = MappingProxyType({aten.signbit.default: _signbit})
