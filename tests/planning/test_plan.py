"""Test that `check` rejects plans that misstate something, and that false prices prove nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dimorder.planning.elimination import FORBIDDEN, least_cost
from dimorder.planning.plan import (
    Branch,
    Elimination,
    InvalidProof,
    LayoutPlan,
    Price,
    Prices,
    lower_bound,
    make_plan,
)
from dimorder.planning.problem import Buffer, Config, InvalidChoice, LayoutProblem, Step
from dimorder.planning.solve import solve
from tests.planning.exhaustive import exhaustive
from tests.planning.problems import KINDS, chain_with_skips, frustrated_triangle


def certified(plan: LayoutPlan, **changes: object) -> LayoutPlan:
    return replace(plan, certificate=replace(plan.certificate, **changes))


def example() -> tuple[LayoutProblem, LayoutPlan]:
    """A problem whose plan converts, with prices that matter."""
    for seed in range(1000):
        problem = chain_with_skips(seed)
        try:
            plan = solve(problem)
        except InvalidChoice:
            continue
        proof = plan.certificate.proof
        if plan.cost[0] and len(plan.conversions) > 1 and isinstance(proof, Prices) and len(proof.shares) > 1:
            return problem, plan
    raise AssertionError("no seed gives an example")


PROBLEM, PLAN = example()


def statement_mutations(plan: LayoutPlan) -> dict[str, LayoutPlan]:
    """Plans that misstate something."""
    cost = plan.cost
    first = plan.conversions[0]
    bound = plan.certificate.lower_bound
    return {
        "cost up": replace(plan, cost=(cost[0] + 1, *cost[1:])),
        "cost down": replace(plan, cost=(cost[0] - 1, *cost[1:])),
        "units": replace(plan, units=("nanoseconds", *plan.units[1:])),
        "conversion dropped": replace(plan, conversions=plan.conversions[1:]),
        "conversion added": replace(plan, conversions=(*plan.conversions, first)),
        "conversions reordered": replace(plan, conversions=plan.conversions[::-1]),
        "conversion misnamed": replace(
            plan, conversions=(replace(first, name="other"), *plan.conversions[1:])
        ),
        "conversion repriced": replace(
            plan,
            conversions=(replace(first, cost=(first.cost[0] + 1, *first.cost[1:])), *plan.conversions[1:]),
        ),
        "consumer left out": replace(plan, conversions=(replace(first, consumers=()), *plan.conversions[1:])),
        "choice too short": replace(plan, choice=plan.choice[:-1]),
        "choice too long": replace(plan, choice=(*plan.choice, 0)),
        "choice out of range": replace(plan, choice=(99, *plan.choice[1:])),
        "choice negative": replace(plan, choice=(-1, *plan.choice[1:])),
        "certificate's cost up": certified(plan, cost=(cost[0] + 1, *cost[1:])),
        "certificate's cost down": certified(plan, cost=(cost[0] - 1, *cost[1:])),
        "bound up": certified(plan, lower_bound=bound + 1),
        "bound down": certified(plan, lower_bound=bound - 1),
        "optimal flipped": certified(plan, optimal=not plan.certificate.optimal),
        "candidates": certified(plan, candidates="truncated"),
        "no proof": certified(plan, proof=Prices()),
    }


@pytest.mark.parametrize("name", statement_mutations(PLAN))
def test_check_rejects_a_plan_that_misstates(name):
    assert PLAN.check(PROBLEM) == ()
    assert statement_mutations(PLAN)[name].check(PROBLEM) != ()


def price_mutations(proof: Prices) -> dict[str, Prices]:
    """Prices that prove nothing."""
    first, *others = proof.shares
    return {
        "negative": replace(proof, shares=(replace(first, value=-1), *others)),
        "denominator 0": replace(proof, denominator=0),
        "denominator negative": replace(proof, denominator=-1),
        "no such step": replace(proof, shares=(replace(first, step=99), *others)),
        "step negative": replace(proof, shares=(replace(first, step=-1), *others)),
        "no such read": replace(proof, shares=(replace(first, position=99), *others)),
        "read negative": replace(proof, shares=(replace(first, position=-1), *others)),
    }


@pytest.mark.parametrize("name", price_mutations(PLAN.certificate.proof))
def test_false_prices_are_no_proof(name):
    proof = price_mutations(PLAN.certificate.proof)[name]
    with pytest.raises(InvalidProof):
        lower_bound(PROBLEM, proof)
    assert certified(PLAN, proof=proof).check(PROBLEM) != ()


def test_lower_prices_prove_less():
    proof = replace(PLAN.certificate.proof, shares=PLAN.certificate.proof.shares[1:])
    assert lower_bound(PROBLEM, proof) <= PLAN.certificate.lower_bound


def test_every_other_choice_is_found_out():
    """Any single swap leaves a plan that states another cost or other conversions than it has."""
    swaps = 0
    for index, step in enumerate(PROBLEM.steps):
        for config in range(len(step.configs)):
            if config == PLAN.choice[index]:
                continue
            swapped = replace(PLAN, choice=(*PLAN.choice[:index], config, *PLAN.choice[index + 1 :]))
            try:
                honest = make_plan(PROBLEM, swapped.choice, solver="test", proof=PLAN.certificate.proof)
                same = (honest.cost, honest.conversions) == (PLAN.cost, PLAN.conversions)
            except InvalidChoice:
                same = False
            assert (swapped.check(PROBLEM) == ()) == same
            swaps += not same
    assert swaps > 3


def branch_example() -> tuple[LayoutProblem, LayoutPlan, Branch]:
    problem = frustrated_triangle()
    with mock.patch("dimorder.planning.solve.least_cost", return_value=None):  # as if tables were too large
        plan = solve(problem)
    proof = plan.certificate.proof
    assert isinstance(proof, Branch)
    return problem, plan, proof


def test_a_branch_without_one_of_its_cases_is_no_proof():
    problem, plan, proof = branch_example()
    for index in range(len(proof.parts)):
        broken = replace(proof, parts=proof.parts[:index] + proof.parts[index + 1 :])
        with pytest.raises(InvalidProof, match="leaves out"):
            lower_bound(problem, broken)
        assert certified(plan, proof=broken).check(problem) != ()


def test_a_branch_on_no_step_is_no_proof():
    problem, _, proof = branch_example()
    for step in (-1, 99):
        with pytest.raises(InvalidProof, match="does not exist"):
            lower_bound(problem, replace(proof, step=step))


def test_the_weakest_case_is_the_bound():
    problem, _, proof = branch_example()
    (first, _), *others = proof.parts
    assert lower_bound(problem, replace(proof, parts=((first, Prices()), *others))) == 0


def test_an_elimination_that_takes_too_large_tables_is_no_proof():
    problem, plan, _ = branch_example()
    with pytest.raises(InvalidProof, match="more than 3 entries"):
        lower_bound(problem, Elimination(3))
    assert certified(plan, proof=Elimination(3)).check(problem) != ()


def test_an_elimination_inside_a_branch_is_no_proof():
    problem, _, proof = branch_example()
    parts = tuple((part, Elimination()) for part, _ in proof.parts)
    with pytest.raises(InvalidProof, match="inside a branch"):
        lower_bound(problem, replace(proof, parts=parts))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_elimination_finds_the_cost_that_exhaustive_finds(kind):
    for seed in range(300):
        problem = kind(seed)
        try:
            wanted = exhaustive(problem).cost[0]
        except InvalidChoice:
            assert least_cost(problem) >= FORBIDDEN
        else:
            assert least_cost(problem) == wanted


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(KINDS), st.randoms(use_true_random=False))
def test_no_shares_prove_more_than_the_optimum(seed, kind, chance: random.Random):
    """The theorem of plan.py, tried on shares that no solver chose: any that are not negative."""
    problem = kind(seed)
    denominator = chance.choice((1, 3))
    shares = []
    for index, step in enumerate(problem.steps):
        for position, buffer in enumerate(step.reads):
            values = [0, *(cost[0] * denominator for cost in problem.buffers[buffer].costs)]
            for order in dict.fromkeys(config.reads[position] for config in step.configs):
                value = chance.choice(values) // chance.choice((1, 1, 2, 3)) + chance.choice((0, 0, 0, 10**6))
                shares.append(Price(index, position, order, value))
    bound = lower_bound(problem, Prices(denominator, tuple(shares)))
    try:
        assert bound <= exhaustive(problem).cost[0]
    except InvalidChoice:
        return


def test_shares_above_what_conversions_cost_prove_no_more():
    shares = tuple(replace(share, value=share.value + 10**9) for share in PLAN.certificate.proof.shares)
    assert lower_bound(PROBLEM, Prices(PLAN.certificate.proof.denominator, shares)) <= PLAN.cost[0]


def test_shares_prove_the_cost_of_a_pair():
    """Produced in A or B, wanted in C: 5 from A, 3 and 1 to produce it from B. The least is 4."""
    source = Step("input", (), (0,), (Config((), ("A",), (0,)), Config((), ("B",), (1,))))
    sink = Step("output", (0,), (), (Config(("C",), (), (0,)),))
    buffer = Buffer("x", (5,), {("B", "C"): (3,)})
    problem = LayoutProblem(("bytes",), (buffer,), (source, sink), "complete")
    proven = [lower_bound(problem, Prices(shares=(Price(1, 0, "C", value),))) for value in (2, 3, 4, 5, 9)]
    #         λ = 2  3  4                 5                  9
    assert proven == [2, 3, 4, 4, 4]  # min(A: λ − max(0, λ − 5), B: 1 + λ − max(0, λ − 3))
    without = replace(problem, buffers=(Buffer("x", (5,), {("A", "C"): None, ("B", "C"): (3,)}),))
    assert lower_bound(without, Prices(shares=(Price(1, 0, "C", 9),))) == 4
    never = replace(problem, buffers=(Buffer("x", (5,), {("A", "C"): None, ("B", "C"): None}),))
    assert lower_bound(never, Prices(shares=(Price(1, 0, "C", 10**6),))) == 10**6
