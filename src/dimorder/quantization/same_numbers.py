"""Refuse a network that another quantizer's passes changed, as a run in floats shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from dimorder.errors import UnsupportedError
from dimorder.graph.interpreter import GraphRun
from dimorder.modules import unchanged, unwritten
from dimorder.quantization.wrapped import WrappedQuantizer

# Passes write some functions as polynomials, and infinities as large numbers.
_ALLOWED = 0.05


class SameNumbers(WrappedQuantizer):
    """Another quantizer, whose passes must not change what the network computes.

    Arm's pass for cosine similarity takes dimension 1, whatever the network says (ExecuTorch 1.5.1).
    `examples` are some inputs, flat; the first one is run.
    """

    def __init__(self, quantizer: Any, examples: Sequence[Sequence[Any]]) -> None:
        super().__init__(quantizer)
        self.example = examples[0]

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        try:
            wanted = self._results(model)
        except Exception:  # the example is explained when it is observed
            return super().transform_for_annotation(model)
        transformed = super().transform_for_annotation(model)
        found = changed(wanted, self._results(transformed))
        if found is not None:
            fix = "write the operator in other operators, or lower the network in float"
            raise UnsupportedError(f"quantizer {type(self.quantizer).__name__}", found, fix)
        return transformed

    def _results(self, model: GraphModule) -> list[Tensor]:
        with unchanged(model), unwritten(self.example):
            return GraphRun(model).tensors(*self.example)


def changed(wanted: Sequence[Tensor], got: Sequence[Tensor]) -> str | None:
    """Return how results differ from those of the network, or None; what is no number there may be one here.

    >>> import torch
    >>> changed([torch.tensor([1.0, 2.0])], [torch.tensor([1.0, 3.0])])
    'its passes change the network: output 0 is off by 45% in float, on the first example'
    """
    for i, (x, y) in enumerate(zip(wanted, got, strict=True)):
        told = f"its passes change the network: output {i}"
        if x.shape != y.shape:
            return f"{told} becomes {tuple(y.shape)}, where the network has {tuple(x.shape)}"
        if not x.is_floating_point():
            continue
        kept = x.isfinite()
        before, after = x[kept].double(), y[kept].double()
        error = float((after - before).norm() / before.norm().clamp_min(1e-30)) if kept.any() else 0.0
        if not error < _ALLOWED:
            return f"{told} is off by {error:.0%} in float, on the first example"
    return None
