"""Merging keeps the optimum, and gives back choices for the original problem."""

from __future__ import annotations

import pytest

from dimorder.planning import InvalidChoice, LayoutProblem, evaluate, exhaustive
from dimorder.planning.presolve import merge, merge_around
from tests.planning.problems import KINDS, frustrated_triangle


def optimum(problem: LayoutProblem) -> tuple[int, ...] | None:
    try:
        return exhaustive(problem).cost
    except InvalidChoice:
        return None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_merging_everything_that_can_be_keeps_the_optimum(kind):
    merges = 0
    for seed in range(200):
        problem = kind(seed)
        merged = merge_around(problem, range(len(problem.operators)))
        merges += len(merged.merges)
        expected = optimum(problem)
        assert optimum(merged.problem) == expected, f"{kind.__name__}({seed})"
        if expected is None:
            continue
        lifted = merged.lift(exhaustive(merged.problem).choice)
        assert evaluate(problem, lifted).cost == expected, f"{kind.__name__}({seed})"
    assert merges > 200


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_choice_of_a_merged_problem_costs_what_it_says(kind):
    for seed in range(100):
        problem = kind(seed)
        merged = merge_around(problem, range(len(problem.operators)))
        choice = [0] * len(merged.problem.operators)
        try:
            stated = evaluate(merged.problem, choice).cost
        except InvalidChoice:
            continue
        assert evaluate(problem, merged.lift(choice)).cost == stated


def test_the_merges_listed_give_the_same_problem_again():
    for seed in range(50):
        problem = KINDS[1](seed)
        merged = merge_around(problem, range(len(problem.operators)))
        assert merge(problem, merged.merges) == merged


def test_nothing_is_merged_away_from_the_seeds():
    assert merge_around(KINDS[0](1), ()).merges == ()


def test_a_buffer_with_several_consumers_keeps_its_producer():
    problem = frustrated_triangle()
    assert merge_around(problem, range(len(problem.operators))).merges == ()
    with pytest.raises(ValueError, match="cannot be merged"):
        merge(problem, [(0, 3)])
