"""List the operators that TOSA computes, and check whether it computes a given call."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from dimorder.ops import dialect as dialect  # registers torch.ops.dimorder
from dimorder.targets.table import Table, unsupported_tensor
from dimorder.targets.tosa import division, indices, logic, moves, pointwise, reductions, resize, spatial
from dimorder.targets.tosa.dtypes import DTYPES


def unsupported_value(value: Any) -> str | None:
    """Return why a value of the program cannot be a tensor of TOSA, or None."""
    return unsupported_tensor(value, "TOSA", DTYPES)


def _unfit(value: Any, is_constant: bool) -> str | None:
    """Return why a value cannot be a tensor of TOSA; a constant number takes the type of its operator."""
    return None if is_constant and not value.dim() else unsupported_value(value)


OPERATORS = Table(
    "TOSA",
    MappingProxyType(
        {
            **pointwise.ROWS,
            **logic.ROWS,
            **division.ROWS,
            **moves.ROWS,
            **indices.ROWS,
            **reductions.ROWS,
            **spatial.ROWS,
            **resize.ROWS,
        }
    ),
    _unfit,
)
