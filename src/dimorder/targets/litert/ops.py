"""List the operators that LiteRT computes, and check whether it computes a given call."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from torch import Tensor

from dimorder.ops import dialect as dialect  # registers torch.ops.dimorder
from dimorder.targets.litert import indices, logic, moves, pointwise, reductions, spatial
from dimorder.targets.litert.flatbuffer import DTYPES
from dimorder.targets.table import Table


def unsupported_value(value: Any) -> str | None:
    """Return why a value of the program cannot be a tensor of a `.tflite`, or None."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__} where LiteRT wants a tensor"
    if value.dtype not in DTYPES:
        way_out = "; convert with .float()" if value.is_floating_point() else ""
        return f"{value.dtype}; this target has {', '.join(str(dtype) for dtype in DTYPES)}{way_out}"
    if not all(isinstance(size, int) for size in value.shape):
        return f"the symbolic shape {tuple(value.shape)}"
    if value.numel() == 0:
        return f"the empty shape {tuple(value.shape)}"
    return None


def _unfit(value: Any, is_constant: bool) -> str | None:
    """Return why a value cannot be a tensor; a constant number takes the type of its operator."""
    return None if is_constant and not value.dim() else unsupported_value(value)


OPERATORS = Table(
    "LiteRT",
    MappingProxyType(
        {
            **pointwise.ROWS,
            **logic.ROWS,
            **moves.ROWS,
            **indices.ROWS,
            **reductions.ROWS,
            **spatial.ROWS,
        }
    ),
    _unfit,
)
