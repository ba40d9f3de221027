"""Quantising and dequantising with one scale: each element by itself, in any order."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # defines them
from torch.fx import GraphModule, Node

from dimorder.lowering.operators.pointwise import pointwise

quantized = torch.ops.quantized_decomposed

QUANTIZE, DEQUANTIZE = quantized.quantize_per_tensor.default, quantized.dequantize_per_tensor.default
DEQUANTIZE_CHANNELS = quantized.dequantize_per_channel.default  # of constants alone


def is_quantised(module: GraphModule) -> bool:
    """Whether a graph quantises any value."""
    return any(node.target is QUANTIZE for node in module.graph.nodes)


def left_out(node: Node) -> bool:
    """Leave a node out of its graph if it quantises what has just been dequantised from the same scale."""
    if node.target is not QUANTIZE:
        return False
    source = node.args[0]
    if not isinstance(source, Node) or source.target is not DEQUANTIZE or source.args[1:] != node.args[1:]:
        return False
    node.replace_all_uses_with(source.args[0])  # type: ignore[arg-type]
    node.graph.erase_node(node)
    return True


OPERATORS = (pointwise(QUANTIZE), pointwise(DEQUANTIZE))
