"""Test that `torch.cond` has dynamic sizes, and that each branch is compared at each verified point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import dimorder
from dimorder.errors import UnsupportedError, VerificationError
from dimorder.graph import branches
from dimorder.pipeline import checking
from dimorder.verification.relative_error import relative_error
from tests.marks import slow_but

TARGETS = ["torch", "xnnpack"]
N, H, W, L = Dim("N", min=1, max=9), Dim("H", min=6, max=20), Dim("W", min=6, max=20), Dim("L", min=4, max=30)
Sizes = Sequence[tuple[int, ...]]


class Applied(nn.Module):
    """A function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Convolved(nn.Module):
    """Convolutions in both branches, and before and after them."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.first, self.last = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(6, 7, 3)
            self.yes, self.no = nn.Conv2d(5, 6, 1), nn.Conv2d(5, 6, (1, 3), padding=(0, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        z, sums = torch.cond(x.sum() > 0, self.by_yes, self.by_no, (y,))
        return self.last(z), sums

    def by_yes(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.yes(y).relu(), y.sum((2, 3))

    def by_no(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.no(y).sigmoid(), y.amax((2, 3))


class Counting(nn.Module):
    """Chooses by a total that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.total: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cond(self.total.sum() + x.sum() > 0, lambda x: x - 1, lambda x: x * 2 + 3, (x,))
        self.total.add_(y.sum(0))
        return y * self.total


class Int8(nn.Module):
    """Convolutions that are quantised, around a branch that is not."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        return self.last(torch.cond(y.mean() > 0.3, torch.tanh, lambda y: y * 0.5, (y,)))


def captured_size(x: Tensor) -> Tensor:
    """Both branches read a number that is computed before them."""
    count = x.shape[0] * 2
    return torch.cond(x.sum() > 0, lambda x: x * count, lambda x: x - count, (x,))


def own_tensors(x: Tensor) -> Tensor:
    """Both branches make tensors of their operand's size."""
    positions: Callable[[Tensor], Tensor] = lambda x: x + torch.arange(x.shape[1])  # noqa: E731
    return torch.cond(x.sum() > 0, positions, lambda x: x * torch.ones(x.shape[0], 1), (x,))


def attention(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: (x @ x.mT).softmax(-1) @ x, lambda x: x * 1.5, (x,))


def reshaped(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.reshape(-1).relu(), lambda x: x.mT.reshape(-1) * 2, (x,))


def chained(x: Tensor) -> Tensor:
    """The second condition depends on the first one's result, and the sum reads both."""
    y = torch.cond(x.sum() > 0, lambda x: x.repeat(8, 1).tanh()[: x.shape[0]] * 2, torch.sin, (x,))
    return y + torch.cond(y.max() > 0.9, lambda y: y - 2, torch.cos, (y,))


def skipped(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.exp, lambda x: x, (x,)) + x


ROWS = [(1, 3), (2, 3), (5, 3), (9, 3)]
NETWORKS: dict[str, tuple[nn.Module, dict[int, Any], Sizes]] = {
    "a batch": (
        Applied(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 3, (x,))),
        {0: N},
        ROWS,
    ),
    "convolutions": (
        Convolved().eval(),
        {0: N, 2: H, 3: W},
        [(1, 3, 6, 7), (2, 3, 20, 20), (5, 3, 8, 6), (9, 3, 6, 6)],
    ),
    "a captured size": (Applied(captured_size), {0: N}, ROWS),
    "own tensors": (Applied(own_tensors), {0: N}, ROWS),
    "own tensors of a dynamic size": (Applied(own_tensors), {1: L}, [(3, 4), (3, 5), (3, 30)]),
    "attention": (Applied(attention), {0: N, 1: L}, [(1, 4, 5), (9, 4, 5), (2, 30, 5), (3, 7, 5)]),
    "reshapes": (Applied(reshaped), {0: N}, [(1, 3, 5), (4, 3, 5), (9, 3, 5)]),
    "two conditions": (Applied(chained), {0: N}, ROWS),
    "an operand as it is": (Applied(skipped), {0: N}, ROWS),
}


@pytest.fixture(autouse=True)
def needs(request: pytest.FixtureRequest) -> None:
    if "target" in request.fixturenames and request.getfixturevalue("target") == "xnnpack":
        pytest.importorskip("executorch")


def example(shape: Sequence[int], seed: int) -> Tensor:
    """Return numbers of mean 0.2, or -0.2 for odd seeds."""
    generator = torch.Generator().manual_seed(seed)
    return 0.5 * torch.randn(*shape, generator=generator) + (-0.2 if seed % 2 else 0.2)


def errors(run: Any, net: nn.Module, x: Tensor) -> list[float]:
    with torch.no_grad():
        wanted = pytree.tree_leaves(net(x))
    return [relative_error(*pair) for pair in zip(pytree.tree_leaves(run(x)), wanted, strict=True)]


