"""Compute with uint8 in a graph of integers.

A uint8 is held as the INT8 with its bits. That is enough to move it. Arithmetic and comparisons read it as an
INT32 from 0 to 255, and keep the last 8 bits of a result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dimorder.targets.table import Arguments, Row, whole
from dimorder.targets.tosa.calls import changed
from dimorder.targets.tosa.writer import TosaWriter

_LAST_BITS = 255  # of an INT32


def with_unsigned(row: Row) -> Row:
    """Return the row of a call without floats that reads each uint8 as an INT32, and may give a uint8."""

    def build(w: TosaWriter, a: Arguments) -> Any:
        wide: dict[str, Any] = {name: _widened(w, getattr(a, name)) for name in a.unsigned}
        if a.dtype != torch.uint8:
            return row.build(w, changed(a, **wide))
        y = row.build(w, changed(a, dtype=torch.int32, **wide))
        return w.elementwise("CAST", w.elementwise("BITWISE_AND", y, _LAST_BITS), dtype="INT8")

    return replace(row, build=build)


def _widened(w: TosaWriter, operand: Any) -> Any:
    if isinstance(operand, Tensor):
        return operand.to(torch.int32)
    wide = w.elementwise("CAST", w.dense(operand), dtype="INT32")
    return whole(w.elementwise("BITWISE_AND", wide, _LAST_BITS))


def bits(number: float) -> int:
    """Return the INT8 with the bits of a number in uint8.

    >>> bits(200), bits(100)
    (-56, 100)
    """
    return (int(number) + 128) % 256 - 128
