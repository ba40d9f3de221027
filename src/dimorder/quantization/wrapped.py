"""Wrap a quantizer of torchao, to change what it is given or what it annotates."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from dimorder.quantization.refusals import explained_by_pass


class WrappedQuantizer(Quantizer):  # type: ignore[misc]
    """Another quantizer, whose errors are explained; subclasses change single steps."""

    def __init__(self, quantizer: Any) -> None:
        super().__init__()
        self.quantizer = quantizer

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        with self._explained():
            transformed: GraphModule = self.quantizer.transform_for_annotation(model)
        return transformed

    def annotate(self, model: GraphModule) -> GraphModule:
        with self._explained():
            annotated: GraphModule = self.quantizer.annotate(model)
        return annotated

    def _explained(self) -> AbstractContextManager[None]:
        """Explain what another tool's quantizer raises; an error of ours stays as it is."""
        ours = isinstance(self.quantizer, WrappedQuantizer)
        return nullcontext() if ours else explained_by_pass(f"quantizer {type(self.quantizer).__name__}")

    def validate(self, model: GraphModule) -> None:
        """Check nothing. Arm's quantizer compares devices, and takes a size that is computed for one."""

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: Any) -> None:
        self.quantizer.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)
