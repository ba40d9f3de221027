"""Refuse a network that tools change before it is quantised, as a run in floats shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from dimorder.errors import UnsupportedError
from dimorder.graph.interpreter import GraphRun
from dimorder.modules import unchanged, unwritten
from dimorder.quantization.wrapped import WrappedQuantizer

aten = torch.ops.aten

# Passes write some functions as polynomials, and infinities as large numbers.
_ALLOWED = 0.05
# A rounding may exchange what these select, and with it all that is computed from it.
_SELECTS = (
    *(aten.topk.default, aten.sort.default, aten.sort.stable, aten.argsort.default),
    *(aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default),
    *(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default),
)


class SameNumbers(WrappedQuantizer):
    """Another quantizer, whose passes must not change what the network computes.

    Arm's pass for cosine similarity takes dimension 1, whatever the network says (ExecuTorch 1.5.1).
    `examples` are some inputs, flat; the first one is run.
    """

    def __init__(self, quantizer: Any, examples: Sequence[Sequence[Any]]) -> None:
        super().__init__(quantizer)
        self.examples = examples

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        wanted = results_of(model, self.examples)
        transformed = super().transform_for_annotation(model)
        require_same(transformed, self.examples, wanted, f"quantizer {type(self.quantizer).__name__}")
        return transformed


def results_of(model: GraphModule, examples: Sequence[Sequence[Any]]) -> list[Tensor] | None:
    """Return a network's results for the first example; None without any, or if the network does not take it.

    An example that it does not take is explained when it is observed.
    """
    try:
        with unchanged(model), unwritten(examples[0]), torch.no_grad():
            return GraphRun(model).tensors(*examples[0])
    except Exception:  # whatever a network may raise
        return None


def require_same(
    model: GraphModule, examples: Sequence[Sequence[Any]], wanted: Sequence[Tensor] | None, tool: str
) -> None:
    """Check that a tool has not changed what a network computes before it is quantised.

    Args:
        model: what the tool has made. If it selects places, only shapes are compared; if it does not run,
            observing it says why.
        examples: some inputs, flat; the first one is run.
        wanted: the network's results for it; None if it has none.
        tool: the tool's name, for errors.

    Raises:
        UnsupportedError: for the first output that is changed.
    """
    got = None if wanted is None else results_of(model, examples)
    if wanted is None or got is None:
        return
    selects = any(node.target in _SELECTS for node in model.graph.nodes)
    for i, (x, y) in enumerate(zip(wanted, got, strict=True)):
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
            raise UnsupportedError(tool, f"its passes change the network: output {i} {found}", fix)
