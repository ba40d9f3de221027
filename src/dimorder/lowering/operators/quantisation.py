"""Quantising and dequantising with one scale: each element by itself, in any order."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # defines them
from torch.fx import GraphModule

from dimorder.lowering.operators.pointwise import pointwise

quantized = torch.ops.quantized_decomposed

QUANTIZE, DEQUANTIZE = quantized.quantize_per_tensor.default, quantized.dequantize_per_tensor.default
DEQUANTIZE_CHANNELS = quantized.dequantize_per_channel.default  # of constants alone


def is_quantised(module: GraphModule) -> bool:
    """Whether a graph quantises any value."""
    return any(node.target is QUANTIZE for node in module.graph.nodes)


OPERATORS = (pointwise(QUANTIZE), pointwise(DEQUANTIZE))
