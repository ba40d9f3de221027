"""Write the costs of a layout problem as tables of integers, and give such tables back as buffers.

A buffer is a table: what it costs to want it in one order (columns) if it is produced in another (rows).
Costs of several units become one integer. A less important unit never adds up to one of the next unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dimorder.planning.problem import Buffer, Cost, LayoutProblem, Order

CostTable = NDArray[np.int64]
NEVER = 1 << 57  # the cost of a conversion that is not offered: sums of `MAX_PLACES` of them fit in 64 bits
MAX_PLACES = 32  # operands and results of a step


@dataclass(frozen=True)
class CostDigits:
    """Weights that turn a cost of several units into one integer and back."""

    weights: tuple[int, ...]

    @staticmethod
    def of(problem: LayoutProblem) -> CostDigits | None:
        """Return weights above what any plan pays in the less important units; None if they are too large."""
        reads = Counter(buffer for step in problem.steps for buffer in step.reads)
        weights = [1]
        for unit in reversed(range(len(problem.units))):
            own = sum(max(config.cost[unit] for config in step.configs) for step in problem.steps)
            most = {}  # buffers share their exceptions, which may be thousands
            for buffer in problem.buffers:
                key = id(buffer.exceptions), buffer.conversion_cost
                if key not in most:
                    most[key] = max(cost[unit] for cost in buffer.costs)
            conversions = sum(
                reads[index] * most[id(buffer.exceptions), buffer.conversion_cost]
                for index, buffer in enumerate(problem.buffers)
            )
            weights.append(weights[-1] * (1 + own + conversions))
        return CostDigits(tuple(reversed(weights[:-1]))) if weights[-1] < NEVER else None

    def joined(self, cost: Cost | None) -> int:
        if cost is None:
            return NEVER
        return sum(value * weight for value, weight in zip(cost, self.weights, strict=True))

    def cost(self, value: int) -> Cost | None:
        if value >= NEVER:
            return None
        found = []
        for weight in self.weights:
            found.append(value // weight)
            value %= weight
        return tuple(found)


@dataclass(frozen=True)
class NamedBuffer:
    """A buffer, and the names of the rows and columns of its table."""

    buffer: Buffer
    rows: Mapping[int, Order]
    columns: Mapping[int, Order]


def name_orders(
    table: CostTable, rows: Sequence[int], columns: Sequence[int], digits: CostDigits
) -> NamedBuffer:
    """Return a buffer of a table. A column has the name of a row that is free for it, if no other one has."""
    free: dict[int, int] = {}
    for row in rows:
        column = next((each for each in columns if table[row, each] == 0 and each not in free), None)
        if column is not None:
            free[column] = row
    names: dict[int, Order] = {each: free.get(each, len(table) + each) for each in columns}
    values = table[np.ix_(rows, columns)]
    costs = {value: digits.cost(value) for value in np.unique(values).tolist()}
    offered = Counter(values[values < NEVER].tolist())
    usual = costs[offered.most_common(1)[0][0]] if offered else None
    default = (0,) * len(digits.weights) if usual is None else usual
    exceptions = {
        (row, names[column]): costs[value]
        for row, line in zip(rows, values.tolist(), strict=True)
        for column, value in zip(columns, line, strict=True)
        if row != names[column] and costs[value] != default
    }
    return NamedBuffer(Buffer("", default, exceptions), {row: row for row in rows}, names)


def table_of(
    buffer: Buffer, rows: Iterable[Order], columns: Iterable[Order], digits: CostDigits
) -> CostTable:
    values: dict[Cost | None, int] = {}
    table = [[buffer.cost(source, target) for target in columns] for source in rows]
    for cost in {cost for line in table for cost in line}:
        values[cost] = digits.joined(cost)
    found = [[values[cost] for cost in line] for line in table]
    return np.array(found, dtype=np.int64).reshape(len(found), -1)
