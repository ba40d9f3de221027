"""Give ExecuTorch the largest shapes of a program's tensors, for which it plans memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult
from torch.utils import _pytree as pytree

from dimorder.capture.claims import largest

_MOST = 10_000  # combinations of sizes that are tried for a size: a fraction of a second


class LargestShapes(ConstraintBasedSymShapeEvalPass):  # type: ignore[misc]
    """Replace dynamic sizes by their largest values.

    ExecuTorch's own pass bounds each part of an expression separately. It takes H + (-H) % 32 to be 128 if H
    is at most 97. It says more of a view than of the memory that the view shows, and the runtime refuses that
    file.

    Args:
        ranges: The ranges of the program's dynamic sizes.
    """

    def __init__(self, ranges: Mapping[Any, Any]) -> None:
        super().__init__()
        self.ranges = ranges
        self.known: dict[Any, int | None] = {}

    def call(self, graph_module: GraphModule) -> PassResult:
        """Write the largest shapes into the specs of a program's nodes."""
        parts = (part for part in graph_module.modules() if isinstance(part, GraphModule))
        specs = (pytree.tree_leaves(node.meta.get("spec")) for part in parts for node in part.graph.nodes)
        for spec in (spec for each in specs for spec in each if isinstance(spec, TensorSpec)):
            spec.shape = [*map(self._largest, spec.shape)]
        result: PassResult = super().call(graph_module)
        return result

    def _largest(self, size: int | torch.SymInt) -> int | torch.SymInt:
        """Return the largest value of a size, or the size itself if there are too many values."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in self.known:
            self.known[expression] = largest(expression, self.ranges, _MOST)
        found = self.known[expression]
        return size if found is None else found
