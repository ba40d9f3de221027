"""Test that `torch.cond` becomes one row-major call, which is right whichever branch the data choose."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.errors import UnsupportedError, VerificationError
from dimorder.graph import branches
from dimorder.verification.relative_error import relative_error
from tests.marks import slow_but

TARGETS = ["torch", "xnnpack"]


class Gated(nn.Module):
    """A convolution, of two branches the one that the mean of it chooses, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.first, self.last = nn.Conv2d(3, 5, 3), nn.Conv2d(6, 7, 3)
            self.yes, self.no = nn.Conv2d(5, 6, 1), nn.Conv2d(5, 6, (1, 3), padding=(0, 1))

    def forward(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        z, sums = torch.cond(y.mean() + shift > 0, self.by_yes, self.by_no, (y, shift))
        return self.last(z), sums

    def by_yes(self, y: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        return self.yes(y).relu(), y.sum((2, 3)) * shift

    def by_no(self, y: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        return self.no(y).sigmoid(), y.amax((2, 3)) - shift


class Two(nn.Module):
    """Two conditions, the second of what the first chose."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, torch.exp, lambda x: x * 3, (x,))
        return torch.cond(y.max() > 1, lambda y: y - 2, torch.tanh, (y.mT,)).mT


class Outliving(nn.Module):
    """Reads the first condition's result after the second condition, whose branches need much memory."""

    def forward(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        x = x[0, 0, :1, :4]
        y, z = torch.cond(shift > 0, lambda x: self.by(x.exp(), 4), lambda x: self.by(x.sin(), 1024), (x,))
        w = torch.cond(x[0, 3] > 0, lambda x: x * 3, lambda x: self.by(x, 64)[1], (x,))
        return y + w, z

    def by(self, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return x.clone(), x.repeat(count, 1).tanh().amax(0, keepdim=True)


class OfParts(nn.Module):
    """Takes parts of one tensor as operands, and gives a part back."""

    def forward(self, x: Tensor) -> Tensor:
        first, second, _ = x.unbind(1)
        return torch.cond(second.sum() > 0, torch.mul, self.last, (first, second))

    def last(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.stack([b, a]).unbind(0)[0]


@pytest.fixture(autouse=True)
def needs(request: pytest.FixtureRequest) -> None:
    if "target" in request.fixturenames and request.getfixturevalue("target") == "xnnpack":
        pytest.importorskip("executorch")


def given(shift: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(seed)), torch.tensor(shift)


def check(run: Any, net: nn.Module, *inputs: Tensor) -> None:
    with torch.no_grad():
        wanted = net(*inputs)
    for got, want in zip(run(*inputs), wanted, strict=True):
        assert relative_error(got, want) < 1e-5


@pytest.mark.parametrize(
    ("shift", "target"), slow_but(product([-5.0, 5.0], TARGETS), [(-5.0, "torch"), (5.0, "xnnpack")])
)
def test_a_file_takes_the_branch_that_data_choose(target: str, shift: float, tmp_path: Path) -> None:
    net = Gated().eval()
    lowered = dimorder.lower(net, given(shift), target=target)
    (site,) = (each for each in lowered.plan.extracted.sites if str(each.node.target) == "cond")
    assert site.kind == "opaque"
    program = dimorder.load(lowered.save(tmp_path / f"net.{'pt2' if target == 'torch' else 'pte'}"))
    for run in (lowered.run, program):
        for seed in range(3):
            for other in (-5.0, 5.0):
                check(run, net, *given(other, seed))


@pytest.mark.parametrize("target", slow_but(TARGETS, ["torch"]))
def test_what_one_chose_outlives_another(target: str) -> None:
    lowered = dimorder.lower(Outliving(), given(1.0), target=target)
    for seed in range(4):
        for shift in (-1.0, 1.0):
            check(lowered.run, Outliving(), *given(shift, seed))


@pytest.mark.parametrize("target", slow_but(TARGETS, ["torch"]))
def test_a_condition_of_what_another_chose(target: str) -> None:
    net = Two()
    lowered = dimorder.lower(net, (torch.rand(3, 5),), target=target)
    for x in (torch.rand(3, 5), -torch.rand(3, 5), torch.rand(3, 5) - 0.5):
        assert relative_error(lowered.run(x), net(x)) < 1e-5


def test_parts_of_one_tensor_are_operands() -> None:
    x, net = torch.randn(2, 3, 4, 5), OfParts()
    lowered = dimorder.lower(net, (x,), target="torch")
    for call in (x, x - 2, x + 2):
        with torch.no_grad():  # else torch.cond refuses operands that share memory
            wanted = net(call)
        assert relative_error(lowered.run(call), wanted) < 1e-5


@pytest.mark.parametrize(
    ("shift", "target"), slow_but(product([-5.0, 5.0], TARGETS), [(-5.0, "torch"), (5.0, "xnnpack")])
)
def test_a_branch_that_the_example_does_not_choose_is_compared_too(
    target: str, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OneAlone(branches.Branches):
        def __init__(self, yes: Any, no: Any) -> None:
            super().__init__(*((yes, yes) if shift > 0 else (no, no)))

    monkeypatch.setattr(branches, "Branches", OneAlone)
    with pytest.raises(VerificationError):
        dimorder.lower(Gated().eval(), given(shift), target=target)


def test_for_other_partitioners_it_is_torchs_own() -> None:
    net = Gated().eval()
    program = dimorder.lower(net, given(5.0)).decomposed()
    assert len(program.graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond)) == 1
    for shift in (-5.0, 5.0):
        check(program.module(), net, *given(shift))


@pytest.mark.parametrize(
    ("target", "found"), [("inductor", "AOTInductor gives other numbers"), ("tosa", "TOSA has no cond")]
)
def test_targets_that_have_none_refuse_it(target: str, found: str) -> None:
    with pytest.raises(UnsupportedError, match=found):
        dimorder.lower(Gated().eval(), given(5.0), target=target)


def test_the_physical_program_shows_a_condition_with_its_operands() -> None:
    lowered = dimorder.lower(Two(), (torch.randn(2, 3, 5),))
    assert " cond(gt as scalar, x)" in lowered.text("physical")
