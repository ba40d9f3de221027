"""List the operators that LiteRT computes, and check whether it computes a given call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.ops import dialect as dialect  # registers torch.ops.dimorder
from dimorder.targets.litert import indices, logic, moves, pointwise, quantize, reductions, spatial
from dimorder.targets.litert.flatbuffer import DTYPES, MAX_SLICED
from dimorder.targets.litert.integer_kernels import KERNELS
from dimorder.targets.table import Row, Table, unsupported_tensor

SLICE, FLIP = torch.ops.aten.slice.Tensor, torch.ops.aten.flip.default

QUANTIZED = frozenset((torch.int8, torch.uint8))  # what only moves, quantizes and dequantizes read


def unsupported_value(value: Any) -> str | None:
    """Return why a value of the program cannot be a tensor of a `.tflite`, or None."""
    reason = unsupported_tensor(value, "LiteRT", [each for each in DTYPES if each not in QUANTIZED])
    is_other_float = isinstance(value, Tensor) and value.is_floating_point() and value.dtype not in DTYPES
    return f"{reason}; convert with .float()" if is_other_float else reason


def _unfit(value: Any, is_constant: bool) -> str | None:
    """Return why a value cannot be a tensor; a constant number takes the type of its operator."""
    return None if is_constant and not value.dim() else unsupported_value(value)


def unfit_input(value: Any) -> str | None:
    """Return why a value cannot be an input of a file, or None. Integers of 8 bits can."""
    return None if value.dtype in QUANTIZED else unsupported_value(value)


_ROWS: Mapping[Any, Row] = {
    **pointwise.ROWS,
    **logic.ROWS,
    **moves.ROWS,
    **indices.ROWS,
    **reductions.ROWS,
    **spatial.ROWS,
    **quantize.ROWS,
}
OPERATORS = Table(
    "LiteRT",
    MappingProxyType({name: replace(row, kernel=KERNELS.get(name)) for name, row in _ROWS.items()}),
    _unfit,
)


def with_moves(table: Table, *targets: Any) -> Table:
    """Return the table with slices of floats with steps, or flips of floats, by LiteRT's own kernels.

    Views and slices stay in XNNPACK's delegate. But such views need a size of which the step is a divisor at
    all sizes, and such slices a fixed size.
    """

    def outside(row: Row) -> Row:
        return replace(row, check=lambda a: None if len(a.shape) <= MAX_SLICED else row.check(a))

    rows = {target: outside(table.rows[target]) for target in targets if target in table.rows}
    return replace(table, rows={**table.rows, **rows})
