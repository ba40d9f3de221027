"""Solve a layout problem exactly by HiGHS: as a linear relaxation, then as an integer programme if need be.

This module finds the plan. problem.py and plan.py compute its value: every number from HiGHS becomes integers
that they recompute.

Units are minimised one after another. If a unit reaches its relaxation's minimum, complementary slackness
keeps exactly the optimal plans. Columns with a reduced cost then stay 0, and rows with a dual value stay
tight. If the relaxation has a gap, the unit is capped instead. The first unit's bound is then proven by
elimination or branching.

A large problem is reduced first (reduction.py). Then its proof is about the reduced problem.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count, pairwise

import numpy as np

from dimorder.planning.elimination import least_cost
from dimorder.planning.greedy import greedy
from dimorder.planning.plan import (
    Branch,
    DirectProof,
    Elimination,
    LayoutPlan,
    PricedSteps,
    Prices,
    ReducedProof,
    make_plan,
)
from dimorder.planning.problem import Conversion, Cost, InvalidChoice, LayoutProblem, evaluate
from dimorder.planning.reduction import reduce
from dimorder.planning.relaxation import (
    TOLERANCE,
    Face,
    Relaxation,
    Relaxed,
    build,
    chosen,
    prices,
    relax,
    solve_integer,
)

LIMIT_S = 60.0  # for one plan
LARGE = 4_000  # configurations; a problem with more is reduced first
Allowed = Mapping[int, frozenset[int]]  # configurations left, by step; all configurations of the other steps


def solve(problem: LayoutProblem, *, time_limit_s: float = LIMIT_S) -> LayoutPlan:
    """Return the lexicographically cheapest plan, with a proof for the first unit.

    If time runs out, this is the best plan found and the bound proven by then, with optimal=False. Raises
    `InvalidChoice` if there is no plan, or none was found in time.

    >>> from dimorder.planning.problem import Buffer, Config, Step
    >>> source = Step("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Step("output", (0,), (), (Config(("NCHW",), (), (9,)), Config(("NHWC",), (), (0,))))
    >>> plan = solve(LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete"))
    >>> plan.choice, plan.certificate.lower_bound, plan.certificate.optimal
    ((0, 1), 8, True)
    """
    started = time.perf_counter()
    reduced = reduce(problem) if problem.size[1] > LARGE else None
    search = _Search(problem if reduced is None else reduced.problem, started, time_limit_s)
    proof, bound = _solve(build(search.problem), search)
    if search.best is None:
        reason = "no plan exists" if search.left else f"no plan within {time_limit_s} s"
        raise InvalidChoice(
            f"layout plan: the problem\n  found: {reason} that avoids the conversions not offered\n"
            "  to do: offer more conversions or configurations"
        )
    found = search.best[2]
    choice, whole = (found, proof) if reduced is None else (reduced.lift(found), ReducedProof(proof))
    plan = make_plan(problem, choice, solver=search.solver, proof=whole, bound=bound)
    return replace(plan, seconds=time.perf_counter() - search.started)


def forbid(problem: LayoutProblem, conversion: Conversion) -> LayoutProblem:
    """Return the same problem with one conversion of one buffer not offered."""
    old = problem.buffers[conversion.buffer]
    new = replace(old, exceptions={**old.exceptions, (conversion.from_order, conversion.to_order): None})
    before, after = problem.buffers[: conversion.buffer], problem.buffers[conversion.buffer + 1 :]
    return replace(problem, buffers=(*before, new, *after))


def best_cost(problem: LayoutProblem) -> int | None:
    """Return what the best plan costs in the first unit; None if there is no plan.

    >>> from dimorder.planning.problem import Buffer, Config, Step
    >>> source = Step("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Step("output", (0,), (), (Config(("NHWC",), (), (0,)),))
    >>> problem = LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete")
    >>> best_cost(forbid(problem, solve(problem).conversions[0])) is None
    True
    """
    try:
        return solve(problem).cost[0]
    except InvalidChoice:
        return None


@dataclass
class _Search:
    """One run: when it must end, and the best plan so far as (cost, ranks of its configurations, choice)."""

    problem: LayoutProblem
    started: float
    time_limit_s: float
    best: tuple[Cost, int, tuple[int, ...]] | None = None
    solver: str = "none"

    def __post_init__(self) -> None:
        self.offer([0] * len(self.problem.steps), "default")
        with suppress(InvalidChoice):
            self.offer(greedy(self.problem).choice, "greedy")

    @property
    def left(self) -> float:
        """Return the seconds left."""
        return max(0.0, self.started + self.time_limit_s - time.perf_counter())

    def offer(self, choice: Iterable[int], solver: str) -> None:
        """Keep a choice if it is a plan and better than the best, or equal and closer to the default."""
        choice = tuple(choice)
        with suppress(InvalidChoice):
            found = evaluate(self.problem, choice).cost, sum(choice), choice
            if self.best is None or found < self.best:
                self.best, self.solver = found, solver

    def value(self, model: Relaxation, unit: int) -> int | None:
        """Return what the best plan costs in one unit of the model; the last one is the tie-break."""
        if self.best is None:
            return None
        cost, ranks, _ = self.best
        return cost[unit] // model.divisors[unit] if unit < len(cost) else ranks

    def closed(self, bound: Fraction, divisor: int) -> bool:
        """Return whether a bound on the first unit reaches the best plan."""
        return self.best is not None and _round_up(bound, divisor) >= self.best[0][0]


def _solve(model: Relaxation, search: _Search) -> tuple[DirectProof, int]:
    """Find the best plan, unit by unit, and prove a bound."""
    root = relax(model, model.objectives[0], model.face(), search.left)
    face = _minimise(model, 0, model.face(), root, search)
    proof, bound = _prove(model, root, search)
    for unit, objective in enumerate(model.objectives):
        if not search.left or face.decided(model):
            break
        if unit and objective[face.upper > 0].any():
            relaxed = None if face.caps else relax(model, objective, face, search.left)
            face = _minimise(model, unit, face, relaxed, search)
    return proof, bound


def _minimise(model: Relaxation, unit: int, face: Face, relaxed: Relaxed | None, search: _Search) -> Face:
    """Minimise one unit over a face, and return the face for the next unit."""
    if relaxed is not None:
        search.offer(chosen(model, relaxed.columns), "lp (HiGHS)")
    # Look first where the relaxation's own value can be reached: that is a small part of a large problem.
    for place in (face,) if relaxed is None else (_within(face, relaxed, 0.0), face):
        if relaxed is not None and _reached(search.value(model, unit), relaxed.value):
            break
        columns = solve_integer(model, model.objectives[unit], place, search.left / 2)
        if columns is not None:
            search.offer(chosen(model, columns), "milp (HiGHS)")
    value = search.value(model, unit)
    if value is None:
        return face
    if relaxed is None:
        return replace(face, caps=(*face.caps, (unit, value)))
    if _reached(value, relaxed.value):
        return _within(face, relaxed, 0.0)
    return replace(_within(face, relaxed, value - relaxed.value), caps=(*face.caps, (unit, value)))


def _within(face: Face, relaxed: Relaxed, gap: float) -> Face:
    """Return the part of a face with all plans at most `gap` above its relaxation; at 0, these alone."""
    upper = np.where(relaxed.reduced > max(0.0, gap) + TOLERANCE, 0.0, face.upper)
    tight = face.tight if gap > 0 else face.tight | (relaxed.duals > TOLERANCE)
    return replace(face, upper=upper, tight=tight)


def _reached(value: int | None, bound: float) -> bool:
    """Return whether a plan's value is that of the relaxation, within floating-point error."""
    return value is not None and value - bound <= TOLERANCE * max(1.0, value * 1e-3)


def _round_up(bound: Fraction, divisor: int) -> int:
    """Return the least multiple of a divisor that a bound leaves possible."""
    return -(-bound // divisor) * divisor


@dataclass
class _OpenCase:
    """A node of the proof: the configurations left to each step, the best prices, and where to branch."""

    allowed: Allowed
    prices: PricedSteps
    bound: Fraction
    relaxed: Relaxed | None
    step: int = -1
    parts: list[tuple[tuple[int, ...], _OpenCase]] = field(default_factory=list)

    def proof(self) -> DirectProof:
        if not self.parts:
            return self.prices.prices
        return Branch(self.step, tuple((part, case.proof()) for part, case in self.parts))

    def least(self) -> Fraction:
        """Return what the proof proves: the bound of its weakest case."""
        return min((case.least() for _, case in self.parts), default=self.bound)


def _prove(model: Relaxation, relaxed: Relaxed | None, search: _Search) -> tuple[DirectProof, int]:
    """Prove a bound by prices, else by elimination, else by branching for half of the time left."""
    if relaxed is None:
        return Prices(), _round_up(PricedSteps(model.problem, Prices()).bound({}), model.divisors[0])
    reserve = search.left / 2
    root = _OpenCase({}, *prices(model, relaxed, {}), relaxed)
    if not search.closed(root.bound, model.divisors[0]):
        least = least_cost(model.problem)
        if least is not None:
            return Elimination(), least
    serial = count()
    open_cases = [(root.bound, next(serial), root)]
    while open_cases and search.left > reserve:
        bound, _, case = heapq.heappop(open_cases)
        if search.closed(bound, model.divisors[0]):
            break
        if case.relaxed is None or not case.relaxed.divided(model):
            continue
        case.step, parts = _split(model, case.relaxed, case.allowed)
        for part in parts:
            child = _case(model, case, {**case.allowed, case.step: frozenset(part)}, search)
            case.parts.append((part, child))
            heapq.heappush(open_cases, (child.bound, next(serial), child))
    return root.proof(), _round_up(root.least(), model.divisors[0])


def _split(model: Relaxation, relaxed: Relaxed, allowed: Allowed) -> tuple[int, list[tuple[int, ...]]]:
    """Return the most divided step, and its parts: each configuration taken in part, and the rest."""
    starts = model.starts.tolist()
    segments = [relaxed.columns[a:b] for a, b in pairwise(starts)]
    step = min(range(len(segments)), key=lambda index: round(float(segments[index].max()), 6))
    taken = np.flatnonzero(segments[step] > TOLERANCE).tolist()
    rest = sorted(set(allowed.get(step, range(len(segments[step])))).difference(taken))
    return step, [(config,) for config in taken] + ([tuple(rest)] if rest else [])


def _case(model: Relaxation, parent: _OpenCase, allowed: Allowed, search: _Search) -> _OpenCase:
    """Return one case of a parent, with the parent's prices if they close it, else with its own."""
    inherited = parent.prices.bound(allowed)
    case = _OpenCase(allowed, parent.prices, inherited, None)
    if search.closed(inherited, model.divisors[0]):
        return case
    face = model.face(allowed)
    case.relaxed = relax(model, model.objectives[0], face, search.left)
    if case.relaxed is not None:
        search.offer(chosen(model, case.relaxed.columns), "lp (HiGHS)")
    elif search.left:  # no plan in this case: offer what is not offered, at more than any plan costs
        value = search.value(model, 0)
        fine = 1 + (model.objectives[0].sum() if value is None else value)
        case.relaxed = relax(*model.relieved(face, fine), search.left)
    if case.relaxed is None:
        return case
    found, bound = prices(model, case.relaxed, allowed)
    if bound > inherited:
        case.prices, case.bound = found, bound
    return case
