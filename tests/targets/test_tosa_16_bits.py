"""Activations of 16 bits and weights of 8 on target tosa: each graph equal, bit for bit, to Arm's reference
model, and as near to the exact numbers as factors of 15 bits and tables that interpolate allow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.lowered import Lowered
from dimorder.lowering.operators.quantisation import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE
from dimorder.targets.tosa.graph import inspect_tosa
from tests.targets.test_tosa_integers import BETWEEN, PRODUCTS, X

INT16 = (-32767, 32767, torch.int16)
SCALES = (1.13e-4, 1.41e-4, 0.97e-4)  # which do not reach all of the inputs
RESULTS = (1.71e-4, 0.49e-4, 3.1e-3)
REFUSED = {
    **dict.fromkeys(("floor", "ceil"), "a function of 16 bits that tables have wrong by up to"),
    **dict.fromkeys(
        (name for name in BETWEEN if name.startswith(("softmax", "layer norm", "bilinear"))),
        "torch.int16, where this is computed of int8 alone",
    ),
}


def in_16_bits(x: Tensor, scale: float) -> Tensor:
    return DEQUANTIZE(QUANTIZE(x, scale, 0, *INT16), scale, 0, *INT16)


class Between(nn.Module):
    def __init__(self, compute: Callable[..., Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        held = [in_16_bits(x, scale) for x, scale in zip(inputs, SCALES, strict=False)]
        computed = self.compute(*held)
        return tuple(in_16_bits(computed, scale) for scale in RESULTS)


class Product(nn.Module):
    """With int8 weights of a scale per output channel, clamped and quantised."""

    def __init__(
        self, compute: Callable[..., Tensor], shape: tuple[int, ...], dim: int = 0, *rest: object
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.compute, self.dim = compute, dim
        self.integers = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
        self.scales = 0.002 + 0.004 * torch.rand(shape[dim], generator=generator)
        self.bias = nn.Parameter(torch.randn(12, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        zeros = torch.zeros_like(self.scales, dtype=torch.int64)
        weight = DEQUANTIZE_CHANNELS(self.integers, self.scales, zeros, self.dim, -127, 127, torch.int8)
        product = self.compute(in_16_bits(x, SCALES[0]), weight, self.bias)
        return in_16_bits(F.hardtanh(product, -1.31, 1.87), 0.61e-4)


def lower(module: nn.Module, inputs: tuple[Tensor, ...]) -> Lowered:
    made = dimorder.lower(module, inputs, target="tosa", run_artifact=True)
    found = inspect_tosa(made.artifact.data)
    assert {tensor.dtype for tensor in (*found.inputs, *found.outputs)} == {"INT16"}
    assert made.verified.artifact_ran
    return made


@pytest.mark.parametrize("name", BETWEEN)
def test_an_operator_between_values_of_16_bits(name: str) -> None:
    compute, inputs = BETWEEN[name]
    if name not in REFUSED:
        lower(Between(compute), inputs)
        return
    with pytest.raises(dimorder.DimorderError) as raised:
        dimorder.lower(Between(compute), inputs, target="tosa")
    assert f"  found: {REFUSED[name]}" in str(raised.value).splitlines()[1]


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_16_bits(name: str) -> None:
    if name == "of what is padded":
        pytest.skip("quantised in 8 bits")
    lower(Product(*PRODUCTS[name][:3]), (X,))
