"""Refuse a network that tools change before it is quantised, as a run in floats shows."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import tensors_in

aten = torch.ops.aten

# Passes write some functions as polynomials, and infinities as large numbers.
_ALLOWED = 0.05
# A rounding may exchange what these select, and with it all that is computed from it.
_SELECTS = (
    *(aten.topk.default, aten.sort.default, aten.sort.stable, aten.argsort.default),
    *(aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default),
    *(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default),
)


def require_same(network: GraphModule, wanted: Any, got: Any) -> None:
    """Check that torchao and the quantizer's passes have not changed what a network computes.

    Args:
        network: the float network. One that selects places is compared in shapes alone.
        wanted: its results for the first example.
        got: those of the prepared network, whose observers change no number.

    Raises:
        UnsupportedError: for the first output that is changed.
    """
    selects = any(node.target in _SELECTS for node in network.graph.nodes)
    for i, (x, y) in enumerate(zip(tensors_in(wanted), tensors_in(got), strict=True)):
        found = ""
        if x.shape != y.shape:
            found = f"becomes {tuple(y.shape)}, where the network has {tuple(x.shape)}"
        elif x.is_floating_point() and not selects:
            kept = x.isfinite()  # what is no number may become one
            before, after = x[kept].double(), y[kept].double()
            error = float((after - before).norm() / before.norm().clamp_min(1e-30)) if kept.any() else 0.0
            found = f"is off by {error:.0%} in float, on the first example" if not error < _ALLOWED else ""
        if found:
            fix = "write the operator in other operators, or lower the network in float"
            raise UnsupportedError("the network, before it is quantised", f"a tool's output {i} {found}", fix)
