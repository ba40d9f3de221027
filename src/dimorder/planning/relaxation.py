"""The linear programme of a layout problem: how it is built, relaxed by HiGHS, and read back as prices.

This file decides the formulation. Columns: y[o,c] = 1 if operator o takes configuration c; a[b,t] = 1 if
buffer b is converted to layout t. Rows: Σ_c y[o,c] = 1; for every read r of b and layout t it may want,

    [r wants t] − [b produced in t] − a[b,t] ≤ 0    a share row: its dual value is the price λ of plan.py
    [r wants t] + [b produced in F] ≤ 1             an exclusion row, where F → t is not offered: μ

Exclusion rows have a slack, 0 unless a branch of a proof needs prices for a case without any plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import optimize, sparse

from dimorder.planning.plan import Price, Prices, bound_of_prices
from dimorder.planning.problem import Layout, LayoutProblem, unit_gcd

Array = Any  # numpy and scipy.sparse arrays; scipy is untyped

# HiGHS works to 1e-7; costs are divided by their greatest common divisor, so a real difference is larger.
TOLERANCE = 1e-6
# Vertices have small denominators: the first of these that proves the relaxation's value is taken.
_DENOMINATORS = (1, 2, 12, 2**20)
# Columns from which on the time limit is out of reach for the presolve of a problem with a cap.
_LARGE = 100_000


@dataclass(frozen=True)
class Row:
    """What a row is about: read `position` of `operator`, of `buffer`, wanting `layout`."""

    operator: int
    position: int
    buffer: int
    layout: Layout


@dataclass(frozen=True)
class Model:
    """The linear programme of a problem. Columns: configurations, conversions, slacks of exclusion rows."""

    problem: LayoutProblem
    starts: Array  # first column of each operator; one more entry ends the last
    shares: tuple[Row, ...]
    exclusions: tuple[Row, ...]
    assignment: Array  # operators × columns, sparse: right side 1
    rows: Array  # (shares, then exclusions) × columns, sparse
    limits: Array  # right side of `rows`
    objectives: tuple[Array, ...]  # one per unit, in its greatest common divisor, then the tie-break
    steps: tuple[int, ...]  # that divisor
    ranks: Sequence[Sequence[int]]

    @property
    def configs(self) -> int:
        return int(self.starts[-1])

    def face(self, allowed: Mapping[int, frozenset[int]] = MappingProxyType({})) -> Face:
        """Every plan that takes allowed configurations, of operators named there; exclusions hold."""
        upper = np.full(self.rows.shape[1], np.inf)
        upper[len(upper) - len(self.exclusions) :] = 0.0
        for operator, configs in allowed.items():
            start, end = self.starts[operator : operator + 2]
            upper[[column for column in range(start, end) if column - start not in configs]] = 0.0
        return Face(upper, np.zeros(len(self.limits), dtype=bool))

    def relieved(self, face: Face, fine: float) -> tuple[Model, Array, Face]:
        """Arguments for `relax` where exclusions may be broken for a fine in the first unit's step."""
        slacks = np.arange(len(face.upper)) >= len(face.upper) - len(self.exclusions)
        objective = np.where(slacks, fine, self.objectives[0])
        return self, objective, replace(face, upper=np.where(slacks, np.inf, face.upper))


@dataclass(frozen=True)
class Face:
    """Where to look: upper bounds of the columns, rows held tight, and units capped at a value."""

    upper: Array
    tight: Array
    caps: tuple[tuple[int, int], ...] = ()  # (unit, value in its divisor)

    def decided(self, model: Model) -> bool:
        """Whether each operator has one configuration left."""
        return int(np.count_nonzero(self.upper[: model.configs])) == len(model.problem.operators)


