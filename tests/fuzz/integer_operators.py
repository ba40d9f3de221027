"""List the operators of random networks whose integers are written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from dimorder.graph.quantized import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE
from tests.fuzz.contracted import CONTRACTED
from tests.fuzz.operators import OPERATORS
from tests.fuzz.rows import Draw, Drawn, Operator, plain

_TYPES = {"int8": (-128, 127, torch.int8), "uint8": (0, 255, torch.uint8)}


def quantised(x: Tensor, scale: float, zero_point: int, dtype: str = "int8") -> Tensor:
    integers: Tensor = QUANTIZE(x, scale, zero_point, *_TYPES[dtype])
    return integers


def dequantised(x: Tensor, scale: float, zero_point: int, dtype: str = "int8") -> Tensor:
    numbers: Tensor = DEQUANTIZE(x, scale, zero_point, *_TYPES[dtype])
    return numbers


def requantised(x: Tensor, scale: float, zero_point: int, dtype: str = "int8") -> Tensor:
    """Quantise numbers, and dequantise them again."""
    return dequantised(quantised(x, scale, zero_point, dtype), scale, zero_point, dtype)


def weight(integers: Tensor, dim: int | None, zero_point: int) -> Tensor:
    """A weight of int8, with a scale for each channel along `dim`, or one for all."""
    scale = 1 / (73 * math.prod(integers.shape[1:]) ** 0.5)
    if dim is None:
        numbers: Tensor = DEQUANTIZE(integers, scale, zero_point, -127, 127, torch.int8)
        return numbers
    size = integers.shape[dim]
    scales = scale * torch.linspace(0.6, 1.4, size)
    how = (scales, torch.full((size,), zero_point), dim, -127, 127, torch.int8)
    numbers = DEQUANTIZE_CHANNELS(integers, *how)
    return numbers


HELPERS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {each.__name__: each for each in (quantised, dequantised, requantised, weight)}
)


def _weighted(row: str, outputs: int) -> Operator:
    """A contraction with a weight of int8; `outputs` is the dimension of its output channels."""
    real = CONTRACTED[row]

    def draw(d: Draw) -> Drawn | None:
        def constant(shape: tuple[int, ...], kind: str = "normal", high: int = 0) -> str:
            return d.constant(shape, "int8" if len(shape) > 1 else kind, high)

        drawn = real.draw(replace(d, constant=constant))
        if drawn is None:
            return None
        dim = d.rng.choice([outputs] * 6 + [None, None, 1 - outputs])
        zero = d.rng.choice([0] * 9 + [3])
        return drawn[0], {**drawn[1], "channels": dim, "zero": zero}

    source = real.source.replace("{1}", "weight({1}, {channels}, {zero})")
    return Operator(source, draw, real.ranks)


WEIGHTED = {
    "conv1d_int8": _weighted("conv1d", 0),
    "conv2d_int8": _weighted("conv2d", 0),
    "conv_transpose2d_int8": _weighted("conv_transpose2d", 1),
    "linear_int8": _weighted("linear", 0),
}
# What a network does with integers.
INTEGERS: Mapping[str, Operator] = {
    "quantised": plain("quantised({0}, {scale}, {zero}, {dtype!r})"),
    "dequantised": plain("dequantised({0}, {scale}, {zero}, {dtype!r})"),
    "requantised": plain("requantised({0}, {scale}, {zero}, {dtype!r})"),
    **WEIGHTED,
}
# What networks are mostly made of that are quantised.
USUAL = {
    row: OPERATORS[row]
    for row in (
        *("conv2d", "conv2d_named", "conv_transpose2d", "conv1d", "linear", "matmul", "matmul_transposed"),
        *("add", "subtract", "multiply", "scale", "shift", "maximum", "gate", "mean", "cat", "cat3"),
        *(
            "relu",
            "relu6",
            "hardtanh",
            "clamp",
            "hardswish",
            "hardsigmoid",
            "silu",
            "gelu",
            "sigmoid",
            "tanh",
        ),
        *("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "upsample", "chunk", "split", "slice", "pad"),
        *("reshape", "permute", "transpose", "flatten", "unsqueeze", "select", "softmax", "leaky_relu"),
    )
}
# What moves integers as it does numbers.
MOVES = {
    row: OPERATORS[row]
    for row in (
        *("reshape", "permute", "transpose", "flatten", "unflatten", "unsqueeze", "squeeze", "expand"),
        *("repeat", "movedim", "slice", "select", "chunk", "split", "flip", "roll", "cat", "stack"),
    )
}