@pytest.mark.parametrize(
    ("name", "target"),
    slow_but(
        product(NETWORKS, TARGETS),
        [*product(NETWORKS.keys() - {"convolutions"}, ["torch"]), ("convolutions", "xnnpack")],
    ),
)
def test_one_file_takes_the_branch_that_data_choose_at_all_sizes(
    name: str, target: str, tmp_path: Path
) -> None:
    net, dims, shapes = NETWORKS[name]
    lowered = dimorder.lower(net, (example(shapes[1], 0),), dynamic_shapes=(dims,), target=target)
    assert lowered.plan.ranges is not None and lowered.plan.ranges.unproven is None
    program = dimorder.load(lowered.save(tmp_path / f"net.{'pt2' if target == 'torch' else 'pte'}"))
    signs = set()
    for run in (lowered.run, program):
        for shape in shapes:
            for x in (example(shape, seed) for seed in range(4)):
                signs.add(bool(x.sum() > 0))
                assert max(errors(run, net, x)) < 1e-5, shape
    assert signs == {True, False}


@pytest.mark.parametrize("target", slow_but(TARGETS, ["xnnpack"]))
def test_state_may_choose(target: str, tmp_path: Path) -> None:
    lowered = dimorder.lower(Counting(), (example((2, 3), 0),), dynamic_shapes=({0: N},), target=target)
    program = dimorder.load(lowered.save(tmp_path / f"net.{'pt2' if target == 'torch' else 'pte'}"))
    net = Counting()
    for seed, count in enumerate((2, 9, 1, 5, 5, 3)):
        assert max(errors(program, net, example((count, 3), seed))) < 1e-5


@pytest.mark.parametrize("dims", slow_but([None, {0: N}], [None]), ids=["fixed", "dynamic"])
def test_a_branch_between_integers_runs_in_floats(dims: dict[int, Any] | None) -> None:
    pytest.importorskip("executorch")
    pytest.importorskip("torchao")
    from tests.targets.quantised import by_xnnpack

    x = example((2, 3, 8, 9), 0)
    shapes = None if dims is None else (dims,)
    lowered = dimorder.lower(
        quantised := by_xnnpack(Int8(), x, dims=shapes), (x,), dynamic_shapes=shapes, target="xnnpack"
    )
    assert lowered.artifact.outside["aten::tanh.out"] == 1
    for factor in (0.2, 5.0):  # each takes another branch
        for count in (1, 4, 9) if dims else (2,):
            (error,) = errors(lowered.run, quantised, factor * example((count, 3, 8, 9), 2))
            assert error < 0.02  # of the largest value; a quantum is 0.008 of it


@pytest.mark.parametrize("target", slow_but(TARGETS, ["torch"]))
def test_an_exported_program_may_have_them(target: str) -> None:
    net, dims, shapes = NETWORKS["convolutions"]
    exported = torch.export.export(net, (example((2, 3, 8, 9), 0),), dynamic_shapes=(dims,))
    lowered = dimorder.lower(exported, target=target)
    for seed, shape in enumerate(shapes):
        assert max(errors(lowered.run, net, example(shape, seed))) < 1e-5


@pytest.mark.parametrize("target", slow_but(TARGETS, ["torch"]))
def test_there_may_be_one_graph_for_each_size(target: str) -> None:
    net, x = NETWORKS["convolutions"][0], example((2, 3, 8, 9), 0)
    three = Dim("N", min=1, max=3)
    for (count,), lowered in dimorder.lower_sizes(
        net, (x,), dynamic_shapes=({0: three},), target=target
    ).items():
        for seed in range(2):
            assert max(errors(lowered.run, net, example((count, 3, 8, 9), seed))) < 1e-5


def test_sizes_that_were_fixed_before_may_be_dynamic() -> None:
    net, dims, _ = NETWORKS["convolutions"]
    x = example((2, 3, 8, 9), 0)
    dimorder.lower(net, (x,))
    lowered = dimorder.lower(net, (x,), dynamic_shapes=(dims,))
    assert [symbol.name for symbol in lowered.contract.symbols] == ["N", "H", "W"]


# -- verification


def test_each_branch_is_compared_at_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    forced = checking.force_physical

    def record(program: Any, choices: Any) -> Any:
        compared.append(list(choices.values()))
        return forced(program, choices)

    monkeypatch.setattr(checking, "force_physical", record)
    net, dims, _ = NETWORKS["two conditions"]
    steps: list[str] = []
    dimorder.lower(
        net, (example((2, 3), 0),), dynamic_shapes=(dims,), progress=lambda step: steps.append(str(step))
    )
    pairs = [[True, True], [False, False], [False, True], [True, False]]
    assert compared == pairs * 2  # once for the physical program, once for the artifact


