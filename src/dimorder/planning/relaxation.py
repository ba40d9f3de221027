"""Build the linear programme of a layout problem, solve its relaxation by HiGHS, and return prices.

Columns: `y[o,c]` is 1 if step o takes configuration c. `z[b,t,S]` is 1 if buffer b is wanted in order t and
not produced in any order of the set S. Rows: `Σ_c y[o,c] = 1`, and for every read r of b, every order t that
r may want and every S,

    [r wants t] − [b produced in S] − z[b,t,S] ≤ 0

The sets S are levels of cost. Let `w_1 < w_2 < …` be the costs of converting b into t from the orders that
it may be produced in. Let `w_0 = 0`. Level k is S_k = {t} ∪ {s : w(s,t) < w_k}, and z[b,t,S_k] costs w_k −
w_{k−1}. So b produced in s is outside the levels up to w(s,t), whose costs add up to w(s,t).

If all conversions into t cost the same, there is one level, {t}, and z says whether b is converted to t. If
some conversions are not offered, a last level holds the others. Its z is 0, unless a branch of a proof needs
prices for a case without any plan.

The share `λ[b,r,t]` of `plan.py` is the sum of the dual values of r's rows for t. The rows whose S contains s
credit b produced in s. `plan.py` credits it no more: the rows without s add up to at most w(s,t).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import optimize, sparse

from dimorder.planning.plan import Price, PricedSteps, Prices
from dimorder.planning.problem import Buffer, Cost, LayoutProblem, Order, unit_gcd

_Level = tuple[tuple[Order, ...], Cost | None]  # the orders inside, and the cost that being outside adds
Array = Any  # numpy and scipy.sparse arrays; scipy is untyped

# HiGHS works to 1e-7. Costs are divided by their greatest common divisor, so a real difference is larger.
TOLERANCE = 1e-6
# Vertices have small denominators: the first of these that proves the relaxation's value is used.
_DENOMINATORS = (1, 2, 12, 2**20)
# From this many columns on, the presolve of a problem with a cap ignores the time limit.
_LARGE = 100_000


@dataclass(frozen=True)
class Demand:
    """The subject of some rows: read `position` of `step`, which may want `order`."""

    step: int
    position: int
    order: Order


@dataclass(frozen=True)
class Relaxation:
    """The linear programme of a problem. Columns: configurations, then levels."""

    problem: LayoutProblem
    starts: Array  # first column of each step; one more entry ends the last
    demands: tuple[Demand, ...]
    demand_of: Array  # of each row
    barred: Array  # of each column: whether it is a level of conversions that are not offered
    assignment: Array  # steps × columns, sparse: right side 1
    rows: Array  # reads, orders and levels × columns, sparse: right side 0
    objectives: tuple[Array, ...]  # one per unit, in its greatest common divisor, then the tie-break
    divisors: tuple[int, ...]

    @property
    def configs(self) -> int:
        return int(self.starts[-1])

    def face(self, allowed: Mapping[int, frozenset[int]] = MappingProxyType({})) -> Face:
        """Return the face of every plan that takes allowed configurations, for the steps named there."""
        upper = np.where(self.barred, 0.0, np.inf)
        for step, configs in allowed.items():
            start, end = self.starts[step : step + 2]
            upper[[column for column in range(start, end) if column - start not in configs]] = 0.0
        return Face(upper, np.zeros(self.rows.shape[0], dtype=bool))

    def relieved(self, face: Face, fine: float) -> tuple[Relaxation, Array, Face]:
        """Return arguments for `relax` that offer all conversions, some for a fine in the first unit."""
        objective = np.where(self.barred, fine, self.objectives[0])
        return self, objective, replace(face, upper=np.where(self.barred, np.inf, face.upper))


@dataclass(frozen=True)
class Face:
    """A face of the relaxation to search: bounds of the columns, tight rows, and units capped at a value."""

    upper: Array
    tight: Array
    caps: tuple[tuple[int, int], ...] = ()  # (unit, value in its divisor)

    def decided(self, model: Relaxation) -> bool:
        """Return whether each step has one configuration left."""
        return int(np.count_nonzero(self.upper[: model.configs])) == len(model.problem.steps)


@dataclass(frozen=True)
class Relaxed:
    """An optimal vertex of the relaxation with its dual values."""

    value: float
    columns: Array
    reduced: Array
    duals: Array  # of `rows`, not negative; of tight rows: any sign

    def divided(self, model: Relaxation) -> list[int]:
        """Return the steps for which the vertex takes several configurations in part."""
        taken = self.columns[: model.configs]
        columns = np.flatnonzero(np.abs(taken - np.rint(taken)) > TOLERANCE)
        return sorted(set((np.searchsorted(model.starts, columns, side="right") - 1).tolist()))


def build(problem: LayoutProblem) -> Relaxation:
    """Return the linear programme of a problem, its costs divided by their greatest common divisors."""
    divisors = tuple(unit_gcd(problem, unit) for unit in range(len(problem.units)))
    starts = np.cumsum([0, *(len(step.configs) for step in problem.steps)])
    configs = int(starts[-1])
    produced: list[dict[Order, list[int]]] = [{} for _ in problem.buffers]
    levels: dict[tuple[int, Order], list[tuple[int, list[int]]]] = {}  # level column, producing columns
    costs: list[Cost | None] = []  # of levels
    demands: list[Demand] = []
    demand_of: list[int] = []
    entries: list[tuple[int, int, int]] = []
    for step, start in zip(problem.steps, starts[:-1], strict=True):
        for position, buffer in enumerate(step.writes):
            for column, config in enumerate(step.configs, start):
                produced[buffer].setdefault(config.writes[position], []).append(column)
    alike = _levels_of_alike(problem, produced)
    for index, step in enumerate(problem.steps):
        for position, buffer in enumerate(step.reads):
            wanted: dict[Order, list[int]] = {}
            for column, config in enumerate(step.configs, starts[index]):
                wanted.setdefault(config.reads[position], []).append(column)
            for order, columns in wanted.items():
                if (buffer, order) not in levels:
                    levels[buffer, order] = []
                    if order not in alike[buffer]:
                        found = levels_of(problem.buffers[buffer], order, produced[buffer])
                        alike[buffer][order] = found
                    for inside, cost in alike[buffer][order]:
                        producing = [column for source in inside for column in produced[buffer][source]]
                        levels[buffer, order].append((configs + len(costs), producing))
                        costs.append(cost)
                for level, producing in levels[buffer, order]:
                    row = len(demand_of)
                    entries.extend((row, column, 1) for column in columns)
                    entries.extend((row, column, -1) for column in (*producing, level))
                    demand_of.append(len(demands))
                demands.append(Demand(index, position, order))
    width = configs + len(costs)
    own = [config.cost for step in problem.steps for config in step.configs]
    own += [(0,) * len(divisors) if cost is None else cost for cost in costs]
    ranks = [rank for step in problem.steps for rank in range(len(step.configs))]
    return Relaxation(
        problem,
        starts,
        tuple(demands),
        np.array(demand_of, dtype=np.int64),
        np.array([False] * configs + [cost is None for cost in costs]),
        _sparse(
            (
                (index, column, 1)
                for index in range(len(problem.steps))
                for column in range(starts[index], starts[index + 1])
            ),
            (len(problem.steps), width),
        ),
        _sparse(entries, (len(demand_of), width)),
        (
            *(_padded([cost[u] // divisor for cost in own], width) for u, divisor in enumerate(divisors)),
            _padded(ranks, width),
        ),
        divisors,
    )


def _levels_of_alike(
    problem: LayoutProblem, produced: Sequence[Collection[Order]]
) -> list[dict[Order, list[_Level]]]:
    """Return for each buffer the dict of its levels, which buffers of equal costs and producers share."""
    places: dict[object, dict[Order, list[_Level]]] = {}
    return [
        places.setdefault((id(buffer.exceptions), buffer.conversion_cost, tuple(orders)), {})
        for buffer, orders in zip(problem.buffers, produced, strict=True)
    ]


def levels_of(buffer: Buffer, order: Order, produced: Collection[Order]) -> list[_Level]:
    """Return the levels of conversions to an order: the orders inside, and the cost of being outside.

    The orders are some of `produced`. A set that is a level in only one unit adds nothing in the others. A
    cost of None means that outside is not offered.

    >>> buffer = Buffer("x", (5,), {("NHWC", "NCHW"): (3,), ("CHWN", "NCHW"): None})
    >>> for level in levels_of(buffer, "NCHW", ("NCHW", "NHWC", "CHWN", "WHCN")):
    ...     print(level)
    (('NCHW',), (3,))
    (('NCHW', 'NHWC'), (2,))
    (('NCHW', 'NHWC', 'WHCN'), None)
    """
    if not buffer.exceptions:  # one cost, so one level: an early return saves a tenth of a plan's time
        apart = any(buffer.conversion_cost) and len(produced) > (order in produced)
        return [((order,) * (order in produced), buffer.conversion_cost)] if apart else []
    sources: dict[Cost | None, list[Order]] = {}
    for source in produced:
        sources.setdefault(buffer.cost(source, order), []).append(source)
    barred = sources.pop(None, None)
    offered = [(cost, source) for cost, those in sources.items() if cost is not None for source in those]
    added: dict[tuple[Order, ...], list[int]] = {}
    for unit in range(len(buffer.conversion_cost)):
        below = 0
        for value in sorted({cost[unit] for cost in sources if cost is not None} - {0}):
            inside = tuple(source for cost, source in offered if cost[unit] < value)
            added.setdefault(inside, [0] * len(buffer.conversion_cost))[unit] = value - below
            below = value
    levels: list[_Level] = [(s, tuple(cost)) for s, cost in added.items()]
    return [*levels, (tuple(source for _, source in offered), None)] if barred else levels


def _sparse(entries: Iterable[tuple[int, int, int]], shape: tuple[int, int]) -> Array:
    table = np.array(list(entries), dtype=np.int64).reshape(-1, 3)
    return sparse.csr_array((table[:, 2].astype(float), (table[:, 0], table[:, 1])), shape=shape)


def _padded(values: list[int], width: int) -> Array:
    return np.array(values + [0] * (width - len(values)), dtype=float)


def relax(model: Relaxation, objective: Array, face: Face, time_limit_s: float) -> Relaxed | None:
    """Return an optimal vertex of the relaxation; None if there is no feasible point, or no time.

    Devex prices take a quarter of the time of HiGHS's own choice on 45,000 configurations.
    """
    loose, tight = ~face.tight, face.tight
    result = optimize.linprog(
        objective,
        A_ub=model.rows[loose],
        b_ub=np.zeros(loose.sum()),
        A_eq=sparse.vstack([model.assignment, model.rows[tight]], format="csr"),
        b_eq=np.concatenate([np.ones(model.assignment.shape[0]), np.zeros(tight.sum())]),
        bounds=np.column_stack([np.zeros_like(face.upper), face.upper]),
        method="highs-ds",
        options={"time_limit": time_limit_s, "simplex_dual_edge_weight_strategy": "devex"},
    )
    if result.status != 0:
        return None
    duals = np.zeros(len(tight))
    duals[loose] = -result.ineqlin.marginals
    return Relaxed(float(result.fun), result.x, result.lower.marginals, duals)


def solve_integer(model: Relaxation, objective: Array, face: Face, time_limit_s: float) -> Array | None:
    """Return the best integer point that HiGHS finds in time, None if it finds none.

    Every column gets an upper bound. With scipy 1.17.1 and unbounded columns, presolve never ended on a
    problem of 7 steps, whatever the time limit. Presolve does not check the clock either if a cap, a row over
    all columns, makes a large problem dense. It ran for 385 s instead of the 5 s allowed, for 60,000
    configurations.
    """
    constraints = [
        optimize.LinearConstraint(model.assignment, 1, 1),
        optimize.LinearConstraint(model.rows, np.where(face.tight, 0.0, -np.inf), 0.0),
    ]
    for unit, value in face.caps:  # whole numbers: 0.5 is room for rounding errors
        constraints.append(optimize.LinearConstraint(model.objectives[unit], -np.inf, value + 0.5))
    result = optimize.milp(
        objective,
        integrality=np.arange(len(objective)) < model.configs,
        bounds=optimize.Bounds(0, np.minimum(face.upper, 1.0)),
        constraints=constraints,
        options={
            "time_limit": time_limit_s,
            "mip_rel_gap": 0.0,
            "presolve": not face.caps or len(objective) < _LARGE,
        },
    )
    return result.x


def chosen(model: Relaxation, columns: Array) -> tuple[int, ...]:
    """Return for each step the configuration with the largest value: a choice, not yet known to be a plan."""
    starts = model.starts.tolist()
    return tuple(int(np.argmax(columns[a:b])) for a, b in pairwise(starts))


def prices(
    model: Relaxation, relaxed: Relaxed, allowed: Mapping[int, frozenset[int]]
) -> tuple[PricedSteps, Fraction]:
    """Return the dual values of the first unit as exact prices, and the bound that they prove.

    Rounding keeps prices at or above 0, so that they are prices whatever the solver's errors. The errors only
    cost some of the bound. `allowed` are the configurations left to some of the steps.
    """
    best: tuple[PricedSteps, Fraction] | None = None
    for denominator in _DENOMINATORS:
        found = PricedSteps(model.problem, _prices_over(model, relaxed.duals, denominator))
        bound = found.bound(allowed)
        if best is None or bound > best[1]:
            best = found, bound
        if best[1] / model.divisors[0] > relaxed.value - TOLERANCE * max(1.0, relaxed.value * 1e-3):
            break
    assert best is not None
    return best


def _prices_over(model: Relaxation, duals: Array, denominator: int) -> Prices:
    scaled = np.bincount(model.demand_of, duals, len(model.demands)) * denominator
    nearest = np.rint(scaled)
    values = np.where(np.abs(scaled - nearest) < 1e-4, nearest, np.floor(scaled)).clip(0).astype(np.int64)
    shares = []
    for index in np.flatnonzero(values).tolist():
        demand = model.demands[index]
        value = int(values[index]) * model.divisors[0]
        shares.append(Price(demand.step, demand.position, demand.order, value))
    return Prices(denominator, tuple(shares))
