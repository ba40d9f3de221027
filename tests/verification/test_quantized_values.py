"""Test that what a quantised network computes is recorded as its normal form has it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")

import dimorder
from dimorder.capture.captured import capture
from dimorder.graph.nodes import CUTS
from dimorder.verification.quantized_values import DRAWS, record_quantized


class Causal(nn.Module):
    """A convolution over time that sees no later step, as Mamba has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(3, 5, 4, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)[..., : x.shape[-1]]
        return y.relu()


def test_margins_are_cut_as_the_values_are() -> None:
    x = torch.randn(2, 3, 13, generator=torch.Generator().manual_seed(1))
    exported = torch.export.export(dimorder.quantize(Causal().eval(), [x, x * 0.9]).module, (x,))
    captured = capture(exported)
    recorded = record_quantized(exported, (x,), captured.module, draws=DRAWS[1])
    (name,) = (node.name for node in captured.nodes if CUTS in node.meta and node.name in recorded.margins)
    assert recorded.margins[name].shape == recorded.values[name].shape == (2, 5, 13)


class Sorted(nn.Module):
    """Computes rows sorted by their expert, as a mixture of experts does: many have the same one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router, self.linear = nn.Linear(12, 3), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        order = self.router(x).argmax(-1).sort().indices
        y: Tensor = self.linear(x[order])[order.argsort()]
        return y


def test_a_sort_orders_equal_elements_as_the_topk_of_the_normal_form_does() -> None:
    x = torch.randn(53, 12, generator=torch.Generator().manual_seed(1))
    quantized = dimorder.quantize(Sorted().eval(), [x, x * 0.9])
    lowered = dimorder.lower(quantized, target="xnnpack")
    (fidelity,) = quantized.compare(lowered)
    assert fidelity.snr_db is not None and fidelity.snr_db > 30
