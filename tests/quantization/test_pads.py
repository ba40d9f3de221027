"""Test that padded values keep the range of what is padded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

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


# The fill of a convolution's values, left and right → what reads them.
READERS: Mapping[str, tuple[float, Callable[[Tensor], Tensor]]] = {
    "unfold and amax": (-math.inf, lambda y: y.unfold(2, 3, 1).unfold(3, 3, 1).amax((-1, -2))),
    "maximum of slices": (
        -math.inf,
        lambda y: torch.maximum(y[..., 1:-1, :-2], y[..., 1:-1, 2:]),
    ),
    "a minimum": (math.inf, lambda y: -functional.max_pool2d(-y, 3, 1)),
    "an adaptive maximum": (-math.inf, lambda y: functional.adaptive_max_pool2d(y, (7, 5))),
    "a finite fill": (-1e9, lambda y: functional.max_pool2d(y, 3, 1)),
    "a softmax": (-math.inf, lambda y: y.softmax(-1)),
}


class Padded(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.fill, self.read = READERS[name]
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.read(functional.pad(self.first(x), (1, 1), value=self.fill)))
        return y


@pytest.mark.parametrize("target", ["xnnpack", "tosa"])
@pytest.mark.parametrize("name", READERS)
def test_any_reader_may_pass_over_what_is_padded(name: str, target: str) -> None:
    torch.manual_seed(0)
    examples = [torch.randn(2, 3, 9, 11) for _ in range(3)]
    quantized = dimorder.quantize(Padded(name).eval(), examples, target=target)
    for x in examples:
        expected = quantized.original(x)
        assert (quantized.module(x) - expected).norm() < 0.03 * expected.norm()  # 30 dB
