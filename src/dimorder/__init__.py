"""Choose, check and show memory formats in PyTorch: the public interface of dimorder.

A memory format is the order of a tensor's dimensions in memory: `lower` compiles a network at the least cost.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dimorder.algebra.dim_order import DimOrder
    from dimorder.algebra.layout import Layout
    from dimorder.api import load, lower, lower_sizes, plan
    from dimorder.capture.integer_boundary import Types
    from dimorder.eager.channels_last import collate, empty, is_channels_last, to_channels_last, to_contiguous
    from dimorder.eager.conversion import convert, unblock
    from dimorder.eager.inspection.inspection import expect_channels_last, inspect
    from dimorder.errors import DimorderError
    from dimorder.lowered import Lowered
    from dimorder.plans.make_contract import Orders
    from dimorder.quantization.quantize import QuantizedNetwork, quantize
    from dimorder.reading import Normalization
    from dimorder.runtime.program import Program
    from dimorder.signatures import load_signatures, save_signatures

__all__ = [
    "DimOrder",
    "DimorderError",
    "Layout",
    "Lowered",
    "Normalization",
    "Orders",
    "Program",
    "QuantizedNetwork",
    "Types",
    "collate",
    "convert",
    "empty",
    "expect_channels_last",
    "inspect",
    "is_channels_last",
    "load",
    "load_signatures",
    "lower",
    "lower_sizes",
    "plan",
    "quantize",
    "save_signatures",
    "to_channels_last",
    "to_contiguous",
    "unblock",
]

# Modules are imported at first use, so that `dimorder --help` does not wait for torch.
_HOMES = {
    "algebra.dim_order": ("DimOrder",),
    "algebra.layout": ("Layout",),
    "api": ("load", "lower", "lower_sizes", "plan"),
    "capture.integer_boundary": ("Types",),
    "eager.channels_last": ("collate", "empty", "is_channels_last", "to_channels_last", "to_contiguous"),
    "eager.conversion": ("convert", "unblock"),
    "eager.inspection.inspection": ("expect_channels_last", "inspect"),
    "errors": ("DimorderError",),
    "lowered": ("Lowered",),
    "plans.make_contract": ("Orders",),
    "quantization.quantize": ("QuantizedNetwork", "quantize"),
    "reading": ("Normalization",),
    "runtime.program": ("Program",),
    "signatures": ("load_signatures", "save_signatures"),
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "executorch"):  # executorch, for delegate authors, imports ExecuTorch's exporter
        return importlib.import_module(f"dimorder.{name}")
    for module, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(importlib.import_module(f"dimorder.{module}"), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
