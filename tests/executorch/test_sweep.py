"""Decides, operator by operator, that our path is right in every order at every rank, on both backends."""

from __future__ import annotations

import pytest

from tests.marks import slow_but

pytest.importorskip("executorch")

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

from dimorder.executorch import XNNPACK, guarded, sweep
from dimorder.executorch.attempt import Outcome, attempt
from dimorder.executorch.cases import Case, cases
from dimorder.executorch.lowering_paths import BACKENDS, run_bare, stock
from dimorder.executorch.probing import TOGETHER, group_cases, outcomes, tabulate
from dimorder.runtime.kernels import KernelCall

RANKS = ("3", "4", "5")
# What ExecuTorch 1.5.1 runs in no order at all, so no path through it can: the ranks, and why.
NOT_IN_EXECUTORCH = {
    **dict.fromkeys(
        ("lgamma", "digamma", "erfinv", "fmax", "fmin", "hypot", "cumprod", "sort"),
        ("345", "its Python runtime has no kernel for it"),
    ),
    "adaptive_max_pool2d": ("4", "its Python runtime has no kernel for it"),
    "avg_pool3d": ("5", "its Python runtime has no kernel for it"),
    "max_pool3d": ("5", "its Python runtime has no kernel for it"),
    "convolution": ("5", "its kernel takes inputs of 3 and 4 dims"),
}
# One of each kind: element by element, broadcast, reduced, along one dim, moved, joined, windows, parameters.
REPRESENTATIVE = (
    ("abs", "x"),
    ("mul.Tensor", "x, b"),
    ("where.self", "m, x, s"),
    ("prelu", "x, C"),
    ("lerp.Scalar", "x, y, 0.3"),
    ("mean.dim", "x, [1], True"),
    ("_softmax", "x, -1, False"),
    ("topk", "x, 2, 1"),
    ("flip", "x, [-1]"),
    ("cat", "[x, y], 1"),
    ("gather", "x, 1, h"),
    ("permute", "x, [0] + list(range(2, r)) + [1]"),
    ("constant_pad_nd", "x, [1, 2, 2, 1], 0.5"),
    ("_adaptive_avg_pool2d", "x, [1, 1]"),
    ("native_layer_norm", "x, [x.shape[-1]], V, V, 1e-5"),
    ("max_pool2d_with_indices", "x, [3, 3], [2, 2], [1, 1]"),
)


def partitioner(backend):
    return guarded(XnnpackPartitioner(), XNNPACK) if backend == "xnnpack" else None


def is_absent(case):
    return case.shape[0] in NOT_IN_EXECUTORCH.get(case.operator, "-")[0]


@pytest.mark.parametrize("backend", slow_but(BACKENDS, ["portable"]))
def test_representative_operators_are_right_in_every_order_at_every_rank(backend):
    chosen = [
        case for case in cases() if case.shape in RANKS and (case.operator, case.call) in REPRESENTATIVE
    ]
    assert {(case.operator, case.call) for case in chosen} == {*REPRESENTATIVE}
    assert sweep(partitioner(backend), chosen) == []


def test_sweep_finds_what_a_lowering_gets_wrong_and_nothing_else():
    chosen = [case for name in ("abs", "flip") for case in cases(name) if case.shape == "4"]
    found = sweep(None, chosen, lower=lambda exported, partitioner: stock("portable")(exported))
    assert [(finding.case.operator, finding.case.order) for finding in found] == [
        ("flip", "channels_last")
    ] * 2
    assert all("it calls aten::flip.out in NHWC" in finding.why for finding in found)


def test_what_the_compiler_of_a_delegate_fails_on_is_refused_in_the_table():
    case = Case("prelu", "x, C", "3", "contiguous")
    outcome = attempt([case], stock("xnnpack"), run_bare)
    assert not outcome.calls and "ChannelsLastTaggedReshapePass" in outcome.why
    table = tabulate([("xnnpack", case, outcome)])
    assert table.rows["xnnpack"] == {"aten::prelu": {"3 CC": "refused"}}
    assert not XNNPACK.takes("prelu", 3) and XNNPACK.takes("prelu", 4)


def test_a_case_that_is_right_speaks_for_all_its_kernels_and_another_for_its_only_one():
    case = Case("lerp.Scalar", "x, y, 0.3", "4", "contiguous")
    sub, mul = (KernelCall(f"aten::{name}.out", "", 4, "LLL") for name in ("sub", "mul"))
    right, both, one = (
        Outcome("right", "", (sub, mul)),
        Outcome("wrong", "", (sub, mul)),
        Outcome("wrong", "", (mul,)),
    )
    rows = [
        tabulate([("portable", case, outcome) for outcome in found]).rows["portable"]
        for found in ([right], [right, both], [right, one])
    ]
    kept = {"aten::sub.out": {"4 LLL": "right"}, "aten::mul.out": {"4 LLL": "right"}}
    assert rows == [kept, kept, kept | {"aten::mul.out": {"4 LLL": "wrong"}}]


@pytest.mark.slow
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_of_all_operators_none_is_wrong_and_none_refused_that_executorch_has(backend, rank):
    chosen = [case for case in cases() if case.shape == rank]
    present = [case for case in chosen if not is_absent(case)]
    assert len({case.operator for case in present}) >= 150
    groups = [(backend, group) for group in group_cases(present, TOGETHER)]
    bad = [
        f"{found.verdict}: {case}: {found.why}"
        for _, case, found in outcomes(groups)
        if found.verdict != "right"
    ]
    assert bad == []


@pytest.mark.slow
@pytest.mark.parametrize("rank", RANKS)
def test_what_is_listed_as_not_in_executorch_is_refused_in_contiguous_order_by_stock_lowering(rank):
    absent = [
        case for case in cases() if case.shape == rank and case.order == "contiguous" and is_absent(case)
    ]
    assert absent
    found = outcomes([("portable", (case,)) for case in absent], "stock")
    assert {outcome.verdict for _, _, outcome in found} == {"refused"}
