"""Quantise networks for the tests: by PT2E and ExecuTorch's quantizers, or by torchao.

The zoo reads it too, also where pytest is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dimorder.graph.quantized import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE
from dimorder.targets import find
from dimorder.targets.xnnpack.target import TARGET as XNNPACK
from dimorder.verification import xnnpack_roundings

if TYPE_CHECKING:
    import pytest

# What the plan of a quantised network is held to: integers have no products with a matrix for each head.
SPLIT = replace(XNNPACK.capabilities.linears, heads=None)
NOT_BY_HEADS = replace(XNNPACK, capabilities=replace(XNNPACK.capabilities, linears=SPLIT))
INT8, UINT8, INT16 = (-128, 127, torch.int8), (0, 255, torch.uint8), (-32767, 32767, torch.int16)
Integers = tuple[int, int, torch.dtype]


def quantised(x: Tensor, scale: float, zero_point: int, of: Integers = INT8) -> Tensor:
    """The numbers that integers of that scale and zero point stand for, nearest to these."""
    return DEQUANTIZE(QUANTIZE(x, scale, zero_point, *of), scale, zero_point, *of)


def round_all_rows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model of dynamically quantised rows have one scale for all of them, which no runtime has."""
    integers = xnnpack_roundings.DynamicIntegers
    of = integers.of
    monkeypatch.setattr(integers, "of", staticmethod(lambda x, nonbatch: of(x, x.dim())))


class Between(nn.Module):
    """Computes on quantised values of awkward scales and zero points; quantises the result once or more."""

    SCALES: tuple[tuple[float, int], ...] = ((0.0247, 5), (0.0313, -17), (0.0189, 0))
    INTEGERS: Integers = INT8

    def __init__(self, compute: Callable[..., Tensor], *results: tuple[float, int]) -> None:
        super().__init__()
        self.compute, self.results = compute, results

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        held = [quantised(x, *scale, self.INTEGERS) for x, scale in zip(inputs, self.SCALES, strict=False)]
        computed = self.compute(*held)
        return tuple(quantised(computed, *result, self.INTEGERS) for result in self.results)


class Symmetric(nn.Module):
    """A product of matrices of which the right one has zero point 0."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = quantised(x, 0.0247, 5), quantised(y, 0.0313, 0)
        y = y.transpose(2, 3) if self.transposed else y.reshape(2, 6, 7, 5)
        return quantised(x @ y, 0.0911, -7)


class Difference(nn.Module):
    """A difference, and a convolution of it, between quantised values; a softmax in float32."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.integers = torch.randint(-127, 128, (6, 6, 1, 1), generator=generator).to(torch.int8)
        self.scales = 0.002 + 0.004 * torch.rand(6, generator=generator)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(6, dtype=torch.int64)
        weight = DEQUANTIZE_CHANNELS(self.integers, self.scales, zeros, 0, -127, 127, torch.int8)
        difference = quantised(quantised(x, 0.0247, 5) - quantised(y, 0.0313, -8), 0.0431, 3)
        soft = quantised(F.conv2d(difference, weight), 0.0511, -7).softmax(-1)
        return difference, soft


class Product(nn.Module):
    """A product with int8 weights of a scale per output channel, or of one, clamped and quantised."""

    INPUT, RESULT = (0.0247, 5), (0.0151, -9)
    INTEGERS: Integers = INT8

    def __init__(
        self,
        compute: Callable[..., Tensor],
        shape: tuple[int, ...],
        dim: int = 0,
        zero_point: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.compute, self.dim, self.zero_point = compute, dim, zero_point
        self.integers = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
        self.scales = 0.002 + 0.004 * torch.rand(shape[dim], generator=generator)
        bias_shape = torch.randn(12, generator=generator)
        self.bias = nn.Parameter(bias_shape) if bias else None

    def weight(self) -> Tensor:
        if self.zero_point is not None:
            return DEQUANTIZE(self.integers, 0.0041, self.zero_point, *INT8)
        zeros = torch.zeros_like(self.scales, dtype=torch.int64)
        return DEQUANTIZE_CHANNELS(self.integers, self.scales, zeros, self.dim, -127, 127, torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        product = self.compute(quantised(x, *self.INPUT, self.INTEGERS), self.weight(), self.bias)
        return quantised(F.hardtanh(product, -1.31, 1.87), *self.RESULT, self.INTEGERS)


class Net(nn.Module):
    """Convolutions, depthwise and transposed too, a residual, a cat of two scales, a pool, a linear."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.point = nn.Conv2d(8, 8, 1)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.last = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = x + self.point(F.hardtanh(self.depthwise(x), 0.0, 6.0))
        y = F.max_pool2d(self.up(x), 2)
        return self.last(torch.cat([x, y], 1).mean((2, 3)))


def by_xnnpack(model: nn.Module, *args: Tensor, is_per_channel: bool = True, dims: Any = None) -> nn.Module:
    """By XNNPACKQuantizer; `dims` are the dynamic sizes that the network itself reads."""
    from dimorder.targets.pattern_quantizer import pattern_quantizer

    return _converted(model, args, pattern_quantizer(is_per_channel=is_per_channel), dims)


def by_xnnpack_per_tensor(model: nn.Module, *args: Tensor) -> nn.Module:
    """By XNNPACKQuantizer, one scale for a weight."""
    return by_xnnpack(model, *args, is_per_channel=False)


def by_xnnpack_dynamically(model: nn.Module, *args: Tensor, dims: Any = None) -> nn.Module:
    """By XNNPACKQuantizer, the scales of activations being found as the network runs."""
    from dimorder.targets.pattern_quantizer import pattern_quantizer

    return _converted(model, args, pattern_quantizer(is_dynamic=True), dims)


def by_x86(model: nn.Module, *args: Tensor) -> nn.Module:
    """By X86InductorQuantizer: activations are uint8, and the last linear gives floats."""
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as quantizer

    config = quantizer.get_default_x86_inductor_quantization_config()
    return _converted(model, args, quantizer.X86InductorQuantizer().set_global(config))


def by_torchao(model: nn.Module, config: Any) -> nn.Module:
    """By torchao's `quantize_`, every linear layer."""
    from torchao.quantization import quantize_

    quantize_(model.eval(), config)
    return model


def by_arm(model: nn.Module, *args: Tensor, recipe: str = "int8") -> nn.Module:
    """By TOSAQuantizer: biases are int32, and q/dq stand round every operator."""
    return _converted(model, args, find("tosa").recipes[recipe].quantizer())


def _converted(model: nn.Module, args: Sequence[Tensor], quantizer: Any, dims: Any = None) -> nn.Module:
    """Calibrated on two calls."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    with torch.no_grad():
        # With such asserts Arm's passes fail on a ViT, whose sizes are fixed.
        program = torch.export.export(
            model.eval(),
            tuple(args),
            dynamic_shapes=dims,
            prefer_deferred_runtime_asserts_over_guards=dims is not None,
        )
        exported = program.module(check_guards=False)
        prepared = prepare_pt2e(exported, quantizer)
        prepared(*args)
        prepared(*(x.flip(-1) * 1.1 if x.is_floating_point() else x for x in args))
    converted: nn.Module = convert_pt2e(prepared)
    return converted


def stock_pte(quantised: nn.Module, *args: Tensor) -> bytes:
    """The file that ExecuTorch's own lowering to XNNPACK makes of a quantised network."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    exported = torch.export.export(quantised, args)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    return bytes(edge.to_executorch().buffer)
