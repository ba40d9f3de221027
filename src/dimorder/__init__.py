"""dimorder: the memory-format layer for PyTorch. See, check, choose and lower the order in which tensors lie in memory."""

from __future__ import annotations

from dimorder.algebra.dim_order import DimOrder
from dimorder.api import Lowered, lower, plan
from dimorder.errors import DimorderError
from dimorder.runtime.program import Program, load

__all__ = ["DimOrder", "DimorderError", "Lowered", "Program", "load", "lower", "plan"]
