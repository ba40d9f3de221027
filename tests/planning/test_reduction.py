"""Test that a reduced problem costs what the whole one costs, and that its plans are plans of both."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dimorder.planning import solve as solving
from dimorder.planning.cost_tables import NEVER
from dimorder.planning.dominance import BufferUse, Dominance
from dimorder.planning.plan import Branch, InvalidProof, Prices, ReducedProof, lower_bound
from dimorder.planning.problem import Buffer, Config, InvalidChoice, LayoutProblem, Step, evaluate
from dimorder.planning.reduction import JoinLimits, ReducedProblem, reduce
from dimorder.planning.solve import solve
from tests.planning.exhaustive import exhaustive
from tests.planning.problems import KINDS, carried, frustrated_triangle

ORDERS = "ABCDEF"
ALL = JoinLimits()
CHAINS = JoinLimits(pairs=0, growing=0)  # the first rule alone
LIMITS = {
    "all": ALL,
    "chains": CHAINS,
    "few": JoinLimits(pairs=12, growing=12, joined=4),
    "small": JoinLimits(sums=40),
}


def reduced_by(problem: LayoutProblem, limits: JoinLimits = ALL) -> ReducedProblem:
    reduced = reduce(problem, limits)
    assert reduced is not None
    return reduced


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 400), marks=pytest.mark.slow)], ids=len)
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("kind", [*KINDS, carried], ids=lambda kind: kind.__name__)
def test_the_least_cost_is_that_of_the_whole_problem(kind, limits, seeds):
    joined = 0
    for seed in seeds:
        problem = kind(seed)
        reduced = reduced_by(problem, limits)
        joined += len(problem.steps) - len(reduced.problem.steps)
        try:
            best = exhaustive(problem)
        except InvalidChoice:
            with pytest.raises(InvalidChoice):
                exhaustive(reduced.problem)
            continue
        found = exhaustive(reduced.problem)
        assert found.cost == best.cost, f"{kind.__name__}({seed})"
        assert evaluate(problem, reduced.lift(found.choice)).cost == best.cost, f"{kind.__name__}({seed})"
    assert joined or limits is CHAINS


@pytest.mark.parametrize("kind", [*KINDS, carried], ids=lambda kind: kind.__name__)
def test_every_choice_stands_for_one_of_the_same_cost(kind):
    plans = 0
    for seed in range(60):
        problem, draw = kind(seed), random.Random(seed)
        reduced = reduced_by(problem, list(LIMITS.values())[seed % 4])
        for _ in range(10):
            choice = [draw.randrange(len(step.configs)) for step in reduced.problem.steps]
            try:
                found = evaluate(reduced.problem, choice)
            except InvalidChoice:
                continue
            assert evaluate(problem, reduced.lift(choice)).cost == found.cost
            plans += 1
    assert plans > 200


def attention(*, size: int = 9) -> LayoutProblem:
    """A packed value, its three slices, two products that want two of them in different orders, and a sum."""

    def agnostic(name: str, reads: tuple[int, ...], write: int, most: int = 6) -> Step:
        configs = tuple(Config((o,) * len(reads), (o,), (0, 0)) for o in ORDERS[:most])
        return Step(name, reads, (write,), configs)

    def pairs(name: str, reads: tuple[int, int], write: int) -> Step:
        configs = tuple(
            Config((first, second), (first,), (0, 0))
            for first, second in product("ABC", "DEF")
            if first < "C"
        )
        return Step(name, reads, (write,), configs)

    steps = (
        Step("input", (), (0,), (Config((), ("A",), (0, 0)),)),
        agnostic("packed", (0,), 1),
        *(agnostic(f"slice {i}", (1,), 2 + i) for i in range(3)),
        pairs("scores", (2, 3), 5),
        agnostic("softmax", (5,), 6),
        pairs("mixed", (6, 4), 7),
        agnostic("sum", (0, 7), 8),
        Step("output", (8,), (), (Config(("A",), (), (0, 0)),)),
    )
    sizes = (size, size, *(size // 3,) * 7)
    buffers = tuple(Buffer(f"b{i}", (1, each)) for i, each in enumerate(sizes))
    return LayoutProblem(("conversions", "bytes"), buffers, steps, "complete")


def test_an_attention_beside_its_residual_becomes_one_configuration():
    problem = attention()
    (step,) = reduced_by(problem).problem.steps
    assert [config.cost for config in step.configs] == [exhaustive(problem).cost]


def test_a_chain_becomes_a_buffer_with_the_cheaper_of_two_conversions():
    """A float becomes an integer between two orders: the integer is converted, which has fewer bytes."""
    free = tuple(Config((), (order,), (0, 0)) for order in "AB")
    steps = (
        Step("source", (), (0,), free),
        Step("other source", (), (1,), free),
        Step("quantize", (0,), (2,), tuple(Config((o,), (o,), (0, 0)) for o in "AB")),
        Step("output", (2, 1), (), (Config(("A", "B"), (), (0, 0)), Config(("B", "A"), (), (0, 0)))),
    )
    buffers = (Buffer("float", (1, 32)), Buffer("other", (1, 32)), Buffer("integer", (1, 8)))
    problem = LayoutProblem(("conversions", "bytes"), buffers, steps, "complete")
    source, _, output = reduced_by(problem, CHAINS).problem.steps
    assert [step.name for step in (source, output)] == ["source", "output"]
    chain = reduced_by(problem, CHAINS).problem.buffers[0]
    costs = [chain.cost(made.writes[0], read.reads[0]) for made in source.configs for read in output.configs]
    assert costs == [(0, 0), (1, 8), (1, 8), (0, 0)]


def test_a_configuration_is_left_out_if_another_one_replaces_it_whatever_the_others_do():
    table = np.array([[0, 5, 5], [5, 0, NEVER], [5, 5, 0]])
    alone, shared = (BufferUse(0, table, written=False, reads=reads) for reads in (1, 2))
    wanted = np.array([[0], [1], [2]])
    costs = np.array([0, 5, 4])
    # The second one is as dear as a conversion; the third one is cheaper than its conversion.
    assert Dominance().undominated([alone], wanted, costs).tolist() == [0, 2]
    assert Dominance().undominated([shared], wanted, costs).tolist() == [0, 2]
    # Wanting the last order is not offered from the second one.
    assert Dominance().undominated([alone], wanted, np.array([90, 90, 0])).tolist() == [0, 1, 2]
    # One buffer in two orders is replaced by one of them. Both orders may be wanted elsewhere.
    twice = np.array([[0, 0], [1, 1], [0, 1]])
    assert Dominance().undominated([shared, shared], twice, np.zeros(3, dtype=np.int64)).tolist() == [0, 1]
    # A result that is free to convert is never worth more.
    result = BufferUse(1, np.array([[0, 0], [0, 0]]), written=True, reads=3)
    assert Dominance().undominated([result], np.array([[0], [1]]), np.array([1, 0])).tolist() == [1]


def test_a_large_problem_is_reduced_and_its_proof_says_so(monkeypatch):
    monkeypatch.setattr(solving, "LARGE", 0)
    reduced = 0
    for kind in (*KINDS, carried):
        for seed in range(30):
            problem = kind(seed)
            try:
                best = exhaustive(problem)
            except InvalidChoice:
                with pytest.raises(InvalidChoice, match="no plan"):
                    solve(problem)
                continue
            plan = solve(problem)
            assert plan.cost == best.cost and plan.certificate.optimal
            assert plan.check(problem) == ()
            reduced += isinstance(plan.certificate.proof, ReducedProof)
            assert solve(kind(seed)) == plan
    assert reduced > 90


def test_a_proof_about_the_reduced_problem_proves_no_more_than_the_whole_one(monkeypatch):
    monkeypatch.setattr(solving, "LARGE", 0)
    problem = attention()
    plan = solve(problem)
    assert lower_bound(problem, plan.certificate.proof) == plan.cost[0]
    false = replace(plan, certificate=replace(plan.certificate, lower_bound=plan.cost[0] - 1, optimal=False))
    assert false.check(problem) != ()
    branch = Branch(0, (((0,), plan.certificate.proof),))
    with pytest.raises(InvalidProof, match="inside a branch"):
        lower_bound(problem, branch)


def test_costs_that_need_more_than_64_bits_are_not_reduced(monkeypatch):
    monkeypatch.setattr(solving, "LARGE", 0)
    problem = frustrated_triangle(weight=1 << 60)
    assert reduce(problem) is None
    plan = solve(problem)
    assert plan.cost == (1 << 60,)
    with pytest.raises(InvalidProof, match="too large costs"):
        lower_bound(problem, ReducedProof(Prices()))
