"""Read the shape and the type of an operand, for the rows of TOSA's table."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.fx import Node

from dimorder.targets.table import View
from dimorder.targets.tosa.writer import DTYPES, FLOATS


def size(operand: Any) -> tuple[int, ...]:
    """Return the shape of an operand: a View, a constant, or the node that a check gets."""
    return tuple((operand.meta["val"] if isinstance(operand, Node) else operand).shape)


def dtype_of(operand: Any) -> str:
    """Return the TOSA type of a View, a constant or a number."""
    if isinstance(operand, View):
        return str(operand.value.dtype)
    if isinstance(operand, Tensor):
        return DTYPES.get(operand.dtype, "FP32")  # also for a float64 number
    return "FP32" if isinstance(operand, float) else "INT32"


def sum_type(dtype: str) -> str:
    """Return the TOSA type of a sum of products of values with that type."""
    return dtype if dtype in FLOATS else accumulator_type(dtype)


def accumulator_type(dtype: str) -> str:
    """Return the TOSA type in which products of values with that type are added up."""
    return "FP32" if dtype in FLOATS else "INT48" if dtype == "INT16" else "INT32"
