"""Verify networks that count their own calls, and refuse more of them than fit into a buffer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.errors import UnsupportedError

pytest.importorskip("executorch")


class Counting(nn.Module):
    """Keeps up to 64 rows, and counts them itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)
        self.register_buffer("kept", torch.zeros(1, 64, 8))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        places = self.count + torch.arange(x.shape[1])
        self.kept[:, places] = self.linear(x)
        self.count.add_(x.shape[1])
        return self.kept.sum(1)


@pytest.mark.parametrize("length", [6, 7, 32])
def test_a_cache_may_be_full_before_the_last_call(length: int) -> None:
    x = torch.randn(1, length, 8)
    lowered, network = dimorder.lower(Counting(), (x,), target="xnnpack"), Counting()
    for call in (x, x * 2):
        torch.testing.assert_close(lowered.run(call), network(call))


def test_what_is_full_after_one_call_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"2 times in a row\n  found: IndexError.*\n  fix: .*shorter"):
        dimorder.lower(Counting(), (torch.randn(1, 33, 8),), target="xnnpack")
