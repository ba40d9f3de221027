"""Write the matmul of groups of rows, each with a matrix of its own, as mixtures of experts have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Matrices that rows select are read, copied and packed by each call: thrice a constant's reading.
_SELECTED_COST = 3


def _grouped_matmul(
    x: Tensor, weights: Tensor, ends: Tensor | None = None, bias: None = None, out_dtype: Any = None
) -> Any:
    """Multiply rows (S, K) by matrices (E, K, N): those up to the first end by the first one, and so on.

    Finite rows after the last end become zeros. With few rows, each is multiplied by its own matrix. Else it
    stands in its matrix's columns of a row of E * K elements, zeros elsewhere, which one linear multiplies.
    """
    if x.dim() != 2 or weights.dim() != 3 or ends is None or bias is not None:
        return NotImplemented
    (rows, inner), (experts, _, outer) = x.shape, weights.shape
    is_after = torch.arange(rows).unsqueeze(1) >= ends
    if isinstance(rows, int) and rows * _SELECTED_COST <= experts:
        expert = is_after.to(torch.int64).sum(1)
        y = torch.matmul(x.unsqueeze(1), weights[expert.clamp_max(experts - 1)]).squeeze(1)
        y = y * (expert < experts).to(x.dtype).unsqueeze(1)
    else:
        within = 1 - is_after.to(x.dtype)
        within = torch.cat([within[:, :1], within[:, 1:] - within[:, :-1]], 1)
        apart = (within.unsqueeze(2) * x.unsqueeze(1)).reshape(rows, experts * inner)
        y = F.linear(apart, weights.permute(2, 0, 1).reshape(outer, experts * inner))
    return y if out_dtype is None else y.to(out_dtype)


GROUPED: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {torch.ops.aten._grouped_mm.default: _grouped_matmul}
)
# Operators of other libraries, by name: they are registered when the library is imported.
SAME_AS: Mapping[str, Any] = MappingProxyType(
    {"transformers.grouped_mm_fallback.default": torch.ops.aten._grouped_mm.default}
)
