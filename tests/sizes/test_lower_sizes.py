"""Test graphs of fixed sizes that are lowered together: one plan, proven at each size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.cli import main
from dimorder.errors import UsageError
from tests.marks import slow_but
from tests.targets.quantised import by_xnnpack
from tests.zoo.network import perturb

X = torch.randn(1, 3, 16, 48)
DIMS = ({2: 8 * Dim("h", min=2, max=4), 3: 8 * Dim("w", min=5, max=6)},)
SIZES = [(h, w) for h in (16, 24, 32) for w in (40, 48)]


class Pooled(nn.Module):
    """Convolutions, one of them depthwise, and what is a matmul by size where sizes are dynamic."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depthwise = (
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.interpolate(self.depthwise(self.first(x).relu()).relu(), scale_factor=2.0)
        scores: Tensor = self.head(y.mean((2, 3)))
        return scores


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return perturb(Pooled().eval())


@pytest.mark.parametrize("target", ["tosa", "litert", "xnnpack"])
def test_each_graph_has_its_size_the_same_orders_and_a_proof(target: str, network: nn.Module) -> None:
    found = dimorder.lower_sizes(network, (X,), dynamic_shapes=DIMS, target=target, input_orders="NHWC")
    assert list(found) == SIZES
    choices = {lowered.plan.layout_plan.choice for lowered in found.values()}
    assert len(choices) == 1
    for (height, width), lowered in found.items():
        plan = lowered.plan
        assert plan.contract.inputs[0].shape == (1, 3, height, width)
        assert plan.certificate.optimal
        plan.layout_plan.check(plan.extracted.problem)
        x = torch.randn(1, 3, height, width).contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(lowered.run(x), network(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", slow_but(["tosa", "ethos-u85-256"], ["ethos-u85-256"]))
def test_so_has_each_graph_of_integers(target: str, network: nn.Module) -> None:
    quantised = by_xnnpack(network, X, dims=DIMS)
    found = dimorder.lower_sizes(quantised, (X,), dynamic_shapes=DIMS, target=target)
    assert list(found) == SIZES
    costs = [lowered.plan.cost for lowered in found.values()]
    assert costs == sorted(costs) and len({cost[1] for cost in costs}) == 1
    if target == "ethos-u85-256":
        cycles = [lowered.artifact.npu.cycles for lowered in found.values() if lowered.artifact.npu]
        assert len(cycles) == len(SIZES) and cycles[0] < cycles[-1]


@pytest.mark.parametrize(
    "dims",
    [
        {0: Dim("N", min=1, max=3), 3: 8 * Dim("w", min=5, max=6)},
        {2: 4 * Dim("h", min=1, max=4)},  # 4 rows become 2, then 1
    ],
)
def test_graphs_with_other_dimensions_of_size_1_are_lowered_too(
    dims: dict[int, Dim], network: nn.Module
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 3, stride=2, padding=1), network).eval()
    found = dimorder.lower_sizes(model, (X,), dynamic_shapes=(dims,), target="tosa")
    assert len(found) == (6 if 0 in dims else 4)
    for lowered in found.values():
        assert lowered.plan.certificate.optimal
        x = torch.randn(lowered.contract.inputs[0].shape)
        torch.testing.assert_close(lowered.run(x), model(x), rtol=1e-4, atol=1e-5)


def test_an_objective_that_is_known_of_one_size_is_refused(network: nn.Module) -> None:
    with pytest.raises(UsageError, match="its costs are known of fixed ones"):
        dimorder.lower_sizes(network, (X,), dynamic_shapes=DIMS, target="xnnpack", objective="time")


def test_what_has_no_sizes_or_too_many_is_refused(network: nn.Module) -> None:
    many = ({2: 2 * Dim("h", min=4, max=80)},)
    for dims, found in (
        (None, "no dynamic sizes"),
        (many, "more than 64 sizes in h = 8 … 160 in steps of 2"),
    ):
        with pytest.raises(UsageError) as refused:
            dimorder.lower_sizes(network, (X,), dynamic_shapes=dims, target="tosa")
        assert str(refused.value).splitlines()[1] == f"  found: {found}"


def test_the_command_writes_a_file_for_each_size(
    tmp_path: Path, at_root: None, capfd: pytest.CaptureFixture[str]
) -> None:
    written, told = tmp_path / "net.tosa", tmp_path / "net.json"
    command = ["lower", "tests.sizes.test_lower_sizes:Pooled", "--input", "1x3xHxW", "--range", "H=16..32:8"]
    command += ["--range", "W=40..48:8", "--target", "tosa", "-o", str(written), "--json", str(told)]
    assert main(command) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if "relative error" in line]
    assert [line.split()[0] for line in lines] == [f"{h}x{w}" for h, w in SIZES]
    assert all("(optimal)" in line for line in lines)
    assert {path.name for path in tmp_path.glob("*.tosa")} == {f"net-{h}x{w}.tosa" for h, w in SIZES}
    assert list(json.loads(told.read_text())) == [f"{h}x{w}" for h, w in SIZES]
    program = dimorder.load(tmp_path / "net-24x40.tosa")
    assert program(torch.randn(1, 3, 24, 40)).shape == (1, 5)


def test_the_command_prints_no_program_of_several(
    tmp_path: Path, at_root: None, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["lower", "tests.sizes.test_lower_sizes:Pooled", "--input", "1x3xHx40", "--range", "H=16..32:8"]
    assert main([*command, "-o", str(tmp_path / "net.tosa"), "--print", "physical"]) == 2
    assert not list(tmp_path.iterdir())
    assert "found: several graphs: those of target tosa have fixed sizes" in capfd.readouterr().err
