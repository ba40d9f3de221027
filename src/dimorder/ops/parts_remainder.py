"""Write quotients that are rounded to whole numbers, and the remainders of whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _remainder(x: Tensor, y: Any) -> Any:
    dtype = torch.result_type(x, y)
    if dtype.is_floating_point or dtype == torch.bool:
        return NotImplemented
    x = x.to(dtype)
    return x - torch.div(x, y, rounding_mode="floor") * y


def _whole_quotient(x: Any, y: Any, *, rounding_mode: str | None = "floor") -> Any:
    """Write a quotient of floats. ExecuTorch's kernel that rounds down gives fractions: 13.000001."""
    dtype = torch.result_type(x, y)
    if rounding_mode is None or not dtype.is_floating_point:
        return NotImplemented
    if rounding_mode == "trunc":
        return torch.trunc(x / y)
    if not isinstance(y, Tensor) and y == 0:
        return x / y
    x = x.to(dtype) if isinstance(x, Tensor) else torch.full([], x, dtype=dtype)
    rest = torch.fmod(x, y)
    whole = torch.round((x - rest) / y)
    floor = torch.where((rest != 0) & ((rest < 0) != (y < 0)), whole - 1, whole)
    return torch.where(y == 0, x / y, floor) if isinstance(y, Tensor) else floor


REMAINDERS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {aten.remainder.Tensor: _remainder, aten.remainder.Scalar: _remainder}
)
QUOTIENTS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.floor_divide.default: _whole_quotient,
        aten.floor_divide.Scalar: _whole_quotient,
        aten.div.Tensor_mode: _whole_quotient,
        aten.div.Scalar_mode: _whole_quotient,
    }
)
