"""Test that quantised networks keep their state: they write it as the float network does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")

import dimorder
from tests.marks import require_runtime

WRITES: Mapping[str, Callable[[Any, Tensor], Any]] = {
    "a counter": lambda net, x: net.state.add_(1),
    "a new counter": lambda net, x: setattr(net, "state", net.state + 1),
    "a counter with an end": lambda net, x: net.state.add_(1).clamp_(max=3),
    "a part": lambda net, x: net.state[:2].add_(1),
    "a fill": lambda net, x: net.state.fill_(2.0),
    "a mean": lambda net, x: net.state.mul_(0.5).add_(x[:1]),
    "a copy": lambda net, x: net.state.copy_(x[:1] * 2),
    "a row": lambda net, x: net.state[0].copy_(x[0]),
    "a window": lambda net, x: net.state.copy_(torch.cat([net.state[1:], x[:1]])),
}


class Stateful(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.write, self.linear = WRITES[name], nn.Linear(5, 7)
        self.register_buffer("state", torch.zeros(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        self.write(self, x)
        y: Tensor = self.linear(x + self.state[:1])
        return y


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
@pytest.mark.parametrize("name", WRITES)
def test_state_is_written(name: str, target: str) -> None:
    require_runtime(target)
    torch.manual_seed(0)
    net, examples = Stateful(name).eval(), [torch.randn(2, 5) for _ in range(6)]
    quantized = dimorder.quantize(net, examples, target=target)
    program = dimorder.lower(quantized, (examples[0],), target=target).artifact.start()
    assert not net.state.any() and not quantized.original.get_buffer("state").any()
    for x in examples:
        expected, (y,) = net(x), program([x])
        assert (y - expected).norm() < 0.06 * expected.norm()


class Collected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 7)
        self.register_buffer("sum", torch.zeros(2, 7))

    def forward(self, x: Tensor) -> Tensor:
        return self.sum.add_(self.linear(x)) * 0.5


def test_a_sum_that_a_buffer_collects_is_not_quantized() -> None:
    """It would saturate at the range of the examples, and lose a rounding in each call."""
    torch.manual_seed(0)
    net = Collected().eval()
    examples = [torch.randn(2, 5) for _ in range(8)]
    module = dimorder.quantize(net, examples).module
    for _ in range(20):
        for x in examples:
            net(x)
            module(x)
    assert (module.get_buffer("sum") - net.sum).norm() < 0.03 * net.sum.norm()


class Shared(nn.Module):
    """Two parts that have one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.linear = nn.Module(), nn.Module(), nn.Linear(5, 7)
        self.first.register_buffer("held", torch.zeros(3, 5))
        self.second.register_buffer("held", self.first.held)

    def forward(self, x: Tensor) -> Tensor:
        self.first.held.mul_(0.5).add_(x[:1])
        y: Tensor = self.linear(x + self.second.held[:1])
        return y


def test_parts_may_share_a_buffer() -> None:
    torch.manual_seed(0)
    net, examples = Shared().eval(), [torch.randn(2, 5) for _ in range(6)]
    module = dimorder.quantize(net, examples).module
    assert not any(buffer.any() for buffer in net.buffers())
    for x in examples:
        expected = net(x)
        assert (module(x) - expected).norm() < 0.06 * expected.norm()
