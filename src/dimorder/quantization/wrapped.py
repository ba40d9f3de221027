"""Wrap a quantizer of torchao, to change what it is given or what it annotates."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer


class WrappedQuantizer(Quantizer):  # type: ignore[misc]
    """Another quantizer; subclasses change single steps."""

    def __init__(self, quantizer: Any) -> None:
        super().__init__()
        self.quantizer = quantizer

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        transformed: GraphModule = self.quantizer.transform_for_annotation(model)
        return transformed

    def annotate(self, model: GraphModule) -> GraphModule:
        annotated: GraphModule = self.quantizer.annotate(model)
        return annotated

    def validate(self, model: GraphModule) -> None:
        """Check nothing. Arm's quantizer compares devices, and takes a size that is computed for one."""

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: Any) -> None:
        self.quantizer.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)
