"""Read and change the arguments of a call, for the rows of TOSA's tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor

from dimorder.targets.table import Arguments, View
from dimorder.targets.tosa.dtypes import DTYPES


def dtype_of(operand: Any) -> str:
    """Return the TOSA type of a View, a constant or a number."""
    if isinstance(operand, View):
        return str(operand.value.dtype)
    if isinstance(operand, Tensor):
        return DTYPES.get(operand.dtype, "FP32")  # also for a float64 number
    return "FP32" if isinstance(operand, float) else "INT32"


def changed(a: Arguments, **arguments: Any) -> Arguments:
    """Return the same call with some other arguments."""
    return SimpleNamespace(**{**vars(a), **arguments})
