"""What stock ExecuTorch 1.5.1 makes of small networks that PT2E quantised, and what target xnnpack does.

Stock's outcome is asserted as it is: where a newer one does better, this page is what says so.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("executorch")
pytest.importorskip("torchao")


CHANNELS_LAST = torch.channels_last


class Around(nn.Module):
    """An operator between two convolutions."""

    def __init__(self, compute: Callable[..., Tensor], channels: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(channels, 6, 1)
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.compute(self.first(x)))


class Parts(nn.Module):
    """Two parts of a value, quantised in scales of their own: one is small."""

    def __init__(self, part: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.one, self.other = nn.Conv2d(3, 8, 3), nn.Conv2d(4, 5, 1), nn.Conv2d(4, 5, 1)
        with torch.no_grad():
            self.first.weight[4:] *= 0.1
            self.first.bias[4:] *= 0.1  # type: ignore[index]  # it has one
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.part(self.first(x))
        return self.one(one) + self.other(other)


class Joined(nn.Module):
    """A cat of values of differing scales."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 5, 3), nn.Conv2d(9, 6, 1)
        with torch.no_grad():
            self.one.weight *= 0.1

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.one(x), self.other(x)], 1))


class Pooled(nn.Module):
    """A mean over space that keeps no dimension, and a linear."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.conv(x).mean((2, 3)))


X = torch.randn(2, 3, 9, 11, generator=torch.Generator().manual_seed(3))

# The network, stock's outcome, and float32 parts of ours.
CASES: dict[str, tuple[nn.Module, str]] = {
    "slices": (Parts(lambda x: (x[:, :4], x[:, 4:])), ""),
    "chunks": (Parts(lambda x: x.chunk(2, 1)), ""),
    "transpose": (Around(lambda x: x.transpose(2, 3)), ""),
    "transpose to the last": (Around(lambda x: F.relu(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)), ""),
    "cat": (Joined(), ""),
    "made channels-last": (Around(F.relu).to(memory_format=CHANNELS_LAST), ""),
    "mean": (Pooled(), ""),
    "nearest": (Around(lambda x: F.interpolate(x, scale_factor=2)), ""),
    "reflect pad": (Around(lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect")), ""),
}