@dataclass(frozen=True)
class Relaxed:
    """An optimal vertex of the relaxation with its dual values."""

    value: float
    columns: Array
    reduced: Array
    duals: Array  # of `rows`, not negative; of rows held tight: any sign

    def divided(self, model: Model) -> list[int]:
        """The operators for which the vertex takes several configurations in part."""
        taken = self.columns[: model.configs]
        columns = np.flatnonzero(np.abs(taken - np.rint(taken)) > TOLERANCE)
        return sorted(set((np.searchsorted(model.starts, columns, side="right") - 1).tolist()))


def build(problem: LayoutProblem) -> Model:
    """The linear programme of a problem.

    Costs are divided by the greatest common divisor of their unit. Where all units tie, taking a
    configuration costs its index.
    """
    steps = tuple(unit_gcd(problem, unit) for unit in range(len(problem.units)))
    ranks = [range(len(operator.configs)) for operator in problem.operators]
    starts = np.cumsum([0, *(len(operator.configs) for operator in problem.operators)])
    produced: list[dict[Layout, list[int]]] = [{} for _ in problem.buffers]
    shares: list[Row] = []
    exclusions: list[Row] = []
    conversions: dict[tuple[int, Layout], int] = {}
    share_entries: list[tuple[int, int, int]] = []
    exclusion_entries: list[tuple[int, int, int]] = []
    for index, operator in enumerate(problem.operators):
        for position, buffer in enumerate(operator.reads):
            wanted: dict[Layout, list[int]] = {}
            for column, config in enumerate(operator.configs, starts[index]):
                wanted.setdefault(config.reads[position], []).append(column)
            for layout, columns in wanted.items():
                row = Row(index, position, buffer, layout)
                conversion = conversions.setdefault((buffer, layout), int(starts[-1]) + len(conversions))
                share_entries.extend((len(shares), column, 1) for column in columns)
                share_entries.extend((len(shares), column, -1) for column in produced[buffer].get(layout, ()))
                share_entries.append((len(shares), conversion, -1))
                shares.append(row)
                sources = [
                    column
                    for source, producers in produced[buffer].items()
                    if source != layout and (source, layout) in problem.buffers[buffer].unreachable
                    for column in producers
                ]
                if sources:
                    exclusion_entries.extend((len(exclusions), column, 1) for column in (*columns, *sources))
                    exclusions.append(row)
        for position, buffer in enumerate(operator.writes):
            for column, config in enumerate(operator.configs, starts[index]):
                produced[buffer].setdefault(config.writes[position], []).append(column)
    slack = int(starts[-1]) + len(conversions)
    exclusion_entries.extend((row, slack + row, -1) for row in range(len(exclusions)))
    width = slack + len(exclusions)
    entries = share_entries + [(len(shares) + row, column, value) for row, column, value in exclusion_entries]
    return Model(
        problem,
        starts,
        tuple(shares),
        tuple(exclusions),
        _sparse(
            (
                (index, column, 1)
                for index, operator in enumerate(problem.operators)
                for column in range(starts[index], starts[index] + len(operator.configs))
            ),
            (len(problem.operators), width),
        ),
        _sparse(entries, (len(shares) + len(exclusions), width)),
        np.concatenate([np.zeros(len(shares)), np.ones(len(exclusions))]),
        (
            *(
                _objective(problem, unit, steps[unit], conversions, width)
                for unit in range(len(problem.units))
            ),
            _padded([rank for operator in ranks for rank in operator], width),
        ),
        steps,
        ranks,
    )


def _sparse(entries: Iterable[tuple[int, int, int]], shape: tuple[int, int]) -> Array:
    table = np.array(list(entries), dtype=np.int64).reshape(-1, 3)
    return sparse.csr_array((table[:, 2].astype(float), (table[:, 0], table[:, 1])), shape=shape)


