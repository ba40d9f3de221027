"""Test that the bias of a channel fits into 32 bits, however small the scales of its operands are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

import dimorder


def with_dead_channels(bias: float) -> nn.Module:
    """Return a convolution with a channel of zeros and one of tiny weights, as norms may leave it."""
    conv = nn.Conv2d(3, 8, 3)
    with torch.no_grad():
        conv.weight[1], conv.weight[2] = 0, 1e-9 * conv.weight[2]
        conv.bias[1], conv.bias[2] = bias, bias / 2  # type: ignore[index]
    return conv


def dead_input() -> nn.Module:
    """Return a network whose second convolution reads zeros alone."""
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 1))
    with torch.no_grad():
        net[0].bias -= 100
    return net


def in_groups() -> nn.Module:
    conv = nn.ConvTranspose2d(6, 8, 3, stride=2, groups=2)
    with torch.no_grad():
        conv.weight[:, 1], conv.bias[5] = 0, 70  # type: ignore[index]
    return nn.Sequential(nn.Conv2d(3, 6, 3), conv)


@pytest.mark.parametrize("recipe", ["int8", "int16x8"])
@pytest.mark.parametrize("make", [lambda: with_dead_channels(30.0), dead_input, in_groups])
def test_a_bias_outlasts_tiny_scales(make, recipe: str) -> None:
    torch.manual_seed(0)
    net, examples = make().eval(), [torch.randn(1, 3, 9, 11) for _ in range(4)]
    quantized = dimorder.quantize(net, examples, recipe, target="tosa")
    (found,) = quantized.compare(dimorder.lower(quantized, target="tosa"))
    assert found.snr_db is not None and found.snr_db > (30 if recipe == "int8" else 45)
