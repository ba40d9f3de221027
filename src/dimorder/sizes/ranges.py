"""Decides what is proven of a plan for all sizes of a range, by the layout problems at a few points.

What a plan costs is a sum of products of sizes. Where each is an affine function of one symbol, and no
product has a symbol twice, the difference of two plans is affine in each symbol alone, so that over the box
of the ranges it is least at a corner: a plan that none undercuts at any corner is undercut nowhere. What
costs otherwise, and is no part of the plan, is taken for free: where none undercuts it even so, none does.
The cost at a size of 1 is what a program for all sizes pays there: it moves a dimension of size 1 like any
other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch

from dimorder.capture.captured import operator_name, where
from dimorder.contract import Symbol
from dimorder.errors import UnsupportedError
from dimorder.layout.choose import choose
from dimorder.layout.costs import Costs
from dimorder.layout.problem import Extracted, priced
from dimorder.ops.problem_map import BufferInfo
from dimorder.ops.tokens import AxisOrder
from dimorder.planning.plan import LayoutPlan
from dimorder.planning.problem import Config, Cost, LayoutProblem, evaluate
from dimorder.planning.solve import solve
from dimorder.sizes.merge_specializations import FIX
from dimorder.sizes.symbolic_program import Point, RangedProgram, told


@dataclass(frozen=True)
class RangeProof:
    """What is known of a plan's cost over the ranges of the symbols.

    It was planned at the sizes `cost_at`. `corners` are the ends of the ranges with what it costs there, in
    the first unit; where `unproven` is None, no plan for these ranges costs less at any size of them, else it
    says why that is known of `cost_at` alone.
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
        costs = f"{low:,} at {told(least)} to {high:,} at {told(most)}"
        return f"nor at any other sizes of these ranges, where this plan costs {costs}"

    @property
    def ranges(self) -> str:
        return ", ".join(map(str, self.symbols))


def plan_ranges(
    extracted: Sequence[Extracted],
    points: Sequence[Point],
    program: RangedProgram,
    costs: Costs,
    max_rank: int | None,
    cost_at: Point | None,
) -> tuple[Extracted, LayoutPlan, RangeProof]:
    """The layout problem at the sizes `cost_at`, its plan, and what is proven of that over the ranges.

    `extracted` are the problems at the points, of one network and one target. Raises `UnsupportedError` for
    the first operator that may run otherwise at one point than at another.
    """
    _require_alike(extracted, points)
    resize = _Resize(extracted, points, costs, max_rank)
    at = program.middle if cost_at is None else cost_at
    planned = extracted[points.index(at)] if at in points else resize.at(at)
    if planned is None:  # its sizes are no affine functions
        if cost_at is not None:
            raise UnsupportedError(f"the cost at {told(at)}", "sizes that are not known there", FIX)
        at = min(
            points, key=lambda point: sum(abs(point[name] - size) for name, size in program.middle.items())
        )
        planned = extracted[points.index(at)]
    plan = choose(planned, max_rank)
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
    known = [(resize.priced(each, each.buffers), point) for each, point in own]
    curved = [_curved(problem, point, problems, program.symbols) for problem, point in known]
    lower = [_without(problem, set().union(*(each for each in curved if each))) for problem in problems]
    paid = [evaluate(problem, plan.choice).cost for problem in lower]
    if None in curved or paid != [evaluate(problem, plan.choice).cost for problem in problems]:
        return planned, plan, replace(proof, unproven="a cost grows faster than one of the sizes")
    if not plan.certificate.optimal:
        return planned, plan, replace(proof, unproven="the plan is not proven there either")
    for problem, (point, cost) in zip(lower, found, strict=True):
        best = solve(problem).certificate
        if best.lower_bound < cost:
            reason = (
                f"at {told(point)} another plan may cost {best.lower_bound:,}, where this one costs {cost:,}"
            )
            return planned, plan, replace(proof, unproven=reason)
    return planned, plan, proof


def _require_alike(extracted: Sequence[Extracted], points: Sequence[Point]) -> None:
    """Refuses problems that differ in more than costs."""
    first = extracted[0]
    for other, point in zip(extracted[1:], points[1:], strict=True):
        for index, (site, twin) in enumerate(zip(first.sites, other.sites, strict=False)):
            if _structure(first, index) != _structure(other, index) or site.node.name != twin.node.name:
                raise UnsupportedError(
                    f"{operator_name(site.node)} ({where(site.node)})",
                    f"it may run in other ways at {told(point)} than at {told(points[0])}",
                    FIX,
                )
        if len(first.sites) != len(other.sites) or first.problem.candidates != other.problem.candidates:
            found = f"other operators at {told(point)} than at {told(points[0])}"
            raise UnsupportedError("the network", found, FIX)


