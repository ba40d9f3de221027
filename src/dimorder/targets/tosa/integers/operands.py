"""Decides how rows of integers read the operands of a call, and how they refuse one."""

from __future__ import annotations

from typing import Any

from dimorder.errors import UnsupportedError
from dimorder.targets.tosa.integers.numbers import IntegerWriter, Numbers
from dimorder.targets.tosa.writer import TosaValue


def refused(found: str) -> UnsupportedError:
    """What is found where a row cannot compute in integers; the emitter says of which operator."""
    return UnsupportedError("an operator", found, "quantise it")


def numbers(w: IntegerWriter, operand: Any) -> Numbers:
    """What integers of an operand stand for."""
    held = w.dense(operand)
    if isinstance(held, TosaValue):
        raise refused(f"{held.dtype}, where quantised values are computed with")
    return held  # type: ignore[no-any-return]
