"""Test what is changed in another quantizer's annotations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")

import dimorder
from dimorder.verification.relative_error import relative_error
from tests.marks import require_runtime


class Normalized(nn.Module):
    """Divides channels by deviations, which the network computes from variances of many sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("variance", 10.0 ** torch.linspace(-6, 4, 8))
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x) / (self.variance**0.5 + 1e-8)[:, None, None]
        return y


class Counting(nn.Module):
    """Adds half of what it has added up so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 8, 6, 5))
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x) + self.total * 0.5
        self.total.copy_(y)
        return y


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_what_parameters_alone_determine_is_not_quantized(target: str) -> None:
    """A deviation of 0.001 beside one of 100 would be rounded to 0, and divide by it."""
    require_runtime(target)
    net, x = Normalized().eval(), torch.randn(1, 3, 8, 7)
    quantized = dimorder.quantize(net, [x, x * 0.9], target=target)
    with torch.no_grad():
        assert relative_error(quantized.module(x), net(x)) < 0.05


def test_what_a_written_buffer_determines_is_quantized() -> None:
    x = torch.randn(1, 3, 8, 7)
    quantized = dimorder.quantize(Counting().eval(), [x, x * 0.9], target="xnnpack")
    targets = [str(node.target) for node in quantized.module.graph.nodes]
    products = [i for i, target in enumerate(targets) if target == "aten.mul.Tensor"]
    assert all("quantize_per_tensor" in targets[i + 1] for i in products) and len(products) == 1
