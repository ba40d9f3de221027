"""dimorder: the memory-format layer for PyTorch.

See, check, choose and lower the order in which tensors lie in memory.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dimorder.algebra.dim_order import DimOrder
    from dimorder.api import Lowered, load, lower, plan
    from dimorder.errors import DimorderError
    from dimorder.runtime.program import Program

__all__ = ["DimOrder", "DimorderError", "Lowered", "Program", "load", "lower", "plan"]

# Public name → its module, imported when the name is first used: `dimorder --help` need not wait for torch.
_HOMES = {
    "DimOrder": "dimorder.algebra.dim_order",
    "DimorderError": "dimorder.errors",
    "Lowered": "dimorder.api",
    "Program": "dimorder.runtime.program",
    "load": "dimorder.api",
    "lower": "dimorder.api",
    "plan": "dimorder.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