@pytest.mark.parametrize(
    ("taken", "target"), slow_but(product([True, False], TARGETS), [(True, "torch"), (False, "xnnpack")])
)
def test_a_wrong_branch_is_found(target: str, taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class OneAlone(branches.Branches):
        def __init__(self, yes: Any, no: Any) -> None:
            super().__init__(*((yes, yes) if taken else (no, no)))

    monkeypatch.setattr(branches, "Branches", OneAlone)
    with pytest.raises(VerificationError, match=r"with forced branches, at N = |physical program"):
        net, dims, _ = NETWORKS["convolutions"]
        dimorder.lower(net, (example((2, 3, 8, 9), int(not taken)),), dynamic_shapes=(dims,), target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_both_operands_may_be_one_value(target: str) -> None:
    """A flip of dimensions of size 1 changes nothing, so that both operands are the input."""

    def choose(x: Tensor) -> Any:
        y = x.flip((1, 2))
        return torch.cond(y.sum() > 0, lambda a, b: a.exp() - b, lambda a, b: a + b * 3, (y, x))

    network, x = Applied(choose), torch.rand(5, 1, 1, 3) + 0.5
    lowered = dimorder.lower(network, (x,), target=target, output_orders=["NHWC"])
    for given in (x, -x):
        assert relative_error(lowered.run(given), network(given)) <= 1e-4


# -- what is refused


def refusal(function: Callable[[Tensor], Any], dims: dict[int, Any], target: str = "torch") -> list[str]:
    shape = (2, 3, 8, 9)
    with pytest.raises(UnsupportedError) as caught:
        dimorder.lower(Applied(function), (example(shape, 0),), dynamic_shapes=(dims,), target=target)
    return str(caught.value).splitlines()


def test_sizes_choose_no_branch() -> None:
    first, *rest = refusal(
        lambda x: torch.cond(x.shape[0] > 4, lambda x: x + 1, lambda x: x * 2, (x,)), {0: N}
    )
    assert first.startswith("cond (test_branches.py:")
    assert rest == [
        "  found: control flow with dynamic sizes",
        "  fix: decide it before export, or fix the sizes",
    ]


def test_data_choose_no_sizes() -> None:
    _, found, _ = refusal(
        lambda x: torch.cond(x.sum() > 0, lambda x: x[:1] * 2, lambda x: x * 1, (x,)), {0: N}
    )
    assert found == "  found: a result whose size the data decide: (u0, 3, 8, 9)"


def test_a_branch_has_no_control_flow_of_its_own() -> None:
    def inner(x: Tensor) -> Tensor:
        return torch.cond(x.max() > 1, torch.exp, torch.sin, (x,))

    _, found, _ = refusal(lambda x: torch.cond(x.sum() > 0, inner, torch.cos, (x,)), {0: N})
    assert found == "  found: control flow within a branch of torch.cond"


def test_torch_exports_no_result_of_a_computed_size() -> None:
    first, found, fix = refusal(
        lambda x: torch.cond(x.sum() > 0, lambda x: x[:, :, 1:] * 2, lambda x: x[:, :, :-1] * 3, (x,)), {2: H}
    )
    assert first == "torch.export of Applied (test_branches.py:{})".format(first.split(":")[-1][:-1])
    assert (
        found
        == "  found: a branch of torch.cond whose result has a size that is computed from a dynamic size"
    )
    assert fix == "  fix: return it flat, as x.flatten(), and give it its shape after torch.cond"


@pytest.mark.parametrize("target", TARGETS)
def test_such_a_result_may_be_flat(target: str) -> None:
    def net(x: Tensor) -> Tensor:
        flat = torch.cond(
            x.sum() > 0, lambda x: (x[:, :, 1:] * 2).flatten(), lambda x: (x[:, :, :-1] * 3).flatten(), (x,)
        )
        return flat.reshape(x.shape[0], 3, x.shape[2] - 1, 9)

    x = example((2, 3, 8, 9), 0)
    lowered = dimorder.lower(Applied(net), (x,), dynamic_shapes=({2: H},), target=target)
    for height in (6, 11, 20):
        for seed in range(2):
            assert max(errors(lowered.run, Applied(net), example((2, 3, height, 9), seed))) < 1e-6


@pytest.mark.parametrize(
    ("target", "found"), [("inductor", "AOTInductor gives other numbers"), ("litert", "LiteRT has no cond")]
)
def test_targets_that_have_none_refuse_it(target: str, found: str) -> None:
    if target == "litert":
        pytest.importorskip("ai_edge_litert")
    lines = refusal(lambda x: torch.cond(x.sum() > 0, torch.exp, torch.sin, (x,)), {0: N}, target)
    assert found in lines[1]
