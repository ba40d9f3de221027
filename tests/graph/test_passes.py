"""A pass checks what it requires and ensures if checks are on, and each stage runs the list of its passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from dimorder.capture import captured
from dimorder.capture.captured import capture
from dimorder.capture.passes import EXPORTED_PASSES, GRAPH_PASSES
from dimorder.capture.rewrite_linears import LinearLimits, linear_passes
from dimorder.capture.split_attention_heads import HeadLimits
from dimorder.errors import StageError
from dimorder.graph import passes
from dimorder.graph.passes import Pass, run_passes


def test_faults_are_looked_for_in_tests_and_raise_three_lines() -> None:
    with pytest.raises(StageError) as error:
        passes.require("the stage", iter(["the first fault", "the second"]))
    assert str(error.value).splitlines()[:2] == ["the stage", "  found: the first fault"]


@pytest.mark.parametrize("value", [None, "0"])
def test_faults_are_not_looked_for_where_checks_are_off(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(passes.CHECK) if value is None else monkeypatch.setenv(passes.CHECK, value)
    looked = iter(["a fault"])
    passes.require("the stage", looked)
    assert list(looked) == ["a fault"]


def faults_of(number: int) -> Iterator[str]:
    if number < 0:
        yield f"{number} is negative"


SHRINK = Pass[int]("shrink", lambda number: number - 2, requires=(faults_of,), ensures=(faults_of,))


@pytest.mark.parametrize(("number", "stage"), [(-1, "before shrink"), (1, "after shrink")])
def test_a_pass_names_itself_and_the_fault(number: int, stage: str) -> None:
    with pytest.raises(StageError) as error:
        SHRINK(number)
    assert (error.value.where, error.value.found) == (stage, "-1 is negative")


def test_a_pass_checks_nothing_where_checks_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(passes.CHECK, "0")
    assert SHRINK(-1) == -3


def test_passes_run_in_turn_and_may_change_a_program_in_place() -> None:
    found = run_passes([Pass("append", lambda items: items.append(3)), Pass("reverse", sorted)], [5])
    assert found == [3, 5]


def test_capture_runs_its_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    for name in ("EXPORTED_PASSES", "GRAPH_PASSES"):
        noted = [Pass(f"note {name}", lambda program, name=name: ran.append(name))]
        monkeypatch.setattr(captured, name, (*getattr(captured, name), *noted))
    capture(nn.Linear(3, 5), (torch.ones(2, 3),))
    assert ran == ["EXPORTED_PASSES", "GRAPH_PASSES"]


def test_every_pass_has_a_name_of_its_own() -> None:
    names = [
        each.name
        for each in (
            *EXPORTED_PASSES,
            *GRAPH_PASSES,
            *linear_passes(LinearLimits(16, HeadLimits(32, 32)), frozenset()),
        )
    ]
    assert len(names) == len(set(names)) == 16
