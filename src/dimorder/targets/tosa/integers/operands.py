"""Read the operands of a call for rows of integers, or refuse one."""

from __future__ import annotations

from typing import Any

from dimorder.errors import UnsupportedError
from dimorder.targets.tosa.integers.numbers import IntegerWriter, Numbers
from dimorder.targets.tosa.writer import TosaValue


def refused(found: str) -> UnsupportedError:
    """Return the error for a row that cannot compute in integers. The emitter adds the operator."""
    return UnsupportedError("an operator", found, "quantise it")


def numbers(w: IntegerWriter, operand: Any) -> Numbers:
    """Return the numbers that an operand's integers stand for."""
    held = w.dense(operand)
    if isinstance(held, TosaValue):
        raise refused(f"{held.dtype}, where quantised values are computed with")
    return held  # type: ignore[no-any-return]
