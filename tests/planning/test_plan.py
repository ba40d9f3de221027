"""What `check` and the proof must not let through."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dimorder.planning import (
    Branch,
    Elimination,
    InvalidChoice,
    InvalidProof,
    LayoutPlan,
    LayoutProblem,
    Price,
    Prices,
    exhaustive,
    make_plan,
    solve,
)
from dimorder.planning.elimination import FORBIDDEN, least_cost
from dimorder.planning.plan import lower_bound
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
        "above the share": replace(proof, shares=(replace(first, value=10**9), *others)),
        "negative": replace(proof, shares=(replace(first, value=-1), *others)),
        "denominator 0": replace(proof, denominator=0),
        "denominator negative": replace(proof, denominator=-1),
        "no such operator": replace(proof, shares=(replace(first, operator=99), *others)),
        "operator negative": replace(proof, shares=(replace(first, operator=-1), *others)),
        "no such read": replace(proof, shares=(replace(first, position=99), *others)),
        "read negative": replace(proof, shares=(replace(first, position=-1), *others)),
        "negative exclusion": replace(proof, exclusions=(Price(first.operator, first.position, "NCHW", -1),)),
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
    for index, operator in enumerate(PROBLEM.operators):
        for config in range(len(operator.configs)):
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
    with mock.patch("dimorder.planning.milp.least_cost", return_value=None):  # as if tables were too large
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


def test_a_branch_on_no_operator_is_no_proof():
    problem, _, proof = branch_example()
    for operator in (-1, 99):
        with pytest.raises(InvalidProof, match="does not exist"):
            lower_bound(problem, replace(proof, operator=operator))


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


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(KINDS), st.randoms(use_true_random=False))
def test_no_prices_within_their_shares_prove_more_than_the_optimum(seed, kind, chance: random.Random):
    """The theorem of plan.py, tried on prices that no solver chose."""
    problem = kind(seed)
    denominator = chance.choice((1, 3))
    left: dict[object, int] = {}
    shares, exclusions = [], []
    for index, operator in enumerate(problem.operators):
        for position, buffer in enumerate(operator.reads):
            for layout in dict.fromkeys(config.reads[position] for config in operator.configs):
                room = left.setdefault(
                    (buffer, layout), problem.buffers[buffer].conversion_cost[0] * denominator
                )
                value = chance.choice((0, room, room // 2))
                left[buffer, layout] -= value
                shares.append(Price(index, position, layout, value))
                exclusions.append(Price(index, position, layout, chance.choice((0, 0, 1, 7))))
    bound = lower_bound(problem, Prices(denominator, tuple(shares), tuple(exclusions)))
    try:
        assert bound <= exhaustive(problem).cost[0]
    except InvalidChoice:
        return


def test_a_plan_prints_what_it_costs_and_what_is_proven():
    text = str(PLAN)
    assert f"{PLAN.cost[0]:,} {PLAN.units[0]}" in text
    assert "optimal over complete candidates" in text
    assert all(f"{conversion.name}: " in text for conversion in PLAN.conversions)
    assert "not proven optimal" in str(certified(PLAN, optimal=False))
