"""List the operators that LiteRT computes, and check whether it computes a given call."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from torch import Tensor

from dimorder.ops import dialect as dialect  # registers torch.ops.dimorder
from dimorder.targets.litert import indices, logic, moves, pointwise, reductions, spatial
from dimorder.targets.litert.flatbuffer import DTYPES
from dimorder.targets.table import Table, unsupported_tensor


def unsupported_value(value: Any) -> str | None:
    """Return why a value of the program cannot be a tensor of a `.tflite`, or None."""
    reason = unsupported_tensor(value, "LiteRT", DTYPES)
    is_other_float = isinstance(value, Tensor) and value.is_floating_point() and value.dtype not in DTYPES
    return f"{reason}; convert with .float()" if is_other_float else reason


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
