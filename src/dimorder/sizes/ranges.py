"""Prove a plan for all sizes of a range, from the layout problems at a few points.

A plan's cost is a sum of products of sizes. Let each size be an affine function of one dynamic size, and let
no product contain a dynamic size twice. Then the difference of two plans is affine in each dynamic size
alone. Over the box of the ranges it is least at a corner. So a plan that is cheapest at every corner is
cheapest everywhere.

Costs of other forms that are not part of the plan count as zero: if no plan is cheaper even then, none is.
A program for all sizes moves a dimension of size 1 like any other, so the cost at a size of 1 includes this
move.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dimorder.clock import Progress, report_each
from dimorder.contract import Symbol
from dimorder.errors import UnsupportedError
from dimorder.graph.dynamic_sizes import FIX
from dimorder.layout.costs import Costs
from dimorder.layout.problem import Extracted, choose
from dimorder.ops.problem_map import BufferInfo
from dimorder.planning.plan import LayoutPlan
from dimorder.planning.problem import Cost, LayoutProblem, evaluate
from dimorder.planning.solve import solve
from dimorder.sizes.affine import AffineFunction, corner_weights, fit_affine
from dimorder.sizes.symbolic_program import Point, SymbolicProgram, format_point


@dataclass(frozen=True)
class RangeProof:
    """The proof that no plan is cheaper over the ranges of dynamic sizes, or the reason why there is none.

    Attributes:
        symbols: The ranges.
        cost_at: The sizes at which the plan was solved.
        corners: The ends of the ranges, with the plan's cost there in the first unit.
        unproven: None if no plan for these ranges costs less at any size, else the reason why this is known
            for `cost_at` alone.
    """

    symbols: tuple[Symbol, ...]
    cost_at: Point
    corners: tuple[tuple[Point, int], ...]
    unproven: str | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "symbols": [symbol.to_dict() for symbol in self.symbols],
            "cost_at": dict(self.cost_at),
            "corners": [{"sizes": dict(point), "cost": cost} for point, cost in self.corners],
            "optimal_for_range": self.unproven is None,
            "unproven": self.unproven,
        }

    def __str__(self) -> str:
        if self.unproven is not None:
            return f"of these sizes alone: {self.unproven}"
        (least, low), (most, high) = self.corners[0], self.corners[-1]
        costs = f"{low:,} at {format_point(least)} to {high:,} at {format_point(most)}"
        return f"nor at any other sizes of these ranges, where this plan costs {costs}"

    @property
    def ranges(self) -> str:
        return ", ".join(map(str, self.symbols))


def plan_ranges(
    extracted: Sequence[Extracted],
    points: Sequence[Point],
    program: SymbolicProgram,
    costs: Costs,
    cost_at: Point | None,
    progress: Progress = lambda step: None,
) -> tuple[Extracted, LayoutPlan, RangeProof]:
    """Return the layout problem at the sizes `cost_at`, its plan, and what is proven over the ranges.

    Args:
        extracted: the problems at the points, of one network and one target.
        points: sizes at which the network was captured.
        program: the network with its dynamic sizes.
        costs: what conversions and configurations cost.
        cost_at: the sizes to plan for; the default is the middle of each range.
        progress: is told of each corner.

    Raises:
        UnsupportedError: if sizes are not known at `cost_at`.
    """
    resize = _Resize(extracted, points, costs)
    at = program.middle if cost_at is None else cost_at
    planned = extracted[points.index(at)] if at in points else resize.at(at)
    if planned is None:  # its sizes are not affine functions
        if cost_at is not None:
            raise UnsupportedError(f"the cost at {format_point(at)}", "sizes that are not known there", FIX)
        at = min(
            points, key=lambda point: sum(abs(point[name] - size) for name, size in program.middle.items())
        )
        planned = extracted[points.index(at)]
    plan = choose(planned)
    proof = RangeProof(program.symbols, at, (), None)
    corners = [resize.at(corner) for corner in program.corners]
    if None in corners or not program.is_affine():
        return planned, plan, replace(proof, unproven="a size is no affine function of one symbol")
    problems = [corner.problem for corner in corners if corner is not None]
    found = tuple(
        (point, evaluate(problem, plan.choice).cost[0])
        for point, problem in zip(program.corners, problems, strict=True)
    )
    proof = replace(proof, corners=found)
    own = zip((planned, *extracted), (at, *points), strict=True)
    known = [(each.repriced(each.buffers, costs), point) for each, point in own]
    curved = [_curved(problem, point, problems, program.symbols) for problem, point in known]
    lower = [_without(problem, set().union(*(each for each in curved if each))) for problem in problems]
    paid = [evaluate(problem, plan.choice).cost for problem in lower]
    if None in curved or paid != [evaluate(problem, plan.choice).cost for problem in problems]:
        return planned, plan, replace(proof, unproven="a cost grows faster than one of the sizes")
    if not plan.certificate.optimal:
        return planned, plan, replace(proof, unproven="the plan is not proven there either")
    for problem, (point, cost) in zip(report_each(lower, "solve", progress), found, strict=True):
        best = solve(problem).certificate
        if best.lower_bound < cost:
            other = f"at {format_point(point)} another plan may cost {best.lower_bound:,}"
            reason = f"{other}, where this one costs {cost:,}"
            return planned, plan, replace(proof, unproven=reason)
    return planned, plan, proof


class _Resize:
    """The layout problem of a network at any point, derived from those at a few points."""

    def __init__(self, extracted: Sequence[Extracted], points: Sequence[Point], costs: Costs) -> None:
        self.extracted, self.points, self.costs = extracted, points, costs
        self.lines: dict[tuple[int, ...], tuple[str, AffineFunction] | None] = {}  # by the sizes of an axis

    def at(self, point: Point) -> Extracted | None:
        """Return the problem at a point, or None if a size is not known there."""
        first = self.extracted[0]
        found = [
            self._resized(infos, point) for infos in zip(*(e.buffers for e in self.extracted), strict=True)
        ]
        buffers = tuple(info for info in found if info is not None)
        if len(buffers) < len(found):
            return None
        return replace(first, problem=first.repriced(buffers, self.costs), buffers=buffers)

    def _resized(self, infos: Sequence[BufferInfo], point: Point) -> BufferInfo | None:
        first = infos[0]
        axes = [
            self._size(sizes, point) for sizes in zip(*(info.tensor.sizes for info in infos), strict=True)
        ]
        sizes = [size for size in axes if size is not None]
        if len(sizes) < len(axes):
            return None
        shape = [1] * len(first.shape)
        for dim, size in zip(first.tensor.dims, sizes, strict=True):
            shape[dim] *= size
        value = torch.empty(shape, dtype=first.value.dtype, device="meta")
        return replace(first, tensor=replace(first.tensor, sizes=tuple(sizes)), value=value)

    def _size(self, sizes: tuple[int, ...], point: Point) -> int | None:
        """Return the size of an axis at a point, from its sizes at the known points."""
        if len(set(sizes)) == 1:
            return sizes[0]
        if sizes not in self.lines:
            columns = ((name, [each[name] for each in self.points]) for name in point)
            lines = ((name, fit_affine(sizes, column)) for name, column in columns)
            self.lines[sizes] = next(((name, line) for name, line in lines if line is not None), None)
        found = self.lines[sizes]
        if found is None:
            return None
        name, line = found
        size = line(point[name])
        return int(size) if size.denominator == 1 and size > 0 else None


def _curved(
    problem: LayoutProblem, point: Point, corners: Sequence[LayoutProblem], symbols: Sequence[Symbol]
) -> set[tuple[int, int]] | None:
    """Return the costs that are not affine in each dynamic size alone, by place in `_costs` and unit.

    They differ from what the costs at the corners predict. Costs that every plan pays are left out. None if
    other conversions are offered here than at the corners.
    """
    weights = corner_weights(symbols, point)
    columns = [_costs(problem), *map(_costs, corners)]
    if len({tuple(cost is None for cost in column) for column in columns}) > 1:
        return None
    found = set[tuple[int, int]]()
    paid_by_all = _paid_by_all(problem)
    for place, (own, *others) in enumerate(zip(*columns, strict=True)):
        for unit, value in enumerate(own or ()) if place not in paid_by_all else ():
            if value != sum(w * other[unit] for w, other in zip(weights, others, strict=True) if other):
                found.add((place, unit))
    return found


def _paid_by_all(problem: LayoutProblem) -> set[int]:
    """Return the places in `_costs` of steps that can run in only one way."""
    ways = [len(step.configs) for step in problem.steps]
    behind = len(_costs(problem)) - sum(ways)
    starts = itertools.accumulate(ways, initial=behind)
    return {start for start, count in zip(starts, ways, strict=False) if count == 1}


def _without(problem: LayoutProblem, free: set[tuple[int, int]]) -> LayoutProblem:
    """Return the problem in which these costs are zero."""
    costs = iter(
        cost and tuple(0 if (place, unit) in free else value for unit, value in enumerate(cost))
        for place, cost in enumerate(_costs(problem))
    )
    buffers = []
    for buffer in problem.buffers:
        conversion_cost = next(costs)
        assert conversion_cost is not None
        exceptions = {pair: next(costs) for pair in sorted(buffer.exceptions)}
        buffers.append(replace(buffer, conversion_cost=conversion_cost, exceptions=exceptions))
    steps = []
    for step in problem.steps:
        pairs = zip(step.configs, itertools.islice(costs, len(step.configs)), strict=True)
        steps.append(replace(step, configs=tuple(replace(each, cost=cost) for each, cost in pairs if cost)))
    return replace(problem, buffers=tuple(buffers), steps=tuple(steps))


def _costs(problem: LayoutProblem) -> list[Cost | None]:
    """Return every cost of a problem, in a sequence that does not depend on sizes."""
    found: list[Cost | None] = []
    for buffer in problem.buffers:
        pairs = sorted(buffer.exceptions)
        found += [buffer.conversion_cost, *(buffer.exceptions[pair] for pair in pairs)]
    return found + [config.cost for step in problem.steps for config in step.configs]
