"""Test what `dimorder plan` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from dimorder.cli import main
from tests.cli import networks
from tests.cli.commands import HERE, INPUT

pytestmark = pytest.mark.usefixtures("at_root")


def test_plan_prints_the_plan(capfd):
    assert main(["plan", f"{HERE}:Tiny", *INPUT, "--input-order", "NHWC"]) == 0
    out, _ = capfd.readouterr()
    assert out.splitlines()[0] == "input   x        2 x 3 x 5 x 7  float32  NHWC (0, 2, 3, 1)"
    assert "conversions  none" in out


def test_plan_takes_a_module_as_it_is(capfd):
    assert main(["plan", f"{HERE}:READY", *INPUT, "--target", "torch", "--objective", "count"]) == 0
    assert "target  torch" in capfd.readouterr().out


def test_plan_writes_a_graph(capfd, tmp_path):
    path = tmp_path / "plan.dot"
    assert main(["plan", f"{HERE}:Tiny", *INPUT, "--dot", str(path)]) == 0
    assert path.read_text().startswith("digraph plan {") and path.read_text().endswith("}\n")
    assert main(["plan", f"{HERE}:Tiny", *INPUT, "--dot", str(tmp_path)]) == 2


def test_inputs_by_name_and_of_integers(capfd):
    inputs = ["--input", "2x3:int64", "--input", "mask=2x3"]
    assert main(["plan", f"{HERE}:Ids", *inputs]) == 0
    assert "int64" in capfd.readouterr().out


def test_an_operator_that_no_rule_knows_is_named_and_the_plan_still_comes(capfd):
    assert main(["plan", f"{HERE}:Unruly", "--input", "2x3x5x5"]) == 0
    out, _ = capfd.readouterr()
    line = 1 + next(
        number
        for number, text in enumerate(Path(networks.__file__).read_text().splitlines())
        if "linalg.inv(" in text
    )
    assert f"\n  aten.linalg_inv_ex (networks.py:{line}): " in out
