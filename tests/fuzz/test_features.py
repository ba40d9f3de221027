"""Random networks in float16, of dynamic sizes, with state, with branches, and with Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from dimorder.lowered import Lowered
from tests import fuzz
from tests.fuzz.branches import choose
from tests.fuzz.description import FEATURES, HALF_TOLERANCE
from tests.fuzz.fourier import FOURIER
from tests.fuzz.test_fuzz import AT_ONCE, _all_are_right

FAST, FULL = {**dict.fromkeys(FEATURES, 1), "ranges": 3}, 203
PER_TEST = AT_ONCE + 1  # so that the last slow test has many networks too
TARGETS = [(target, feature) for feature, among in FEATURES.items() for target in among]


def _has_ranges(case: fuzz.Case) -> bool:
    """Whether some input has other sizes at each of the calls that are compared."""
    shapes = {tuple(each.shape for each in call.inputs.values()) for call in case.calls}
    return len(shapes) >= 3


# What networks with a feature have, and how it is seen.
HAVE: dict[str, Callable[[fuzz.Case], bool]] = {
    "float16": lambda case: all(x.dtype == torch.float16 for x in case.args if x.is_floating_point()),
    "ranges": _has_ranges,
    "int8-ranges": lambda case: _has_ranges(case) and case.quantizer == "by_hand",
    "state": lambda case: bool(case.writes) and len(case.calls) >= 4,
    "cond": lambda case: "choose(" in case.source and len(case.calls) >= 4,
    "fourier": lambda case: any(step.operator in FOURIER for step in case.steps),
}


@pytest.mark.parametrize(("target", "feature"), TARGETS)
def test_random_networks_are_lowered_right(target: str, feature: str) -> None:
    right = _all_are_right(f"{target}-{feature}", range(FAST[feature]))
    assert right and all(map(HAVE[feature], right))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "feature", "first"),
    [(*names, first) for names in TARGETS for first in range(FAST[names[1]], FULL, PER_TEST)],
)
def test_two_hundred_random_networks_are_lowered_right(target: str, feature: str, first: int) -> None:
    _all_are_right(f"{target}-{feature}", range(first, min(first + PER_TEST, FULL)))


# -- the fuzzer itself


@pytest.mark.parametrize("feature", FEATURES)
def test_a_seed_is_a_network_and_its_module_computes_what_its_steps_do(feature: str) -> None:
    for seed in range(3):
        target = f"{FEATURES[feature][0]}-{feature}"
        case = fuzz.generate(seed, target)
        assert case == fuzz.generate(seed, target)
        module = case.module()
        for call, values in zip(case.calls, fuzz.run_calls(case), strict=True):
            with torch.no_grad():
                results = module(*call.args)
            for (name, _), result in zip(case.outputs, results, strict=True):
                assert fuzz.relative_error(result, values[name]) < case.tolerance


def _examined_with(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., list[torch.Tensor]], name: str
) -> str:
    """The outcome for the first network of a feature that is right, with another `Lowered.run`."""
    target = f"torch-{name}"
    seeds = (fuzz.generate(seed, target) for seed in range(20))
    case = next(case for case in seeds if fuzz.examine(case, target).kind == "right")
    with monkeypatch.context() as patched:
        patched.setattr(Lowered, "run", wrong)
        return fuzz.examine(case, target).kind


def test_a_program_that_is_wrong_by_more_than_float16_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Lowered.run

    def wrong(lowered: Lowered, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [y * (1 + 2 * HALF_TOLERANCE) for y in right(lowered, *inputs)]

    assert _examined_with(monkeypatch, wrong, "float16") == "wrong numbers: unnoticed"


def test_a_program_that_is_wrong_at_other_sizes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Lowered.run
    shapes: list[object] = []

    def wrong(lowered: Lowered, *inputs: torch.Tensor) -> list[torch.Tensor]:
        shapes.append([x.shape for x in inputs])
        return [y * (1 if shapes[-1] == shapes[0] else 1.01) for y in right(lowered, *inputs)]

    assert _examined_with(monkeypatch, wrong, "ranges") == "wrong numbers: unnoticed"
    assert shapes[0] != shapes[-1]


def test_a_program_that_forgets_its_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Lowered.run

    def wrong(lowered: Lowered, *inputs: torch.Tensor) -> list[torch.Tensor]:
        lowered.reset()
        return right(lowered, *inputs)

    assert _examined_with(monkeypatch, wrong, "state") == "wrong numbers: unnoticed"


def test_calls_choose_either_branch() -> None:
    chosen = set()
    for seed in range(10):
        case = fuzz.generate(seed, "torch-cond")
        for call, values in zip(case.calls, fuzz.run_calls(case), strict=True):
            for step in call.steps:
                if step.operator == "cond":
                    holds = eval(f"x.{step.attributes['holds']}", {"x": values[step.reads[0]]})
                    chosen.add(bool(holds))
    assert chosen == {True, False}


@pytest.mark.parametrize(
    "no",
    [lambda x: x, lambda x: x.sum(0), lambda x: x.double() * 2, lambda x: x / 0],
    ids=["an operand", "another shape", "another type", "no finite numbers"],
)
def test_branches_that_torch_cannot_export_do_not_fit(no: Callable[..., torch.Tensor]) -> None:
    x = torch.ones(2, 3)
    assert torch.equal(choose(x.sum() > 0, torch.exp, torch.sin, (x,)), x.exp())
    with pytest.raises(ValueError):
        choose(x.sum() > 0, torch.exp, no, (x,))


def test_what_no_call_reads_is_not_written() -> None:
    case = next(c for c in (fuzz.generate(seed, "torch-state") for seed in range(9)) if len(c.steps) > 3)
    assert fuzz.pruned(case) == case
    unread = replace(case, outputs=tuple((name, "contiguous") for name in case.inputs))
    assert fuzz.pruned(unread).writes == () and fuzz.pruned(unread).steps == ()


@pytest.mark.parametrize("feature", FEATURES)
def test_the_script_of_a_case_runs(feature: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"{FEATURES[feature][0]}-{feature}"
    case = replace(fuzz.generate(1, target), refused=())
    exec(fuzz.script(case, target, fuzz.Outcome("right", "as it is"), 1), {})
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error")]
    assert len(printed) == len(case.outputs) * len(case.calls)
    assert max(float(line.split()[1]) for line in printed) < case.tolerance
