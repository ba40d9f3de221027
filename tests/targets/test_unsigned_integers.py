"""Test networks of uint8 inside: they are computed in int8, and stand for the same numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from dimorder.errors import VerificationError
from dimorder.verification import quantized_values
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
    assert lowered.artifact.delegates == 1
    got, wanted = lowered.run(X), network(X)
    assert (got - wanted).norm() <= 0.01 * wanted.norm()


class Joined(nn.Module):
    """Two results that are joined, pooled, flattened and quantised again before a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 6, 3)
        self.last, self.head = nn.Conv2d(14, 12, 1), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(torch.cat([self.first(x).relu(), self.second(x).relu()], 1)).relu()
        scores: Tensor = self.head(F.dropout(F.adaptive_avg_pool2d(y, 1).flatten(1), 0.2, self.training))
        return scores


def test_unsigned_integers_that_are_moved_become_signed() -> None:
    network = by_x86(perturb(Joined().eval()), X)
    lowered = dimorder.lower(network, (X,), target="torch")
    values = [node.meta.get("val") for node in lowered.program.nodes]
    types = {value.dtype for value in values if isinstance(value, Tensor)}
    assert torch.int8 in types and torch.uint8 not in types
    assert (lowered.run(X) - network(X)).norm() <= 0.01 * network(X).norm()


def test_a_wrong_rule_between_unsigned_integers_is_found(
    network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The integers of the normal form are compared, although they are signed there."""
    as_captured = quantized_values._as_captured

    def off(value: Tensor, node: torch.fx.Node) -> Tensor:
        kept = as_captured(value, node)
        return kept if kept.is_floating_point() else kept.clamp(max=100) + 2  # a margin stays

    monkeypatch.setattr(quantized_values, "_as_captured", off)
    with pytest.raises(VerificationError, match="the normal form of a quantised network"):
        dimorder.lower(network, (X,), target="torch")
