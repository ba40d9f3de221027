"""Find the configurations of a step that another one replaces for no more, whatever the other steps do.

A buffer is a table: what it costs to want it in one order (columns) if it is produced in another (rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dimorder.planning.cost_tables import NEVER, CostTable


@dataclass(frozen=True)
class BufferUse:
    """An operand or result of a step: its buffer, the table, and how many operands read that buffer."""

    buffer: int
    table: CostTable
    written: bool
    reads: int


@dataclass
class Dominance:
    """The test, with its results so far: the blocks of a network are often alike."""

    compared: int = 0  # places of pairs of configurations
    # The values keep the tables alive whose ids are in the keys.
    known: dict[tuple[int, bool, int], tuple[CostTable, CostTable]] = field(default_factory=dict)
    seen: dict[object, tuple[CostTable, tuple[CostTable, ...]]] = field(default_factory=dict)

    def undominated(self, places: Sequence[BufferUse], orders: CostTable, costs: CostTable) -> CostTable:
        """Return the configurations that are left, in sequence.

        `orders` has a row for each configuration, with the row or column of the table at each place.

        >>> place = BufferUse(buffer=0, table=np.array([[0, 5], [5, 0]]), written=False, reads=1)
        >>> Dominance().undominated([place], np.array([[0], [1]]), np.array([0, 5])).tolist()
        [0]
        """
        buffers = [place.buffer for place in places]
        alike = tuple((id(each.table), each.written, each.reads) for each in places)
        same = tuple(buffers.index(buffer) for buffer in buffers)
        key = alike, same, orders.tobytes(), costs.tobytes()
        if key not in self.seen:
            self.compared += len(costs) ** 2 * len(places)
            self.seen[key] = self._undominated(places, orders, costs), tuple(each.table for each in places)
        return self.seen[key][0]

    def _undominated(self, places: Sequence[BufferUse], orders: CostTable, costs: CostTable) -> CostTable:
        possible = np.flatnonzero(costs < NEVER)
        by_cost = possible[np.argsort(costs[possible], kind="stable")]
        orders, costs = orders[by_cost], costs[by_cost]
        change = costs[:, None] - costs[None, :]  # of the cost of a plan, if [row] replaces [column]
        for index, place in enumerate(places):
            mine = orders[:, index]
            added = self._changes(place)[np.ix_(mine, mine)]
            for other, its in enumerate(places):
                if other == index or its.buffer != place.buffer or place.written or its.written:
                    continue
                added[mine[:, None] == orders[None, :, other]] = 0  # wanted before
                if other < index:
                    added[mine == orders[:, other]] = 0  # wanted at the other place too
            change += added
        replaces = change <= 0
        np.fill_diagonal(replaces, False)
        alive = np.ones(len(costs), dtype=bool)
        for config in np.flatnonzero(replaces.any(axis=0))[::-1].tolist():
            alive[config] = not (replaces[:, config] & alive).any()
        return np.sort(by_cost[alive])

    def _changes(self, place: BufferUse) -> CostTable:
        """Return the most that one order costs beyond another at a place, [order, other order]."""
        reads = place.reads if place.written else min(place.reads, 2)
        key = id(place.table), place.written, reads
        if key not in self.known:
            self.known[key] = _changes(place.table, place.written, reads), place.table
        return self.known[key][0]


def _changes(table: CostTable, written: bool, reads: int) -> CostTable:
    costs = table if written else table.T  # orders × what the other steps decide
    if written and not reads:
        return np.zeros((len(costs), len(costs)), dtype=np.int64)
    found = np.empty((len(costs), len(costs)), dtype=np.int64)
    for other, paid in enumerate(costs):
        # Another read may want the order that this one wanted. Then it is paid for anyway.
        saved = np.where(paid >= NEVER, NEVER, 0) if not written and reads > 1 else paid
        change = np.where(costs >= NEVER, NEVER, costs - saved)
        change[:, saved >= NEVER] = -NEVER  # the other order is not possible there
        if written and reads > 1:
            most = np.sort(change, axis=1)[:, -reads:].clip(0)
            found[:, other] = np.where((most >= NEVER).any(axis=1), NEVER, (most % NEVER).sum(axis=1))
        else:
            found[:, other] = change.max(axis=1)
    np.fill_diagonal(found, 0)
    return found
