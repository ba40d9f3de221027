"""Networks of few products, where the rounding of a bias moves one product across a half in many places."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.capture.captured import capture
from dimorder.verification.quantized_values import bias_margins
from tests.fuzz.integer_operators import dequantised, quantised, requantised, weight

WEIGHT, LEVEL, STEP = 90, 41, 0.016
PRODUCT = STEP / 73  # the scale of a product
BIAS = 57.4  # products
RESULT = (LEVEL * WEIGHT + 57.2) * PRODUCT / 20.5  # so that LEVEL gives 20.5 and a fifth of a product


class Scale(nn.Module):
    """Scales and shifts one channel, as an activation of few levels has it."""

    def __init__(self, clamps: bool = False) -> None:
        super().__init__()
        self.step = RESULT
        self.register_buffer("weight", torch.tensor([[[[WEIGHT]]]], dtype=torch.int8))
        self.register_buffer("bias", torch.tensor([BIAS * PRODUCT]))
        self.clamps = clamps

    def forward(self, x: Tensor) -> Tensor:
        x = dequantised(quantised(x, STEP, 0), STEP, 0)
        x = nn.functional.conv2d(x, weight(self.weight, None, 0), self.bias)
        return requantised(x.relu() if self.clamps else x, self.step, -3)


@pytest.mark.parametrize("clamps", [False, True])
@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_product_that_a_rounded_bias_moves_across_a_half_is_no_fault(target: str, clamps: bool) -> None:
    pytest.importorskip("executorch")
    network, x = Scale(clamps=clamps), torch.randn(1, 1, 96, 112)
    lowered = dimorder.lower(network, (x,), target=target)
    off = (lowered(x) - network(x)).abs() / RESULT
    assert off.max() <= 1.001
    assert off[quantised(x, STEP, 0) != LEVEL].max() < 1e-3


def test_a_bias_explains_a_twentieth_of_a_quantum_at_most() -> None:
    network = Scale()
    (margin,) = bias_margins(capture(network, (torch.randn(1, 1, 3, 5),)).module).values()
    assert margin == pytest.approx(PRODUCT / 2)
    network.step = 4 * PRODUCT
    (margin,) = bias_margins(capture(network, (torch.randn(1, 1, 3, 5),)).module).values()
    assert margin == pytest.approx(network.step / 20)
