"""Test what `dimorder explain` says of each conversion and of the state."""

from __future__ import annotations

import json

import pytest

from dimorder.cli import main
from tests.cli.commands import HERE, INPUT, refused

pytestmark = pytest.mark.usefixtures("at_root")


def test_explain_gives_each_reason(capfd):
    assert main(["explain", f"{HERE}:Tiny", *INPUT]) == 0
    out, _ = capfd.readouterr()
    assert out.startswith("0  x 2×3×5×7: NCHW (0, 1, 2, 3) → NHWC (0, 2, 3, 1)")
    assert "promise input x in NHWC" in out


def test_explain_of_a_plan_without_conversions(capfd):
    nhwc = ["--input-order", "NHWC"]
    assert main(["explain", f"{HERE}:Tiny", *INPUT, *nhwc]) == 0
    assert capfd.readouterr().out == "no conversions: nothing to explain\n"
    text = refused(capfd, ["explain", f"{HERE}:Tiny", *INPUT, *nhwc, "--conversion", "0"], 2)
    assert "a plan of no conversions" in text


def test_explain_tells_of_the_state_too(capfd):
    orders = ["--input-order", "NHWC", "--output-order", "NHWC", "--target", "xnnpack"]
    model = ["tests.zoo.stateful:StreamingConv2d", "--input", "1x3x2x9"]
    assert main(["explain", *model, *orders]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "no conversions",
        "state rows: NHWC (0, 2, 3, 1) at entry and exit",
        "    in another order the best plan costs 432 bytes instead of 0",
        "state features: NHWC (0, 2, 3, 1) at entry and exit",
        "    in another order the best plan costs 2,160 bytes instead of 0",
    ]
    assert main(["explain", *model, *orders, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert [(each["state"]["name"], each["cost_otherwise"]) for each in told] == [
        ("rows", 432),
        ("features", 2160),
    ]


def test_explain_refuses_a_number_that_is_not_there(capfd):
    text = refused(capfd, ["explain", f"{HERE}:Tiny", *INPUT, "--conversion", "1"], 2)
    assert "give 0 to 0" in text
