"""Quantize by ExecuTorch's XNNPACKQuantizer, with two changes.

It looks for batch norms only where there are some: for each pattern of one, XNNPACKQuantizer of ExecuTorch
1.5.1 exports small networks. This takes 1.5 s, the rest of quantising a small network 0.1 s. torchao has
folded most batch norms by then. And a convolution before a ReLU is quantised dynamically too:
XNNPACKQuantizer leaves it to a pattern of both, which has no dynamic form.
"""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch.fx import GraphModule

from dimorder.graph.nodes import shown_as

aten = torch.ops.aten

# ReLUs → an operator that no pattern has.
_NOT_AS_RELU = dict.fromkeys((aten.relu.default, aten.relu_.default), aten.tanh.default)


class PatternQuantizer(XNNPACKQuantizer):  # type: ignore[misc]
    """XNNPACKQuantizer, without the patterns of batch norms that read no such operator in a graph."""

    def annotate(self, model: GraphModule) -> GraphModule:
        is_dynamic = self.global_config is not None and self.global_config.input_activation.is_dynamic
        with shown_as(model.graph, _NOT_AS_RELU if is_dynamic else {}):
            return self._annotated(model)

    def _annotated(self, model: GraphModule) -> GraphModule:
        norms = model.graph.find_nodes(op="call_function", target=aten.batch_norm.default)
        read = {norm.args[0].target for norm in norms}
        patterns: list[Any] = XNNPACKQuantizer.SUPPORTED_PATTERNS
        self.SUPPORTED_PATTERNS = [
            each for each in patterns if "bn" not in each.name or not read.isdisjoint(each.op_overloads)
        ]
        annotated: GraphModule = super().annotate(model)
        return annotated


def pattern_quantizer(*, is_per_channel: bool = True, is_dynamic: bool = False) -> PatternQuantizer:
    """Return the quantizer of all operators, with a scale for each channel of a weight or for all of it."""
    config = get_symmetric_quantization_config(is_per_channel=is_per_channel, is_dynamic=is_dynamic)
    quantizer: PatternQuantizer = PatternQuantizer().set_global(config)
    return quantizer
