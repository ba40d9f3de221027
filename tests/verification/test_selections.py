"""Test networks that select: a rounding may exchange places of nearly equal scores, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import dimorder
from dimorder.errors import VerificationError
from dimorder.graph.exported import graph_with_tensors
from dimorder.layout.rewrite import rewrite
from dimorder.verification.numerics import Float64Run
from dimorder.verification.selections import Selections, _require_best, _require_steps
from dimorder.verification.verify import Trial
from tests.marks import require_runtime
from tests.small_networks import Net

X = torch.randn(1, 3, 40, 56, generator=torch.Generator().manual_seed(2))

Pick = Callable[[Tensor], Tensor]
PICKS: dict[str, Pick] = {
    "topk": lambda scores: scores.topk(700, 1).indices,
    "the lowest": lambda scores: scores.topk(700, 1, largest=False).indices,
    "sort": lambda scores: scores.sort(1, descending=True).indices,
    "argmax": lambda scores: scores.unflatten(1, (320, 7)).argmax(2),
    "argmax that keeps its dimension": lambda scores: (
        scores.unflatten(1, (320, 7)).argmax(2, True).flatten(1)
    ),
    "min": lambda scores: scores.unflatten(1, (320, 7)).min(2).indices,
    "pool": lambda scores: _pooled(F.max_pool2d, scores, (40, 56), (2, 3), 2, (1, 0), (1, 2)),
    "pool in three dimensions": lambda scores: _pooled(F.max_pool3d, scores, (5, 8, 56), (1, 2, 3), 2),
    "adaptive pool": lambda scores: _pooled(F.adaptive_max_pool2d, scores, (40, 56), (9, 28)),
}


def _pooled(pool: Any, scores: Tensor, plane: Sequence[int], *windows: Any) -> Tensor:
    """Return the places of the largest scores of windows in a plane."""
    places: Tensor = pool(scores.unflatten(1, (1, *plane)), *windows, return_indices=True)[1]
    return places.flatten(1)


class Picks(nn.Module):
    """Scores pixels by a convolution, whose sums are about `offset`, and returns the pixels that it picks."""

    def __init__(self, pick: Pick, offset: float) -> None:
        super().__init__()
        self.pick, self.offset = pick, offset
        self.conv = nn.Conv2d(3, 1, 3, padding=1)
        with torch.no_grad():
            self.conv.weight.copy_(torch.randn(1, 3, 3, 3, generator=torch.Generator().manual_seed(3)))

    def forward(self, x: Tensor) -> Tensor:
        places = self.pick(self.conv(x + self.offset).flatten(1))
        return x.flatten(2).gather(2, places.unsqueeze(1).expand(-1, 3, -1))


class Case:
    """A network with its trial, and its program in float64, which rounds otherwise."""

    def __init__(self, pick: Pick, offset: float) -> None:
        net = Picks(pick, offset).eval()
        found = dimorder.plan(net, (X,))
        program = rewrite(found.extracted, found.layout_plan, found.contract)
        captured = found.extracted.annotated.program
        selections = Selections.of(program, found.contract, found.extracted.buffers, captured.exported.graph)
        assert selections is not None
        self.selections = selections
        self.trial = Trial(net, captured, found.contract)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        results = Float64Run(graph_with_tensors(self.selections.program)).tensors(*inputs)
        return [x.float() if x.is_floating_point() else x for x in results]


@pytest.mark.parametrize("name", PICKS)
def test_a_rounding_may_exchange_places(name: str) -> None:
    case = Case(PICKS[name], 1e6)
    with pytest.raises(VerificationError, match="output 0 differs"):
        case.trial.compare_once(lambda inputs: case.run(inputs)[:1], "the program")
    assert case.trial.compare_selected(case.run, case.selections, "the program") == 0


def test_other_scores_than_the_best_are_refused() -> None:
    case = Case(PICKS["sort"], 1e3)

    def worst_first(inputs: Sequence[Tensor]) -> list[Tensor]:
        pixels, places = case.run(inputs)
        return [pixels.flip(2), places.flip(1)]

    with pytest.raises(
        VerificationError, match=r"(?s)aten.sort.* scores that are off from the best ones by \d"
    ):
        case.trial.compare_selected(worst_first, case.selections, "the program")


def test_a_place_is_not_selected_twice() -> None:
    case = Case(PICKS["topk"], 1e3)

    def twice(inputs: Sequence[Tensor]) -> list[Tensor]:
        return [x.index_select(-1, torch.arange(700).clamp(min=1)) for x in case.run(inputs)]

    with pytest.raises(VerificationError, match="it selects a place twice"):
        case.trial.compare_selected(twice, case.selections, "the program")


@pytest.mark.parametrize("name", ["pool", "pool in three dimensions", "adaptive pool"])
def test_a_pool_selects_in_its_window(name: str) -> None:
    case = Case(PICKS[name], 1e3)

    def elsewhere(inputs: Sequence[Tensor]) -> list[Tensor]:
        pixels, places = case.run(inputs)
        return [pixels, torch.zeros_like(places)]

    with pytest.raises(VerificationError, match="it selects a place outside of the window"):
        case.trial.compare_selected(elsewhere, case.selections, "the program")


def test_what_is_computed_from_a_selection_is_compared() -> None:
    case = Case(PICKS["topk"], 1e5)

    def wrong(inputs: Sequence[Tensor]) -> list[Tensor]:
        pixels, places = case.run(inputs)
        return [pixels * 1.01, places]

    with pytest.raises(VerificationError, match="output 0 differs"):
        case.trial.compare_selected(wrong, case.selections, "the program")


@pytest.mark.parametrize("name", ["topk", "pool"])
@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_network_that_selects_is_lowered(target: str, name: str) -> None:
    require_runtime(target)
    lowered = dimorder.lower(Picks(PICKS[name], 1e5).eval(), (X,), target=target)
    assert lowered.max_rel_error == 0


class Ties(nn.Module):
    """Two channels of a convolution differ by a rounding. It may count its calls."""

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 2, 3, padding=1, bias=False).requires_grad_(False)
        self.conv.weight[0] = torch.arange(144).mul(1.7).sin().view(16, 3, 3)
        self.conv.weight[1] = self.conv.weight[0] * (1 + 1e-7)
        self.counts = counts
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.counts:
            self.calls += 1
        y: Tensor = self.conv(x).argmax(1)
        return y


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_what_a_network_of_many_sizes_selects_is_followed(target: str) -> None:
    require_runtime(target)
    dims = ({2: Dim("H", min=4, max=32), 3: Dim("W", min=4, max=32)},)
    x = torch.randn(1, 16, 25, 25)
    assert dimorder.lower(Ties().eval(), (x,), target=target, dynamic_shapes=dims).verified.artifact_ran


def test_nearly_equal_scores_of_a_network_with_state_are_named() -> None:
    pytest.importorskip("executorch")
    with pytest.raises(VerificationError) as refused:
        dimorder.lower(Ties(counts=True).eval(), (torch.randn(1, 16, 25, 25),), target="xnnpack")
    assert refused.value.fix.startswith("return what it selects from: a rounding may exchange scores")


# Each with a number at a step of it.
STEPS: dict[str, tuple[float, Pick]] = {
    "round": (0.5, torch.round),
    "round in place": (0.5, lambda y: (y * 1.0).round_()),
    "round to decimals": (0.05, lambda y: y.round(decimals=1)),
    "floor": (1, torch.floor),
    "integers": (1, lambda y: y.int().float()),
    "bytes": (1, lambda y: y.byte().float()),
    "sign": (0, torch.sign),
    "above": (8, lambda y: (y > 8).float() * 7),
    "at most": (1, lambda y: torch.where(y <= 1, 3.0, -y)),
}


class Steps(nn.Module):
    """Takes steps of elements that are a rounding off `at`, and adds them up."""

    def __init__(self, step: Pick, at: float) -> None:
        super().__init__()
        self.step, self.at, self.two = step, at, Ties().conv
        self.last = nn.Conv2d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(x)
        near = y[:, :1] - y[:, 1:] + self.at
        z: Tensor = self.last(self.step(torch.cat([near, y[:, :1]], 3)))
        return z


@pytest.mark.parametrize("target", ["xnnpack", "litert", "tosa"])
@pytest.mark.parametrize("name", STEPS)
def test_a_rounding_may_cross_a_step(name: str, target: str) -> None:
    require_runtime(target)
    at, step = STEPS[name]
    x = torch.randn(1, 16, 25, 24, generator=torch.Generator().manual_seed(2))
    assert dimorder.lower(Steps(step, at).eval(), (x,), target=target).max_rel_error < 1e-4


def test_a_step_far_from_the_operand_is_refused() -> None:
    x = torch.tensor([0.2, 0.5, 2.4])
    node = torch.fx.Graph().call_function(torch.ops.aten.round.default, ())
    own = x.round()
    _require_steps(node, (x,), {}, torch.tensor([0.0, 1, 2]), own, 1e-4)
    with pytest.raises(VerificationError, match="its operand is not near a step"):
        _require_steps(node, (x,), {}, torch.tensor([0.0, 0, 3]), own, 1e-4)


class PicksRows(nn.Module):
    """Returns the rows that are least by integers, several of which are equal, and the sorted integers."""

    def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        return rows[x.topk(3, largest=False).indices] * 2, *x.sort()


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert", "tosa"])
def test_places_of_equal_integers_may_be_others_than_torch_has(target: str) -> None:
    """A target in whose terms `topk` and `sort` are written has its own sequence of equal ones."""
    require_runtime(target)
    x, rows = torch.tensor([[1, 1, 0, 0, 3, 2]]), torch.arange(30).reshape(6, 5)
    lowered = dimorder.lower(PicksRows(), (x, rows), target=target)
    picked, ordered, places = lowered(x, rows)
    assert torch.equal(ordered, x.sort().values)
    assert torch.equal(x.gather(1, places), ordered)
    assert {int(row[0]) // 10 for row in picked[0, :2]} == {2, 3}


def test_the_best_integers_are_exact() -> None:
    scores = torch.tensor([100000, 100004, 100003])
    node = torch.fx.Graph().call_function(torch.ops.aten.topk.default, ())
    with pytest.raises(VerificationError, match="integers that are not the best ones"):
        _require_best(node, scores[:1], scores[1:2], scores, 1e-4)
    _require_best(node, scores[1:2], scores[1:2], scores, 1e-4)


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_groups_by_a_sort_of_equal_integers_have_any_members(target: str) -> None:
    """torch.export names such a sort by whether it is stable. This one gathers rows by their kinds."""
    require_runtime(target)

    def groups(_: Any, y: torch.Tensor) -> torch.Tensor:
        rows = y.argmax(2).sort(stable=False).indices
        return y.gather(1, rows[..., None].expand_as(y)).unflatten(1, (3, 8)).softmax(2)

    x = torch.randn(2, 24, 5)
    result = dimorder.lower(Net(groups), (x,), target=target)(x)
    assert torch.allclose(result.sum(2), torch.ones(2, 3, 5))


@pytest.mark.parametrize("target", ["xnnpack", "litert", "tosa"])
def test_argsort_of_equal_scores_has_any_sequence(target: str) -> None:
    require_runtime(target)
    x = torch.randn(3, 40)
    lowered = dimorder.lower(Net(lambda _, y: y.relu().argsort()), (x,), target=target)
    assert torch.equal(x.relu().gather(1, lowered(x)), x.relu().sort().values)


def test_a_stable_sort_of_integers_has_torchs_places() -> None:
    pytest.importorskip("executorch")
    x = torch.tensor([[1, 1, 0, 0, 3, 2]])
    net = Net(lambda _, y: y.sort(stable=True, descending=True))
    assert torch.equal(dimorder.lower(net, (x,), target="xnnpack")(x)[1], net(x)[1])
