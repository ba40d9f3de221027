"""Operators and products between quantised values, which XNNPACK computes in int8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.graph.quantized import DEQUANTIZE_CHANNELS
from tests.targets.quantised import quantised


class Between(nn.Module):
    """One operator between quantised values of awkward scales and zero points."""

    def __init__(self, compute: Callable[..., Tensor], result: tuple[float, int]) -> None:
        super().__init__()
        self.compute, self.result = compute, result

    def forward(self, *inputs: Tensor) -> Tensor:
        return quantised(self.compute(*(quantised(x, 0.0247, 5) for x in inputs)), *self.result)


X, Y = (torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
IN_INT8: dict[str, Any] = {
    "hardswish": (F.hardswish, (X,)),
    "sigmoid": (torch.sigmoid, (X,)),
    "tanh": (torch.tanh, (X,)),
    "gelu": (F.gelu, (X,)),
    "elu": (F.elu, (X,)),
    "exp": (torch.exp, (X,)),
    "abs": (torch.abs, (X,)),
    "square": (torch.square, (X,)),
    "sin": (torch.sin, (X,)),
    "add": (torch.add, (X, Y)),
    "sub": (torch.sub, (X, Y)),
    "mul": (torch.mul, (X, Y)),
    "mul, broadcast": (torch.mul, (X, Y[:, :, :1, :1].contiguous())),
    "neg": (torch.neg, (X,)),
    "floor": (torch.floor, (X,)),
    "ceil": (torch.ceil, (X,)),
    "cos": (torch.cos, (X,)),
    "hardtanh": (lambda x: F.hardtanh(x, -0.51, 0.77), (X,)),
    "maximum": (torch.maximum, (X, Y)),
    "minimum": (torch.minimum, (X, Y)),
    "maximum of a dimension": (lambda x: x.amax(1, keepdim=True), (X,)),
    "add a number": (lambda x: x + 0.37, (X,)),
    "times a number": (lambda x: x * -1.83, (X,)),
    "mean over space": (lambda x: x.mean((2, 3)), (X,)),
    "mean over space, kept": (lambda x: x.mean((2, 3), keepdim=True), (X,)),
    "mean over the last": (lambda x: x.mean(-1), (X,)),
    "sum over the last": (lambda x: x.sum(-1), (X,)),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), (X,)),
    "average pool of 6 taps": (lambda x: F.avg_pool2d(x, (2, 3)), (X,)),
    "average pool of the whole picture": (lambda x: F.avg_pool2d(x, (5, 7)), (X,)),
    "requantised": (lambda x: x, (X,)),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (X,)),
    "cropped": (lambda x: F.pad(F.hardswish(x), (-1, 0)), (X,)),
    "every second pixel": (lambda x: F.max_pool2d(F.pad(torch.tanh(x), (0, 1, 0, 1)), 1, 2), (X,)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (X,)),
    "reflect pad": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), (X,)),
    "transpose": (lambda x: x.transpose(1, 3), (X,)),
    "repeat": (lambda x: x.repeat(1, 2, 1, 3), (X,)),
    "index": (lambda x: x[:, [3, 0, 5, 0]], (X,)),
    "expand": (lambda x: x[:, :, :1].expand(-1, -1, 3, -1), (X,)),
}


class Weighted(nn.Module):
    """A product with int8 weights of a scale per output channel, between quantised values, and a clamp."""

    def __init__(
        self, compute: Callable[..., Tensor], shape: tuple[int, ...], dim: int = 0, zero_point: int = 0
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.compute, self.dim = compute, dim
        self.integers = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
        self.scales = 0.002 + 0.004 * torch.rand(shape[dim], generator=generator)
        self.zero_points = torch.full((shape[dim],), zero_point)
        self.bias = nn.Parameter(torch.randn(12, generator=generator))
        self.before: Callable[[Tensor], Tensor] = torch.clone

    def forward(self, x: Tensor) -> Tensor:
        how = (self.scales, self.zero_points, self.dim, -127, 127, torch.int8)
        weight = DEQUANTIZE_CHANNELS(self.integers, *how)
        product = self.compute(quantised(self.before(x), 0.0247, 5), weight, self.bias)
        return quantised(F.hardtanh(product, -1.31, 1.87), 0.0151, -9)


PRODUCTS: dict[str, Any] = {
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2), (1, 2)), (12, 6, 3, 2)),
    "grouped": (lambda x, w, b: F.conv2d(x, w, b, 1, (0, 1), 1, 2), (12, 3, 3, 5)),
    "depthwise": (lambda x, w, b: F.conv2d(x, w, b, (1, 2), (1, 2), 1, 6), (12, 1, 3, 5)),
    "transposed": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, (0, 1)), (6, 12, 3, 2), 1),
    "transposed, a scale for two channels": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, (0, 1), 6),
        (6, 2, 3, 2),
    ),
    "linear": (F.linear, (12, 7)),
    "linear without bias": (lambda x, w, b: F.linear(x, w), (12, 7)),
}
