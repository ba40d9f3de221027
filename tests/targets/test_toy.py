"""Test that docs/targets.md is enough to write a target: `outside/dimorder_toy` lowers whole networks."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.cli import main
from dimorder.errors import UnsupportedError, UsageError
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.costs import Costs
from dimorder.targets.base import DynamicSizes, Recipe, Target, TargetFiles, TargetRuntime
from dimorder.targets.target_info import TargetInfo
from tests import zoo
from tests.conftest import ROOT

OUTSIDE = Path(__file__).parent / "outside"


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    paths = [str(OUTSIDE), str(OUTSIDE / "extra")]
    sys.path[:0] = paths
    yield
    for path in paths:
        sys.path.remove(path)
    for name in [name for name in sys.modules if name.startswith(("dimorder_toy", "toy_format"))]:
        del sys.modules[name]


@pytest.fixture
def toy() -> Any:
    from dimorder_toy.target import TARGET

    return TARGET


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3, stride=2)
        self.last = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.first(x).relu(), 3, 2, 1)
        return self.last(nn.functional.hardtanh(self.second(x)).mean((2, 3)))


def test_it_has_fewer_than_250_lines() -> None:
    files = [*OUTSIDE.glob("dimorder_toy/*.py"), *OUTSIDE.glob("extra/*.py")]
    assert sum(len(file.read_text().splitlines()) for file in files) < 250


@pytest.mark.parametrize(("order", "conversions"), [("NHWC", 0), ("NCHW", 1)])
def test_resnet18_gives_the_numbers_of_eager(toy: Any, order: str, conversions: int, tmp_path: Path) -> None:
    net, x = zoo.network("resnet18").build(), torch.randn(1, 3, 64, 96)
    lowered = dimorder.lower(net, (x,), target=toy, input_orders=order)
    assert len(lowered.plan.conversions) == conversions and lowered.verified.artifact_ran
    assert [name for name, *_ in lowered.artifact.head["calls"]].count("transpose") == conversions
    program = dimorder.load(lowered.save(tmp_path / "net.toy"), target=toy)
    with torch.no_grad():
        torch.testing.assert_close(program(x), net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_an_int8_mobilenet_v2_gives_the_numbers_of_its_quantized_network(toy: Any) -> None:
    pytest.importorskip("torchao")
    net, examples = zoo.network("mobilenet_v2").build(), [torch.randn(1, 3, 64, 64) for _ in range(4)]
    quantized = dimorder.quantize(net, examples, target=toy)
    lowered = dimorder.lower(quantized, target=toy, input_orders="NHWC")
    assert len(lowered.plan.conversions) == 0
    (output,) = quantized.compare(lowered)
    assert output.snr_db is not None and output.pt2e_snr_db is not None
    # Sums that are rounded otherwise choose other integers, and 52 layers of weights at random spread them.
    assert output.snr_db > output.pt2e_snr_db - 1.5
    (held,) = lowered.physical.module()(examples[0].permute(0, 2, 3, 1).contiguous())
    assert torch.equal(lowered.run(examples[0]), held)  # the program that was verified, bit for bit
    floats = sum(p.numel() for p in net.parameters())
    assert len(lowered.artifact.data) < 1.2 * floats  # weights of one byte


def test_its_recipe_keeps_weights_as_integers(toy: Any, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    net, examples = Small().eval(), [torch.randn(2, 3, 9, 11) for _ in range(4)]
    quantized = dimorder.quantize(net, examples, "int8-products", target=toy)
    lowered = dimorder.lower(quantized, target=toy)
    names = [name for name, *_ in lowered.artifact.head["calls"]]
    assert names.count("scaled") == 6  # weights and biases
    held = [x.dtype for x in lowered.artifact.constants.values()]
    assert held.count(torch.int8) == held.count(torch.int32) == 3
    with torch.no_grad():
        torch.testing.assert_close(
            lowered.run(examples[0]), quantized.module(examples[0]), rtol=1e-3, atol=2e-3
        )
    with pytest.raises(UsageError, match="no recipe for target toy"):
        dimorder.quantize(net, examples, "int8", target=toy)


def test_its_own_objective_is_the_default_and_is_proven(toy: Any) -> None:
    net, x = Small().eval(), torch.randn(2, 3, 9, 11)
    by_runs, by_count = (dimorder.plan(net, (x,), target=toy, objective=o) for o in (None, "count"))
    assert by_runs.units == ("runs", "conversions") and by_runs.cost == (2 * 3 * 9 * 11, 1)
    assert by_runs.certificate.optimal and by_runs.check() == ()
    assert by_count.units == ("conversions", "bytes") and by_count.cost[0] == 1


def test_what_its_table_lacks_is_refused_with_the_operator_and_its_line(toy: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"target toy has no aten\.softmax"):
        dimorder.plan(nn.Softmax(1), (torch.randn(2, 7),), target=toy)


def test_the_command_line_takes_its_objective_and_its_recipe(
    toy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchao")
    from importlib.metadata import EntryPoint

    from dimorder import targets

    entries = {**targets._entries(), "toy": [EntryPoint("toy", "dimorder_toy:INFO", targets.GROUP)]}
    monkeypatch.setattr(targets, "_entries", lambda: entries)
    np.savez(tmp_path / "x.npz", np.random.default_rng(0).normal(size=(8, 3, 9, 11)).astype(np.float32))
    net = ["tests.targets.test_toy:Small", "--input", "2x3x9x11", "-o", str(tmp_path / "net.toy")]
    how = ["--objective", "runs", "--quantize", "int8-products", "--calibrate", str(tmp_path / "x.npz")]
    assert main(["lower", *net, *how]) == 0  # -o names the target
    out = capfd.readouterr().out
    assert "target  toy" in out and "runs" in out and "fidelity" in out
    assert main(["plan", *net[:3], "--target", "toy", "--objective", "time"]) == 2
    assert (
        "no objective of target toy, but of xnnpack\n  fix: choose runs or bytes or count"
        in capfd.readouterr().err
    )
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    text = capfd.readouterr().out
    assert "runs    the runs of memory that conversions move one by one (toy)" in text
    assert "int8-products  convolutions and linears of 8 bits, everything else in float32 (toy)" in text


def named(source: str) -> dict[str, str]:
    """The functions, classes and constants at the top of some code, as they are parsed."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.dump(node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.dump(node)
    return found


def test_the_code_on_the_page_is_the_toys() -> None:
    page = (ROOT / "docs" / "targets.md").read_text()
    blocks = [named(block) for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    written = {name: code for block in blocks for name, code in block.items()}
    toys: dict[str, str] = {}
    for file in OUTSIDE.glob("dimorder_toy/*.py"):
        toys |= named(file.read_text())
    for name in ("INFO", "TARGET", "_runs", "_clone", "ToyQuantizer"):
        assert written[name] == toys[name], name


@pytest.mark.parametrize(
    "value", [Target, TargetFiles, TargetRuntime, DynamicSizes, Recipe, Capabilities, Costs, TargetInfo]
)
def test_the_page_and_the_docstring_tell_of_each_field(value: Any) -> None:
    page, text = (ROOT / "docs" / "targets.md").read_text(), value.__doc__
    for field in dataclasses.fields(value):
        assert re.search(rf"\b{field.name}\b", page), field.name
        assert f"        {field.name}: " in text, field.name
    assert len(dataclasses.fields(value)) <= 13
