"""Write the remainder of whole numbers in a quotient, as Python has it: with the sign of the divisor."""

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


REMAINDERS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {aten.remainder.Tensor: _remainder, aten.remainder.Scalar: _remainder}
)
