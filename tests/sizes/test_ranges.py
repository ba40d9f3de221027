"""A plan for a range of sizes is the best at each of them, and says where that is not proven."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.sizes.choose_points import specialization_points
from dimorder.sizes.export_symbolic import export_symbolic
from dimorder.sizes.symbolic_program import SymbolicProgram
from tests.sizes.symbols import Gated, errors


class Mixed(nn.Module):
    """A convolution, which wants channels last, and a product over its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix = nn.Conv2d(3, 5, 3, padding=1), nn.Linear(7, 19)  # more than few features

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        return y.relu(), self.mix(y).softmax(2)


def test_the_plan_for_a_range_is_the_best_at_every_size_of_it() -> None:
    module = Mixed().eval()
    dims = ({0: Dim("N", min=1, max=5), 2: Dim("H", min=4, max=7)},)
    found = dimorder.plan(module, (torch.ones(2, 3, 5, 7),), dynamic_shapes=dims, target="xnnpack")
    assert found.ranges is not None and found.ranges.unproven is None
    kept = [(c.value, c.from_order, c.to_order) for c in found.conversions]
    for n in range(2, 6):
        for h in range(4, 8):
            fixed = dimorder.plan(module, (torch.ones(n, 3, h, 7),), target="xnnpack")
            own = dimorder.plan(
                module,
                (torch.ones(2, 3, 5, 7),),
                dynamic_shapes=dims,
                cost_at={"N": n, "H": h},
                target="xnnpack",
            )
            assert own.cost == fixed.cost and fixed.certificate.optimal
            assert [(c.value, c.from_order, c.to_order) for c in own.conversions] == kept


def test_what_is_proven_is_told_with_the_costs_at_the_ends() -> None:
    dims = ({0: Dim("N", min=1, max=16)},)
    found = dimorder.plan(Gated().eval(), (torch.ones(2, 3, 32, 48),), dynamic_shapes=dims, cost_at={"N": 8})
    assert [line for line in str(found).splitlines() if line.startswith(("sizes", "cost", "proof", "     "))][
        :4
    ] == [
        "sizes   N = 1 … 16",
        "cost    245,760 bytes, 2 conversions at N = 8",
        "proof   no plan costs less than 245,760 bytes: optimal over complete candidates (default)",
        "        nor at any other sizes of these ranges, where this plan costs 30,720 at N = 1 to 491,520 at "
        "N = 16",
    ]
    assert found.to_dict()["ranges"] == {
        "symbols": [{"name": "N", "minimum": 1, "maximum": 16}],
        "cost_at": {"N": 8},
        "corners": [{"sizes": {"N": 1}, "cost": 30720}, {"sizes": {"N": 16}, "cost": 491520}],
        "optimal_for_range": True,
        "unproven": None,
    }


class Pairs(nn.Module):
    """Attention over a length, whose scores grow with its square."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2)).softmax(1) @ x


def test_a_cost_that_grows_with_a_square_is_proven_at_one_size_alone() -> None:
    dims = ({1: Dim("L", min=4, max=40)},)
    found = dimorder.plan(Pairs(), (torch.ones(3, 9, 7),), dynamic_shapes=dims, target="xnnpack")
    assert found.ranges is not None and found.ranges.cost_at == {"L": 12}
    assert found.ranges.unproven == "a cost grows faster than one of the sizes"
    assert "of these sizes alone: a cost grows faster than one of the sizes" in str(found)


@pytest.mark.parametrize("least", [1, 2])
def test_three_sizes_in_steps_distinguish_two_ranges(least: int) -> None:
    """The points (3, 2) and (2, 3) leave no third of 2, 3 and 4; (2, 3), (3, 4) and (4, 2) differ."""
    height, width = (32 * Dim(name, min=least, max=4) for name in ("H", "W"))
    module, dims = Gated().eval(), ({2: height, 3: width},)
    lowered = dimorder.lower(module, (torch.ones(2, 3, 64, 96),), dynamic_shapes=dims, target="xnnpack")
    assert max(errors(lowered, module, torch.randn(2, 3, 128, 96))) <= 1e-4


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_sizes_in_steps_are_told_apart_by_their_steps(target: str) -> None:
    """Without steps, 2 … 5 has too few sizes above 1 to tell H from N and W."""
    if target == "litert":
        pytest.importorskip("ai_edge_litert")
    height, width = (32 * Dim(name, min=2, max=5) for name in ("H", "W"))
    module, dims = Gated().eval(), ({0: Dim("N", min=1, max=4), 2: height, 3: width},)
    lowered = dimorder.lower(module, (torch.ones(2, 3, 64, 96),), dynamic_shapes=dims, target=target)
    names = "N = 1 … 4", "H = 64 … 160 in steps of 32", "W = 64 … 160 in steps of 32"
    assert tuple(map(str, lowered.contract.symbols)) == names
    assert max(errors(lowered, module, torch.randn(3, 3, 160, 96))) <= 1e-4


class Apart(nn.Module):
    """Computes with each input alone."""

    def forward(self, *xs: torch.Tensor) -> list[torch.Tensor]:
        return [x.relu() for x in xs]


def exported_rows(ranges: list[tuple[int, int]]) -> SymbolicProgram:
    """Export a network with an input of dynamic rows for each range."""
    rows = tuple({0: Dim(f"R{i}", min=least, max=most)} for i, (least, most) in enumerate(ranges))
    inputs = tuple(torch.ones(most, 7) for _, most in ranges)
    symbolic = export_symbolic(Apart(), inputs, None, (rows,))
    assert symbolic is not None
    return symbolic


@pytest.mark.parametrize("count", [5, 7])
def test_many_dynamic_sizes_of_one_range_are_distinguished(count: int) -> None:
    """There are 4¹⁵ threes of points with four sizes of each, and none distinguishes five dynamic sizes."""
    points = specialization_points(exported_rows([(2, 64)] * count))
    assert all(len(set(point.values())) == count for point in points)
    assert all(len({point[name] for point in points}) == len(points) == 3 for name in points[0])


def test_a_range_of_two_sizes_among_many_is_refused_without_a_search() -> None:
    with pytest.raises(UnsupportedError, match="found: too few sizes in R6 = 2 … 3\n"):
        specialization_points(exported_rows([*[(4, 60)] * 6, (2, 3)]))


def test_a_search_for_points_ends() -> None:
    """Six dynamic sizes share two sizes, or four larger ones."""
    with pytest.raises(UnsupportedError, match="found: too few sizes in R0 = 2 … 3, R1 ="):
        specialization_points(exported_rows([(2, 3)] * 6))
