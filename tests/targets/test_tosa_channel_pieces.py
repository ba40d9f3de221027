"""Convolutions that are cut where their channels are read: the same bits, without moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

pytest.importorskip("tosa_serializer")
pytest.importorskip("executorch.backends.arm")

import dimorder
from dimorder.errors import VerificationError
from dimorder.lowered import Lowered
from dimorder.targets.ethos_u import target as ethos_u
from dimorder.targets.ethos_u.target import NpuPte
from dimorder.targets.tosa.graph import inspect_tosa
from dimorder.targets.tosa.integers.forms import Forms
from dimorder.targets.tosa.integers.model import TosaModel
from dimorder.targets.tosa.target import TosaArtifact
from tests.marks import slow_but
from tests.targets.quantised import by_arm
from tests.targets.test_tosa_forms import lower
from tests.zoo import perturb

HALF = 24  # channels
MOVES = {"SLICE", "TRANSPOSE"}
CUTS = Forms(cuts_convolutions=True)


def shuffled(*halves: Tensor) -> Tensor:
    x = torch.cat(halves, 1)
    n, c, h, w = x.shape
    return x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def point(channels: int, results: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, results, 1), nn.ReLU())


class Unit(nn.Module):
    """A unit of ShuffleNet: half of the channels pass by."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = point(HALF, HALF), point(HALF, HALF)
        self.depthwise = nn.Conv2d(HALF, HALF, 3, padding=1, groups=HALF)

    def forward(self, x: Tensor) -> Tensor:
        passing, read = x.chunk(2, 1)
        return shuffled(passing, self.last(self.depthwise(self.first(read))))


