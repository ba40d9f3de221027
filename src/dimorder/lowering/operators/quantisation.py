"""Quantising and dequantising with one scale: each element by itself, in any order."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # defines them

from dimorder.lowering.operators.pointwise import pointwise

quantized = torch.ops.quantized_decomposed

QUANTIZE, DEQUANTIZE = quantized.quantize_per_tensor.default, quantized.dequantize_per_tensor.default
DEQUANTIZE_CHANNELS = quantized.dequantize_per_channel.default  # of constants alone

OPERATORS = (pointwise(QUANTIZE), pointwise(DEQUANTIZE))
