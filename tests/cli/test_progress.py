"""Test what a command shows of its steps in a terminal, and what steps the Python interface reports."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

import dimorder
from dimorder import cli
from dimorder.cli import console
from dimorder.cli.console import Console, ProgressLine
from dimorder.clock import StepPart
from dimorder.quantization.calibration import ExampleFiles, count_examples
from tests.cli.commands import HERE, INPUT, tiny

pytestmark = pytest.mark.usefixtures("at_root")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def line(clock):
    """A line without a terminal, so that nothing but the test reads it."""
    return ProgressLine(Console(io.StringIO(), io.StringIO()), clock)


def test_a_command_shows_nothing_for_two_seconds(line, clock):
    line("capture")
    clock.now_s += 1.9
    assert line.line() == ""
    clock.now_s += 0.2
    assert line.line() == "dimorder: capture, 2 s"


def test_a_new_step_has_its_own_seconds(line, clock):
    line("capture")
    clock.now_s += 70
    line("emit")
    clock.now_s += 3
    assert line.line() == "dimorder: emit, 3 s"


def test_a_step_of_known_length_has_a_bar_and_the_time_left(line, clock):
    for done in range(4):
        line(StepPart("calibrating", done, 16))
        clock.now_s += 5
    # 15 s for three of the sixteen: 13 more take 65 s, of which 5 are over.
    assert line.line() == "dimorder: calibrating [###.................] 3 of 16, 20 s, about 1 min 0 s left"


def test_no_time_is_left_to_tell_before_the_first_part_is_done(line, clock):
    line(StepPart("calibrating", 0, 16))
    clock.now_s += 5
    assert line.line() == "dimorder: calibrating [....................] 0 of 16, 5 s"


def test_a_part_that_takes_longer_than_the_others_has_no_negative_time_left(line, clock):
    line(StepPart("verify", 0, 2))
    clock.now_s += 3
    line(StepPart("verify", 1, 2))
    clock.now_s += 30
    assert line.line() == "dimorder: verify [##########..........] 1 of 2, 33 s"


def test_a_step_of_unknown_length_has_its_count(line, clock):
    line(StepPart("calibrating", 7))
    clock.now_s += 5
    assert line.line() == "dimorder: calibrating, 7 done, 5 s"


def test_the_solver_has_its_time_limit(line, clock):
    line("solve")
    line(StepPart("solve", limit_s=60))
    clock.now_s += 30
    assert line.line() == "dimorder: solve [##########..........] 30 s, at most 1 min 0 s"


@pytest.mark.parametrize(
    ("err", "more", "shown"),
    [
        (Terminal, [], True),
        (io.StringIO, [], False),
        (Terminal, ["--json"], False),
        (Terminal, ["--json", "plan.json"], True),
    ],
)
def test_only_a_terminal_shows_steps_and_none_beside_json(err, more, shown, monkeypatch, tmp_path):
    monkeypatch.setattr(console, "PATIENCE_S", 0.0)
    monkeypatch.setattr(console, "_EVERY_S", 0.001)
    more = [str(tmp_path / each) if each.endswith(".json") else each for each in more]
    options = cli.parser().parse_args(["plan", f"{HERE}:Tiny", *INPUT, *more])
    streams = io.StringIO(), err()
    assert cli._finish(options, Console(*streams)) == 0
    seen = streams[1].getvalue()
    if shown:
        assert "\r\x1b[2Kdimorder: solve [" in seen
        assert seen.endswith("\r\x1b[2K")  # nothing of it is left
    else:
        assert seen == ""


def parts(steps, name):
    return [(step.done, step.total) for step in steps if isinstance(step, StepPart) and step.name == name]


def test_quantize_reports_each_example_of_a_calibration():
    steps = []
    x = torch.randn(2, 3, 5, 7)
    dimorder.quantize(tiny(), [x, x, x], progress=steps.append)
    assert parts(steps, "calibrating") == [(0, 3), (1, 3), (2, 3)]
    unknown = []
    dimorder.quantize(tiny(), iter([x, x]), progress=unknown.append)
    assert parts(unknown, "calibrating") == [(0, None), (1, None)]


def test_the_examples_in_a_file_are_counted_before(tmp_path):
    np.savez(tmp_path / "some.npz", x=np.zeros((6, 3, 5, 7), np.float32))  # three batches of two
    np.save(tmp_path / "more.npy", np.zeros((1, 2, 3, 5, 7), np.float32))  # one
    exported = torch.export.export(tiny(), (torch.randn(2, 3, 5, 7),))
    files = ExampleFiles.read(tmp_path, exported)
    assert count_examples(files) == len(list(files)) == 4


def test_lower_reports_its_steps_in_their_sequence_and_each_size_of_a_range():
    steps = []
    shapes, conv = ({0: torch.export.Dim("n", min=1, max=9)},), torch.nn.Conv2d(3, 4, 3)
    dimorder.lower(conv, (torch.randn(2, 3, 5, 7),), dynamic_shapes=shapes, progress=steps.append)
    names = list(dict.fromkeys(step.name if isinstance(step, StepPart) else step for step in steps))
    assert names == [
        "capture",
        "annotate",
        "extract",
        "solve",
        "rewrite",
        "verify",
        "running the network",
        "emit",
        "run",
    ]
    for name in ("capture", "solve", "running the network", "verify", "run"):
        found = [each for each in parts(steps, name) if each[0] is not None]
        assert len(found) > 1 and found[: found[0][1]] == [(i, found[0][1]) for i in range(found[0][1])], name
