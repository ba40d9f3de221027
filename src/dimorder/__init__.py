"""Choose, check and show memory formats in PyTorch: the public interface of dimorder.

A memory format is the order in which a tensor's dimensions lie in memory, such as NCHW or NHWC. `lower`
compiles a network at the least layout cost, and `load` runs the result.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dimorder.algebra.dim_order import DimOrder
    from dimorder.algebra.layout import Layout
    from dimorder.api import load, lower, plan
    from dimorder.capture.integer_boundary import Types
    from dimorder.eager.channels_last import (
        collate,
        empty,
        is_channels_last,
        to_channels_last,
        to_contiguous,
    )
    from dimorder.eager.conversion import convert, unblock
    from dimorder.eager.inspection.expect import expect_channels_last
    from dimorder.eager.inspection.inspection import inspect
    from dimorder.errors import DimorderError
    from dimorder.lowered import Lowered
    from dimorder.plans.make_contract import Orders
    from dimorder.quantization.quantize import QuantizedNetwork, quantize
    from dimorder.runtime.program import Program

__all__ = [
    "DimOrder",
    "DimorderError",
    "Layout",
    "Lowered",
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
    "lower",
    "plan",
    "quantize",
    "to_channels_last",
    "to_contiguous",
    "unblock",
]

# Public name → its module. Modules are imported at first use, so that `dimorder --help` does not wait for
# torch.
_HOMES = {
    "DimOrder": "dimorder.algebra.dim_order",
    "DimorderError": "dimorder.errors",
    "Layout": "dimorder.algebra.layout",
    "Lowered": "dimorder.lowered",
    "Orders": "dimorder.plans.make_contract",
    "Program": "dimorder.runtime.program",
    "QuantizedNetwork": "dimorder.quantization.quantize",
    "Types": "dimorder.capture.integer_boundary",
    "collate": "dimorder.eager.channels_last",
    "convert": "dimorder.eager.conversion",
    "empty": "dimorder.eager.channels_last",
    "expect_channels_last": "dimorder.eager.inspection.expect",
    "inspect": "dimorder.eager.inspection.inspection",
    "is_channels_last": "dimorder.eager.channels_last",
    "load": "dimorder.api",
    "lower": "dimorder.api",
    "plan": "dimorder.api",
    "quantize": "dimorder.quantization.quantize",
    "to_channels_last": "dimorder.eager.channels_last",
    "to_contiguous": "dimorder.eager.channels_last",
    "unblock": "dimorder.eager.conversion",
}


def __getattr__(name: str) -> Any:
    if name == "executorch":  # for delegate authors; imports ExecuTorch's exporter
        return importlib.import_module("dimorder.executorch")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