def _structure(extracted: Extracted, index: int) -> Any:
    """How a site may run, whatever the sizes."""
    site, step = extracted.sites[index], extracted.problem.steps[index]
    ways = [(config.reads, config.writes) for config in step.configs]
    outside = site.node in extracted.outside
    return outside, site.kind, step.reads, step.writes, site.tokens, ways, extracted.arrangements[index]


class _Resize:
    """The layout problem of a network at any point, by those at a few."""

    def __init__(
        self, extracted: Sequence[Extracted], points: Sequence[Point], costs: Costs, max_rank: int | None
    ) -> None:
        self.extracted, self.points, self.costs, self.max_rank = extracted, points, costs, max_rank

    def at(self, point: Point) -> Extracted | None:
        """None where a size is not known there."""
        first = self.extracted[0]
        found = [
            self._resized(infos, point) for infos in zip(*(e.buffers for e in self.extracted), strict=True)
        ]
        buffers = tuple(info for info in found if info is not None)
        if len(buffers) < len(found):
            return None
        return replace(first, problem=self.priced(first, buffers), buffers=buffers)

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

    def _size(self, sizes: Sequence[int], point: Point) -> int | None:
        """What an axis is at a point that has these sizes at the known ones."""
        if len(set(sizes)) == 1:
            return sizes[0]
        for name in point:
            found = _function(sizes, [each[name] for each in self.points])
            if found is not None:
                size = found[0] * point[name] + found[1]
                return int(size) if size.denominator == 1 and size > 0 else None
        return None

    def priced(self, first: Extracted, infos: tuple[BufferInfo, ...]) -> LayoutProblem:
        """The problem of these buffers, each with the orders that a configuration has and no others."""
        layouts: list[dict[AxisOrder, None]] = [{} for _ in infos]
        for step in first.problem.steps:
            for config in step.configs:
                pairs = zip((*step.reads, *step.writes), (*config.reads, *config.writes), strict=True)
                for buffer, order in pairs:
                    layouts[buffer][order] = None  # type: ignore[index]  # an order is a tuple here
        buffers = tuple(
            priced(info, held, self.costs, self.max_rank) for info, held in zip(infos, layouts, strict=True)
        )
        steps = []
        assert self.costs.configuration is not None
        for site, step, arrangements in zip(
            first.sites, first.problem.steps, first.arrangements, strict=True
        ):
            pairs_ = zip(step.configs, arrangements, strict=True)
            configs = tuple(
                Config(c.reads, c.writes, self.costs.configuration(site, a, infos)) for c, a in pairs_
            )
            steps.append(replace(step, configs=configs))
        return replace(first.problem, buffers=buffers, steps=tuple(steps))


def _function(values: Sequence[int], sizes: Sequence[int]) -> tuple[Fraction, Fraction] | None:
    """The affine function by which sizes become values; None where there is none."""
    at = next(i for i, size in enumerate(sizes) if size != sizes[0])
    factor = Fraction(values[at] - values[0], sizes[at] - sizes[0])
    offset = values[0] - factor * sizes[0]
    fits = all(value == factor * size + offset for value, size in zip(values, sizes, strict=True))
    return (factor, offset) if fits and factor > 0 else None


def _curved(
    problem: LayoutProblem, point: Point, corners: Sequence[LayoutProblem], symbols: Sequence[Symbol]
) -> set[tuple[int, int]] | None:
    """The costs that are not what those at the corners make them if they are affine in each symbol alone, but
    for those that every plan pays: each by its place in `_costs` and its unit. None where conversions are
    offered here that are not there."""
    shares = [_shares(symbol, point[symbol.name]) for symbol in symbols]
    weights = [math.prod(each) for each in itertools.product(*shares)]
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
    """The places in `_costs` of steps that can be run in one way alone."""
    ways = [len(step.configs) for step in problem.steps]
    behind = len(_costs(problem)) - sum(ways)
    starts = itertools.accumulate(ways, initial=behind)
    return {start for start, count in zip(starts, ways, strict=False) if count == 1}


def _without(problem: LayoutProblem, free: set[tuple[int, int]]) -> LayoutProblem:
    """The problem in which these costs are nothing."""
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


def _shares(symbol: Symbol, size: int) -> list[Fraction]:
    """How much each end of a range counts at a size."""
    least, most = symbol.minimum, symbol.maximum
    assert most is not None
    if least == most:
        return [Fraction(1)]
    return [Fraction(most - size, most - least), Fraction(size - least, most - least)]


def _costs(problem: LayoutProblem) -> list[Cost | None]:
    """Every cost of a problem, in a sequence that its sizes do not change."""
    found: list[Cost | None] = []
    for buffer in problem.buffers:
        pairs = sorted(buffer.exceptions)
        found += [buffer.conversion_cost, *(buffer.exceptions[pair] for pair in pairs)]
    return found + [config.cost for step in problem.steps for config in step.configs]
