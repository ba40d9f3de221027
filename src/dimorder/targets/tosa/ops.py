"""List the operators that TOSA computes, and check whether it computes a given call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from dimorder.ops import dialect as dialect  # registers torch.ops.dimorder
from dimorder.ops.parts_pairs import unsorted
from dimorder.targets.table import Table, unsupported_tensor
from dimorder.targets.tosa import division, indices, logic, moves, pointwise, reductions, resize, spatial
from dimorder.targets.tosa.dtypes import DTYPES

_OF_FLOATS = tuple(dtype for dtype in DTYPES if dtype != torch.uint8)


def unsupported_value(value: Any) -> str | None:
    """Return why a value of the program cannot be a tensor of TOSA, or None."""
    return unsupported_tensor(value, "TOSA", tuple(dtype for dtype in _OF_FLOATS if dtype != torch.float64))


def unfit_input(operators: Table, value: Any) -> str | None:
    """Return why a value cannot be an input of a graph of these operators, or None. Bytes can."""
    return None if value.dtype == torch.uint8 else operators.unfit(value, False)


def _unfit(value: Any, is_constant: bool) -> str | None:
    """Return why a value cannot be a tensor of TOSA; a constant number takes the type of its operator."""
    return None if is_constant and not value.dim() else unsupported_tensor(value, "TOSA", _OF_FLOATS)


LACKS: Mapping[Any, Callable[[Node], str]] = MappingProxyType({torch.ops.aten.sort.stable: unsorted})

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
    LACKS,
)
