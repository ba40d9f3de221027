"""Test networks of uint8 inside: they are computed in int8, and stand for the same numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from tests.targets.quantised import by_x86
from tests.zoo.network import perturb

X = torch.randn(2, 3, 12, 14, generator=torch.Generator().manual_seed(0))


class Small(nn.Module):
    """Convolutions, a depthwise one among them, pools and a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last, self.head = nn.Conv2d(8, 12, 1), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        y = F.max_pool2d(self.last(F.relu6(self.depthwise(y))), 2)
        scores: Tensor = self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))
        return scores


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return by_x86(perturb(Small().eval()), X)


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_no_operator_between_unsigned_integers_is_computed_in_floats(target: str, network: nn.Module) -> None:
    lowered = dimorder.lower(network, (X,), target=target)
    (island,) = lowered.plan.float_islands
    assert (island[0].operator, island[1]) == ("aten.linear", "a result that is not quantised")
    assert lowered.artifact.delegates == (1 if target == "xnnpack" else 2)  # LiteRT quantises beside it
    got, wanted = lowered.run(X), network(X)
    assert (got - wanted).norm() <= 0.01 * wanted.norm()
