"""Test that none of the cases that others wrote is wrong or crashes, and that few are refused."""

from __future__ import annotations

import pytest

pytest.importorskip("executorch")

from tests.suite import outcomes
from tests.suite.cases import Case, collect
from tests.suite.outcomes import CRASHED, OUTSIDE, REFUSED, RIGHT, SKIPPED, STOCK, TARGETS, WRONG, Became

EVERY = 8  # cases of a suite, of which one is run here; `python -m tests.suite` runs all, and keeps a record
# A case of each kind of operator; more are slow.
QUICK = (
    "adaptive_avgpool3d/adaptive_avgpool3d_input_sizes[2]",
    "adaptive_maxpool2d/adaptive_maxpool2d_return_indices",
    "convtranspose3d/convtranspose3d_output_padding[0]",
    "embedding_bag/embedding_bag_modes[2]",
    "floor_divide/floor_divide_dtype",
    "index_put/index_put_accumulate[1]",
    "median/median_with_indices[0]",
    "round/round_decimals[1]",
)
SAMPLES = ("torch:nn.functional.glu/0", "torch:cumsum/0", "torch:fmod/0")

# Of the whole suite: the most that may be refused, as a share.
MAX_REFUSED = {"torch": 0.0, "xnnpack": 0.01, "litert": 0.05, "tosa": 0.08}
# What XNNPACK refuses, each for want of a kernel in ExecuTorch's runtime.
REFUSED_BY_XNNPACK = {"executorch:median/median_shapes[4]"}  # more elements than are compared with each other


def one(name: str) -> Case:
    source = "torch" if name.startswith("torch:") else "executorch"
    return next(case for case in collect(source, name.removeprefix("torch:")) if str(case).endswith(name))


@pytest.mark.parametrize("name", [*QUICK, *SAMPLES])
def test_a_case_of_each_kind_is_eagers_on_every_target(name: str) -> None:
    case = one(name)
    became = {target: outcomes.examine(case, target) for target in TARGETS}
    assert {target: (b.kind, b.why) for target, b in became.items() if b.kind not in (RIGHT, OUTSIDE)} == {}
    assert {became["torch"].kind, became["tosa"].kind} == {RIGHT}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_executorchs_suite_is_lowered(target: str) -> None:
    results = _all("executorch", target)
    assert _of(results, WRONG) == _of(results, CRASHED) == {}
    refused = _of(results, REFUSED)
    assert len(refused) <= MAX_REFUSED[target] * len(results), refused
    if target == "torch":
        assert not _of(results, OUTSIDE)
    if target == "xnnpack":
        assert set(refused) <= REFUSED_BY_XNNPACK


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_pytorchs_samples_are_lowered(target: str) -> None:
    results = _all("torch", target)
    assert _of(results, WRONG) == _of(results, CRASHED) == {}


@pytest.mark.slow
def test_what_stock_delegates_whole_is_delegated_whole() -> None:
    theirs, ours = _all("executorch", STOCK), _all("executorch", "xnnpack")
    whole = [case for case, became in theirs.items() if became.kind == RIGHT and became.delegates]
    assert whole
    assert {case: ours[case] for case in whole if ours[case].kind != RIGHT or not ours[case].delegates} == {}


def _all(source: str, target: str) -> dict[str, Became]:
    found = outcomes.examine_all(list(collect(source))[::EVERY], [target])
    return {str(case): became for case, _, became, _ in found if became.kind != SKIPPED}


def _of(results: dict[str, Became], kind: str) -> dict[str, str]:
    return {case: became.why for case, became in results.items() if became.kind == kind}