def _objective(
    problem: LayoutProblem, unit: int, step: int, conversions: dict[tuple[int, Layout], int], width: int
) -> Array:
    costs = [config.cost[unit] // step for operator in problem.operators for config in operator.configs]
    costs.extend(problem.buffers[buffer].conversion_cost[unit] // step for buffer, _ in conversions)
    return _padded(costs, width)


def _padded(values: list[int], width: int) -> Array:
    return np.array(values + [0] * (width - len(values)), dtype=float)


def relax(model: Model, objective: Array, face: Face, time_limit_s: float) -> Relaxed | None:
    """An optimal vertex of the relaxation; None if there is no feasible point, or no time."""
    loose, tight = ~face.tight, face.tight
    result = optimize.linprog(
        objective,
        A_ub=model.rows[loose],
        b_ub=model.limits[loose],
        A_eq=sparse.vstack([model.assignment, model.rows[tight]], format="csr"),
        b_eq=np.concatenate([np.ones(model.assignment.shape[0]), model.limits[tight]]),
        bounds=np.column_stack([np.zeros_like(face.upper), face.upper]),
        method="highs",
        options={"time_limit": time_limit_s},
    )
    if result.status != 0:
        return None
    duals = np.zeros(len(model.limits))
    duals[loose] = -result.ineqlin.marginals
    return Relaxed(float(result.fun), result.x, result.lower.marginals, duals)


def solve_integer(model: Model, objective: Array, face: Face, time_limit_s: float) -> Array | None:
    """The best integer point that HiGHS finds in time, None if it finds none.

    Every column gets an upper bound: with scipy 1.17.1 and unbounded ones, presolve went round for ever on a
    problem of 7 operators, whatever the time limit. Nor does presolve look at the clock where a cap, a row
    over all columns, makes a large problem dense (385 s of 5 s allowed, for 60,000 configurations).
    """
    constraints = [
        optimize.LinearConstraint(model.assignment, 1, 1),
        optimize.LinearConstraint(model.rows, np.where(face.tight, model.limits, -np.inf), model.limits),
    ]
    for unit, value in face.caps:  # whole numbers: half a step is room for rounding errors
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


def chosen(model: Model, columns: Array) -> tuple[int, ...]:
    """For each operator the configuration with the largest value: a choice, not yet known to be a plan."""
    starts = model.starts.tolist()
    return tuple(int(np.argmax(columns[a:b])) for a, b in pairwise(starts))


def prices(model: Model, relaxed: Relaxed, allowed: Mapping[int, frozenset[int]]) -> tuple[Prices, Fraction]:
    """Dual values of the first unit as exact prices, and the bound they prove where only some are allowed.

    Rounding keeps prices at or above 0 and their sums within the conversion's cost, so they are prices
    whatever the solver's errors; those only cost some of the bound.
    """
    best: tuple[Prices, Fraction] | None = None
    for denominator in _DENOMINATORS:
        found = _prices_over(model, relaxed.duals, denominator)
        bound = bound_of_prices(model.problem, found, allowed)
        if best is None or bound > best[1]:
            best = found, bound
        if best[1] / model.steps[0] > relaxed.value - TOLERANCE * max(1.0, relaxed.value * 1e-3):
            break
    assert best is not None
    return best


def _prices_over(model: Model, duals: Array, denominator: int) -> Prices:
    scaled = duals * denominator
    nearest = np.rint(scaled)
    values = np.where(np.abs(scaled - nearest) < 1e-4, nearest, np.floor(scaled)).clip(0).astype(np.int64)
    step = model.steps[0]
    room: dict[tuple[int, Layout], int] = {}
    shares = []
    for index in np.flatnonzero(values[: len(model.shares)]).tolist():
        row = model.shares[index]
        cost = model.problem.buffers[row.buffer].conversion_cost[0] // step * denominator
        left = room.setdefault((row.buffer, row.layout), cost)
        value = min(int(values[index]), left)
        room[row.buffer, row.layout] -= value
        shares.append(Price(row.operator, row.position, row.layout, value * step))
    exclusions = [
        Price(row.operator, row.position, row.layout, int(value) * step)
        for row, value in zip(model.exclusions, values[len(model.shares) :], strict=True)
        if value
    ]
    return Prices(denominator, tuple(shares), tuple(exclusions))
