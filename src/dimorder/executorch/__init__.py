"""Guard, check and convert dimension orders in ExecuTorch programs, with any delegate or none.

The author of a delegate writes a `DelegateLayout`, wraps a partitioner in `guarded`, and tests it by `sweep`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dimorder.errors import install_of, installed

if TYPE_CHECKING:
    from dimorder.executorch.checking import check_file, check_program
    from dimorder.executorch.file_conversions import FileConversions, conversions_in
    from dimorder.executorch.guard import guarded
    from dimorder.executorch.layout import ARM_TOSA, PORTABLE, VULKAN, XNNPACK, DelegateLayout
    from dimorder.executorch.legalization import Legalize, legalize
    from dimorder.executorch.passes import (
        Annotate,
        InsertDimOrderOperators,
        RevertDimOrderOperators,
        canonicalize,
    )
    from dimorder.executorch.probing import probe, sweep
    from dimorder.executorch.runner_project import export_runner

_HOMES = {
    "checking": ("check_file", "check_program"),
    "file_conversions": ("FileConversions", "conversions_in"),
    "guard": ("guarded",),
    "layout": ("ARM_TOSA", "DelegateLayout", "PORTABLE", "VULKAN", "XNNPACK"),
    "legalization": ("Legalize", "legalize"),
    "passes": ("Annotate", "InsertDimOrderOperators", "RevertDimOrderOperators", "canonicalize"),
    "probing": ("probe", "sweep"),
    "runner_project": ("export_runner",),
}
__all__ = [
    "ARM_TOSA",
    "PORTABLE",
    "VULKAN",
    "XNNPACK",
    "Annotate",
    "DelegateLayout",
    "FileConversions",
    "InsertDimOrderOperators",
    "Legalize",
    "RevertDimOrderOperators",
    "canonicalize",
    "check_file",
    "check_program",
    "conversions_in",
    "export_runner",
    "guarded",
    "legalize",
    "probe",
    "sweep",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            with installed(f"{__name__}.{name}", install_of("executorch")):
                globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
