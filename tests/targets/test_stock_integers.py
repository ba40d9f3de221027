"""Test what stock ExecuTorch 1.5.1 makes of small networks that PT2E quantised, and what target xnnpack does.

Stock's outcome is asserted as it is: this file fails if a newer ExecuTorch does better.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.marks import slow_but

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from executorch.exir._serialize._program import deserialize_pte_binary

import dimorder
from dimorder.targets.xnnpack import run
from tests.fuzz.integer_operators import requantised
from tests.targets.quantised import by_xnnpack, stock_pte
from tests.zoo import network as zoo_network


class Around(nn.Module):
    """An operator between two convolutions."""

    def __init__(self, compute: Callable[..., Tensor], channels: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(channels, 6, 1)
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.compute(self.first(x)))


class Rescaled(nn.Module):
    """Moves of a quantised value into scales of their own, written by hand."""

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return requantised(self.compute(requantised(x, 0.0247, 5)), 0.0311, -7)


def _summed(one: Tensor, other: Tensor) -> Tensor:
    """Add two values, each quantised with a scale of its own."""
    return requantised(one, 0.0131, -11) + requantised(other, 0.0293, 4)


class Pooled(nn.Module):
    """A mean over space that keeps no dimension, and a linear."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.conv(x).mean((2, 3)))


X = torch.randn(2, 3, 9, 11, generator=torch.Generator().manual_seed(3))

RIGHT, LEFT, UNLOADED, FAILED = "right", "right, in 2 delegates", "does not load", "fails ahead of time"
# By PT2E or by hand, and stock's outcome.
CASES: dict[str, tuple[nn.Module, bool, str]] = {
    "slices of other scales": (Rescaled(lambda x: _summed(x[:, :1], x[:, 1:2])), False, LEFT),
    "chunks of other scales": (Rescaled(lambda x: _summed(*x[:, :2].chunk(2, 1))), False, LEFT),
    "transpose to another scale": (
        Rescaled(lambda x: F.relu(requantised(x.transpose(2, 3), 0.0131, -11))),
        False,
        UNLOADED,
    ),
    "cat of other scales": (
        Rescaled(
            lambda x: torch.cat([requantised(x.abs(), 0.0131, -11), requantised(x.sigmoid(), 0.0331, 4)], 1)
        ),
        False,
        UNLOADED,
    ),
    "slices": (Around(lambda x: x[:, :, 1:5] + x[:, :, 3:]), True, RIGHT),
    "chunks": (Around(lambda x: torch.mul(*x.chunk(2, 1)), 4), True, LEFT),
    "transpose": (Around(lambda x: x.transpose(2, 3)), True, RIGHT),
    "cat": (Around(lambda x: torch.cat([x, F.relu(x * 0.1)], 1), 16), True, RIGHT),
    "made channels-last": (Around(F.relu).to(memory_format=torch.channels_last), True, FAILED),  # type: ignore[call-overload]
    "mean without keepdim": (Pooled(), True, LEFT),
    "nearest": (Around(lambda x: F.interpolate(x, scale_factor=2)), True, LEFT),
    "reflect pad": (Around(lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect")), True, LEFT),
}


def _network(name: str) -> nn.Module:
    network, by_tools, _ = CASES[name]
    return by_xnnpack(network, X) if by_tools else network.eval()


def _is_near(got: Tensor, wanted: Tensor) -> bool:
    """Whether an output is off by a few quanta at most, of the 256 or so that it spans."""
    return bool((got - wanted).abs().max() <= (wanted.max() - wanted.min()) * 3 / 256)


BY_HAND = {name for name, (_, by_tools, _) in CASES.items() if not by_tools}
QUICK = {"slices of other scales", "cat of other scales"}


@pytest.mark.parametrize("name", slow_but(CASES, QUICK))
def test_what_stock_lowering_makes_of_it(name: str) -> None:
    network, wanted = _network(name), CASES[name][2]
    assert _stock_outcome(network) == wanted


def _stock_outcome(network: nn.Module) -> str:
    try:
        pte = stock_pte(network, X)
    except Exception:  # its passes raise whatever they meet
        return FAILED
    delegates = len(deserialize_pte_binary(pte).program.execution_plan[0].delegates)
    try:
        (got,) = run(pte, [X])
    except RuntimeError as error:
        return UNLOADED if "load" in str(error) else "fails when it runs"
    with torch.no_grad():
        right = "right" if _is_near(got, network(X)) else "wrong"
    return right if delegates == 1 else f"{right}, in {delegates} delegates"


@pytest.mark.parametrize("name", slow_but(CASES, BY_HAND | {"mean without keepdim", "nearest"}))
def test_ours_is_one_delegate_of_integers(name: str) -> None:
    """`lower` itself compares it with its kernels' arithmetic bit for bit."""
    network = _network(name)
    lowered = dimorder.lower(network, (X,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside, lowered.plan.float_islands) == (1, (), ())
    with torch.no_grad():
        assert _is_near(lowered.run(X), network(X))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "squeezenet1_1"])
def test_ours_gives_the_bits_that_stock_gives_where_stock_fuses_the_same(name: str) -> None:
    x, *others = (torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(i)) for i in range(3))
    quantised = by_xnnpack(zoo_network(name).build(), x)
    lowered, pte = dimorder.lower(quantised, (x,), target="xnnpack"), stock_pte(quantised, x)
    for each in (x, *others):
        (wanted,) = run(pte, [each])
        assert torch.equal(lowered.run(each), wanted)