class Units(nn.Module):
    """Units between two convolutions; the last reads its channels through a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = point(3, HALF), point(3, HALF)
        self.units = nn.Sequential(Unit(), Unit())
        self.depthwise = nn.Conv2d(2 * HALF, 2 * HALF, 3, padding=1, groups=2 * HALF)
        self.end = point(2 * HALF, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.units(shuffled(self.left(x), self.right(x)))
        return self.end(self.depthwise(x))


class Joined(nn.Module):
    """Two convolutions, whose results `move` gives to two more."""

    def __init__(self, move: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.left, self.right, self.move = point(3, HALF), point(3, HALF), move
        self.first, self.last = point(HALF, 5), point(HALF, 5)

    def forward(self, x: Tensor) -> Tensor:
        first, last = self.move(self.left(x), self.right(x))
        return self.first(first) + self.last(last)


def pair(module: nn.Module) -> tuple[Lowered, Lowered, Tensor]:
    """A network without the form and with it, and an input."""
    x = torch.randn(1, 3, 5, 7, generator=torch.Generator().manual_seed(3))
    network = by_arm(perturb(module).eval(), x)
    return lower(network, (x,), Forms(), "NHWC"), lower(network, (x,), CUTS, "NHWC"), x


def operators(lowered: Lowered) -> dict[str, int]:
    return dict(inspect_tosa(lowered.artifact.data).operators)


@pytest.fixture(scope="module")
def units() -> tuple[Lowered, Lowered, Tensor]:
    return pair(Units())


def test_shuffled_units_move_no_channels(units: tuple[Lowered, Lowered, Tensor]) -> None:
    plain, cut, x = units
    integers = plain.contract.inputs[0].quantized(x)
    wanted, got = (pytree.tree_leaves(made.run(integers)) for made in (plain, cut))
    assert torch.equal(wanted[0], got[0])
    assert float(wanted[0].double().std()) > 0
    assert operators(plain).keys() & MOVES
    assert not operators(cut).keys() & MOVES
    # Two convolutions before the units, of which each unit reads a part, and one more part passes by.
    assert operators(plain)["CONV2D"] == 2 + 2 * 2 + 1
    assert operators(cut)["CONV2D"] == 2 * 3 + (1 + 2) + (1 + 1) + 1
    assert operators(cut)["CONCAT"] == 3


def model_of(lowered: Lowered) -> TosaModel:
    artifact = lowered.artifact
    assert isinstance(artifact, TosaArtifact)
    assert artifact.model is not None
    return artifact.model


def test_every_rounding_of_a_cut_network_is_compared(units: tuple[Lowered, Lowered, Tensor]) -> None:
    model = model_of(units[1])
    held = {node.output for node in model.nodes}
    parts = [part for name, part in model.cut.items() if name in held]
    for tensor in model.rounded.values():
        channels = [some for whole, some in parts if whole == tensor]
        assert tensor in held or torch.equal(torch.cat(channels).sort().values, torch.arange(HALF))


def test_each_piece_is_compared_with_its_own_channels(units: tuple[Lowered, Lowered, Tensor]) -> None:
    plain, model = model_of(units[0]), model_of(units[1])
    piece = next(name for name, (whole, _) in model.cut.items() if whole in model.rounded.values())
    whole, channels = model.cut[piece]
    (node,) = (name for name, tensor in model.rounded.items() if tensor == whole)
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(-128, 128, (1, 5, 7, 3), generator=generator, dtype=torch.int8)
    (integers,) = replace(plain, outputs=(plain.rounded[node],)).run([x])
    model.run([x], {node: (integers.double(), integers)})
    turned = {**model.cut, piece: (whole, channels.flip(0))}
    with pytest.raises(VerificationError, match="quanta"):
        replace(model, cut=turned).run([x], {node: (integers.double(), integers)})


@pytest.mark.parametrize("accelerator", slow_but(["ethos-u85-256", "ethos-u55-128"], ["ethos-u85-256"]))
def test_vela_estimates_fewer_cycles(accelerator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ethosu.vela")
    x = torch.randn(1, 3, 20, 28, generator=torch.Generator().manual_seed(3))
    network, found = by_arm(perturb(Units()).eval(), x), []
    for _ in range(2):
        made = dimorder.lower(network, (x,), target=accelerator, input_orders="NHWC", output_orders="NHWC")
        assert isinstance(made.artifact, NpuPte)
        kinds = inspect_tosa(made.artifact.graph.data).operators.keys()
        found.append((made.artifact.npu.cycles, bool(kinds & MOVES)))
        for name in ("OF_U85", "OF_U55"):
            form = getattr(ethos_u, name).flipped("cuts_convolutions")
            monkeypatch.setattr(ethos_u, name, form)
    (cycles, moves), (plain_cycles, plain_moves) = found
    assert (moves, plain_moves) == (False, True)
    assert cycles < 0.9 * plain_cycles


UNCUT: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "a channel that is read twice": lambda a, b: (shuffled(a, b)[:, :HALF], shuffled(a, b)[:, 1 : HALF + 1]),
    "a reader that is no convolution": lambda a, b: (
        shuffled(a, b)[:, :HALF],
        shuffled(a, b)[:, HALF:].sigmoid() * shuffled(a, b)[:, HALF:],
    ),
    "a convolution that something else reads": lambda a, b: (shuffled(a, b)[:, :HALF], a),
    "moves along the image": lambda a, b: (torch.cat([a[:, :, 2:], a[:, :, :2]], 2), b),
    "no moves": lambda a, b: (a, b),
}


@pytest.mark.parametrize("name", UNCUT)
def test_what_is_not_cut(name: str) -> None:
    plain, cut, _ = pair(Joined(UNCUT[name]))
    assert plain.artifact.data == cut.artifact.data


def test_pieces_that_would_leave_lanes_empty_are_not_cut() -> None:
    class Narrow(nn.Module):
        """Eight readers, each of three channels of two convolutions."""

        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = point(3, HALF), point(3, HALF)
            self.ends = nn.ModuleList(point(6, 5) for _ in range(8))

        def forward(self, x: Tensor) -> Tensor:
            parts = shuffled(self.left(x), self.right(x)).chunk(8, 1)
            return torch.stack([end(part) for end, part in zip(self.ends, parts, strict=True)]).sum(0)

    plain, cut, _ = pair(Narrow())
    assert plain.artifact.data == cut.artifact.data
