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
