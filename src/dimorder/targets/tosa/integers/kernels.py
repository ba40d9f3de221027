"""Define the conditions under which a TOSA graph of integers computes an operator.

Values are functions of one quantized value, or sums in wider integers. Each row of the table has a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from dimorder.graph.quantized import Scaled, level_of
from dimorder.physical.annotations import Annotation, How
from dimorder.physical.fuse_quantized import WideKernel

Operands = Mapping[Node, Annotation]
OF_SUM = "a function of a sum that is not quantised"


def _no_other(operands: Operands) -> str | None:
    """Return why a call that is no function of one value is not computed."""
    return OF_SUM if _has_sum(operands) else "a function of two values"


def _has_sum(operands: Operands) -> bool:
    return any(each.how is How.WIDE for each in operands.values())


def unmet_integers(operands: Operands) -> str | None:
    """Require that integers stand for each operand exactly."""
    if _has_sum(operands):
        return "a sum that is not quantised"
    exact = all(each.exact_type is not None for each in operands.values())
    return None if exact else "a function of it that is not quantised"


def _unmet_bytes(operands: Operands) -> str | None:
    """Require the same of 8 bits."""
    types = [each.exact_type for each in operands.values()]
    wide = [of.dtype for of in types if of is not None and of.dtype == torch.int16]
    return unmet_integers(operands) or (f"{wide[0]}, where this is computed of int8 alone" if wide else None)


def _no_sum(operands: Operands) -> str | None:
    return OF_SUM if _has_sum(operands) else None


FUNCTION = WideKernel(_no_other, follows=True)
FUNCTION_OR_SUM = WideKernel(lambda operands: None, follows=True)
SLOPES = WideKernel(_no_sum, follows=True)  # one slope above 0, and others below
SUM = WideKernel(lambda operands: None)
INTEGERS, BYTES = WideKernel(unmet_integers), WideKernel(_unmet_bytes)
SELECTION = WideKernel(unmet_integers, keeps=True)


def quotient(divisor: Any) -> WideKernel:
    """Return the kernel of a division by a constant, a number or a node."""

    def unmet(operands: Operands) -> str | None:
        found = operands.get(divisor) if isinstance(divisor, Node) else None
        is_sum = found is not None and found.how is How.WIDE
        return "a division by a sum that is not quantised" if is_sum else None

    return WideKernel(unmet, follows=True)


def padded(value: float) -> WideKernel:
    """Return the kernel of padding with a number. A sum is padded with 0 alone."""

    def unmet(operands: Operands) -> str | None:
        reason = unmet_integers(operands)
        if reason is not None:
            return None if value == 0 and _has_sum(operands) else reason
        types = (each.exact_type for each in operands.values())
        fits = all(of is not None and level_of(value, of) is not None for of in types)
        return None if fits else f"a padding of {value}, which no integer stands for"

    return WideKernel(unmet, keeps=True)


def gathered(positions: str) -> WideKernel:
    """Return the kernel of elements at positions, which that argument says."""

    def unmet(operands: Operands) -> str | None:
        return unmet_integers(operands) if operands else "elements of a constant"

    return WideKernel(unmet, keeps=True, positions=(positions,))


def scattered(x: Any, values: Any) -> WideKernel:
    """Return the kernel of `x` with elements of `values` at `indices`; `x` may be a fitting constant."""

    def unmet(operands: Operands) -> str | None:
        types = {each.exact_type for each in operands.values()}
        if len(types) > 1:
            return "two values of which the integers have different scales"
        reason = unmet_integers(operands)
        if reason is not None or values not in operands:
            return reason or "elements of a constant"
        if x in operands:
            return None
        (of,) = types
        assert of is not None
        fits = isinstance(x, torch.Tensor) and all(
            level_of(number, of) is not None for number in x.unique().tolist()
        )
        return None if fits else "elements written into a constant of which no integers stand for the numbers"

    return WideKernel(unmet, keeps=True, positions=("indices",), constants=("self",))


def weighted(weight: Any) -> WideKernel | str:
    """Return the kernel of sums with a constant weight, or why there is none."""
    return unfit_weight(weight) or INTEGERS


def unfit_weight(weight: Any) -> str | None:
    """Return why a constant, with its output channels first, is no weight of TOSA's integers."""
    if not isinstance(weight, Scaled):
        return "a weight that is not quantised"
    if weight.integers.scale is None and weight.integers.along(0) is None:
        return "a weight whose scales are not those of its output channels"
    return None
