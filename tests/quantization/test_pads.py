"""Test that padded values keep the range of what is padded."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

import dimorder
from tests.marks import require_runtime


class Pooled(nn.Module):
    """Pads on one side before a pool, as TensorFlow does, so that the pool cannot pad itself."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.fill = fill
        self.first, self.second = nn.Conv2d(4, 5, 3), nn.Conv2d(5, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        padded = functional.pad(self.first(x), (0, 1, 0, 1), value=self.fill)
        y: Tensor = self.second(functional.max_pool2d(padded, 3, 2))
        return y


@pytest.mark.parametrize("target", ["xnnpack", "litert", "tosa"])
@pytest.mark.parametrize("fill", [-math.inf, 0.0])
def test_padding_does_not_widen_the_range(fill: float, target: str) -> None:
    if target != "tosa":
        require_runtime(target)
    torch.manual_seed(0)
    examples = [torch.randn(1, 4, 14, 13) for _ in range(4)]
    quantized = dimorder.quantize(Pooled(fill).eval(), examples, target=target)
    (fidelity,) = quantized.compare(dimorder.lower(quantized, (examples[0],), target=target))
    assert fidelity.snr_db is not None and fidelity.snr_db > 35
