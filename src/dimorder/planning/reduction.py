"""Reduce a layout problem exactly: join steps whose choice depends on few other steps.

The reduced problem has the same least cost in all units. Each of its plans stands for one of the whole
problem. No solver takes part, so `plan.py` can reduce a problem again to check a proof about the reduced one.

There are two rules:

1. A step reads one buffer and writes one, and each of the two has one reader. The step and the two buffers
   become one buffer. A conversion of it costs the least sum over the configurations of the step.
2. All ways from a step meet again in one later step, directly or through one step each. These steps become
   one, whose configurations are pairs of those of the first and the last step. The steps between take what is
   cheapest for the pair. A pair is left out if another pair can replace it for no more (`dominance.py`).

For example, rule 2 makes an attention one step, and then rule 1 makes it a part of a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dimorder.planning.cost_tables import (
    MAX_PLACES,
    NEVER,
    CostDigits,
    CostTable,
    NamedBuffer,
    name_orders,
    table_of,
)
from dimorder.planning.dominance import BufferUse, Dominance
from dimorder.planning.problem import Config, LayoutProblem, Order, Step


@dataclass(frozen=True)
class JoinLimits:
    """How much may be computed to join steps.

    Attributes:
        pairs: Pairs of configurations, if the joined step has no more configurations than one of the steps.
        growing: Pairs of configurations, if it has more.
        compared: Comparisons of pairs, after which steps that grow have few pairs.
        few: These few pairs.
        joined: Configurations of a step that has more.
        sums: Costs that are compared for the steps between.
    """

    pairs: int = 2048
    growing: int = 2048
    compared: int = 1 << 29
    few: int = 256
    joined: int = 64
    sums: int = 1 << 24


_Choice = dict[int, int]  # configurations by step


@dataclass(frozen=True)
class ReducedProblem:
    """A reduced problem, and how its choices become choices of the whole problem."""

    problem: LayoutProblem
    steps: tuple[int, ...]  # of each step, the step of the whole problem that it comes from
    joins: tuple[_ChainJoin | _GroupJoin, ...]  # what was joined, in sequence

    def lift(self, choice: Sequence[int]) -> tuple[int, ...]:
        """Return the choice of the whole problem for a choice of the reduced one, at the same cost."""
        found = dict(zip(self.steps, choice, strict=True))
        for join in reversed(self.joins):
            join.undo(found)
        return tuple(found[step] for step in range(len(found)))


def reduce(problem: LayoutProblem, limits: JoinLimits = JoinLimits()) -> ReducedProblem | None:
    """Return a reduced problem; None if its costs do not fit in 64 bits.

    >>> from dimorder.planning.problem import Buffer, Config, Step
    >>> source = Step("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Step("output", (0,), (), (Config(("NCHW",), (), (9,)), Config(("NHWC",), (), (0,))))
    >>> reduced = reduce(LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete"))
    >>> [step.configs for step in reduced.problem.steps]
    [(Config(reads=(), writes=(), cost=(8,)),)]
    >>> reduced.lift((0,))
    (0, 1)
    """
    digits = CostDigits.of(problem)
    if digits is None:
        return None
    graph = _Joining(problem, digits)
    graph.join_all(limits)
    return ReducedProblem(graph.problem(), tuple(graph.steps), tuple(graph.joins))


@dataclass(frozen=True)
class _StepTable:
    """A step: the buffers that it reads and writes, and by configuration a row of orders and a cost.

    An order is an index: of a row of the buffer's table for a result, of a column for an operand.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    orders: CostTable
    costs: CostTable
    carries: bool

    def order_of(self, buffer: int, *, written: bool) -> CostTable:
        """Return the order of a buffer that stands here once, by configuration."""
        place = len(self.reads) + self.writes.index(buffer) if written else self.reads.index(buffer)
        return self.orders[:, place]


@dataclass(frozen=True)
class _ChainJoin:
    """A step that became part of a buffer between a producer and a reader."""

    step: int
    into: CostTable  # produced orders × configurations: the cost of the step and of what it reads
    out_of: CostTable  # configurations × wanted orders
    producer: int
    produced: CostTable
    reader: int
    wanted: CostTable

    def undo(self, found: _Choice) -> None:
        source, target = self.produced[found[self.producer]], self.wanted[found[self.reader]]
        found[self.step] = int(np.argmin(self.into[source] + self.out_of[:, target]))


@dataclass(frozen=True)
class _GroupJoin:
    """Steps that became part of the last one of them."""

    steps: tuple[int, ...]
    configs: CostTable  # of these steps, by configuration of the joined step

    def undo(self, found: _Choice) -> None:
        found.update(zip(self.steps, self.configs[found[self.steps[-1]]].tolist(), strict=True))


class _Joining:
    """The problem while steps are joined."""

    def __init__(self, problem: LayoutProblem, digits: CostDigits) -> None:
        self.whole, self.digits, self.dominance = problem, digits, Dominance()
        self.joins: list[_ChainJoin | _GroupJoin] = []
        self.producers: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {index: [] for index in range(len(problem.buffers))}
        self.tables: dict[int, CostTable] = {}
        self.names: dict[int, tuple[list[Order], list[Order]]] = {}  # of rows and columns, if not joined
        self.products: dict[object, tuple[tuple[CostTable, CostTable, CostTable], object]] = {}
        rows: list[dict[Order, int]] = [{} for _ in problem.buffers]
        columns: list[dict[Order, int]] = [{} for _ in problem.buffers]
        self.steps: dict[int, _StepTable] = {}
        for index, step in enumerate(problem.steps):
            places = [columns[buffer] for buffer in step.reads] + [rows[buffer] for buffer in step.writes]
            orders = [
                [
                    place.setdefault(order, len(place))
                    for place, order in zip(places, _orders(config), strict=True)
                ]
                for config in step.configs
            ]
            costs = np.array([digits.joined(config.cost) for config in step.configs], dtype=np.int64)
            table = np.array(orders, dtype=np.int64).reshape(len(step.configs), len(places))
            self.steps[index] = _StepTable(step.name, step.reads, step.writes, table, costs, step.carries)
            for buffer in step.writes:
                self.producers[buffer] = index
            for buffer in step.reads:
                self.readers[buffer].append(index)
        known: dict[object, CostTable] = {}
        for index, (each, own, its) in enumerate(zip(problem.buffers, rows, columns, strict=True)):
            alike = id(each.exceptions), each.conversion_cost, tuple(own), tuple(its)
            if alike not in known:
                known[alike] = table_of(each, own, its, digits)
            self.tables[index] = known[alike]
            self.names[index] = list(own), list(its)

    def join_all(self, limits: JoinLimits) -> None:
        """Join steps until no rule applies: at first only where no step gets more configurations."""
        for pairs, joined in ((limits.pairs, 0), (limits.growing, limits.joined)):
            pending = dict.fromkeys(self.steps)
            while pending:
                step = next(iter(pending))
                del pending[step]
                if step not in self.steps:
                    continue
                pairs = pairs if not joined or self.dominance.compared <= limits.compared else limits.few
                around = self._neighbours(step)
                if self._chain(step) or self._group(step, pairs, joined, limits.sums):
                    more = [each for neighbour in around for each in self._neighbours(neighbour)]
                    pending.update(dict.fromkeys((*around, *more)))

    def _neighbours(self, step: int) -> list[int]:
        if step not in self.steps:
            return []
        node = self.steps[step]
        producers = [self.producers[buffer] for buffer in node.reads]
        return [*producers, *(reader for buffer in node.writes for reader in self.readers[buffer])]

    def _chain(self, step: int) -> bool:
        """Apply the first rule to a step; return whether it applies."""
        node = self.steps[step]
        if node.carries or len(node.reads) != 1 or len(node.writes) != 1:
            return False
        (before,), (after,) = node.reads, node.writes
        if len(self.readers[before]) != 1 or len(self.readers[after]) != 1:
            return False
        producer, reader = self.producers[before], self.readers[after][0]
        produced = self.steps[producer].order_of(before, written=True)
        wanted = self.steps[reader].order_of(after, written=False)
        into, out_of, table = self._product(node, before, after)
        self.joins.append(_ChainJoin(step, into, out_of, producer, produced, reader, wanted))
        self.tables[before] = table
        self.names.pop(before, None)
        self.readers[before] = [reader]
        self._replace(reader, after, before)
        self._remove(step, after)
        return True

    def _product(self, node: _StepTable, before: int, after: int) -> tuple[CostTable, CostTable, CostTable]:
        """Return the tables into a step, out of it, and through it; chains that are alike share them."""
        read, written = node.orders[:, 0], node.orders[:, 1]
        first, second = self.tables[before], self.tables[after]
        key = id(first), id(second), node.orders.tobytes(), node.costs.tobytes()
        if key not in self.products:
            into, out_of = _sums(first[:, read], node.costs[None, :]), second[written]
            through = np.full((len(first), second.shape[1]), NEVER, dtype=np.int64)
            for config in range(len(node.costs)):
                np.minimum(through, into[:, config, None] + out_of[None, config], out=through)
            self.products[key] = (into, out_of, through), (first, second)  # these keep their ids
        return self.products[key][0]

    def _group(self, step: int, max_pairs: int, max_joined: int, max_sums: int) -> bool:
        """Apply the second rule to a step; return whether it applies."""
        node = self.steps[step]
        if node.carries or len(node.writes) != 1:
            return False
        (buffer,) = node.writes
        last, between = self._last(self.readers[buffer])
        if last is None:
            return False
        reader, middle = self.steps[last], [self.steps[each] for each in between]
        inner = {buffer, *(each.writes[0] for each in middle)}
        pairs = len(node.costs) * len(reader.costs)
        ways = self.tables[buffer].shape[1] ** len(middle)
        if pairs > max_pairs or pairs * ways > max_sums:
            return False
        if len(node.reads) + len(reader.reads) + len(reader.writes) > MAX_PLACES:
            return False
        costs, configs = self._inside(node, middle, reader)
        own, its = (each.ravel() for each in np.indices(costs.shape))
        others = [place for place, each in enumerate((*reader.reads, *reader.writes)) if each not in inner]
        joined = _StepTable(
            reader.name,
            node.reads + tuple(each for each in reader.reads if each not in inner),
            reader.writes,
            np.hstack([node.orders[own, : len(node.reads)], reader.orders[its][:, others]]),
            costs.ravel(),
            carries=False,
        )
        kept = self.dominance.undominated(self._uses(joined), joined.orders, joined.costs)
        if not 0 < len(kept) <= max(max_joined, len(node.costs), len(reader.costs)):
            return False
        chosen = np.column_stack([own[kept], configs.reshape(len(own), len(middle))[kept], its[kept]])
        self.joins.append(_GroupJoin((step, *between, last), chosen))
        self.steps[last] = replace(joined, orders=joined.orders[kept], costs=joined.costs[kept])
        for each in set(node.reads):
            self.readers[each] = [last if other == step else other for other in self.readers[each]]
        for each in (step, *between):
            self._remove(each, self.steps[each].writes[0])
        return True

    def _last(self, readers: Sequence[int]) -> tuple[int | None, list[int]]:
        """Return the step where all ways from some readers meet at once, and the readers before it.

        A reader before it reads one buffer and writes one, which only the last step reads.
        """
        ends: dict[int, list[int]] = {}
        for each in dict.fromkeys(readers):
            node = self.steps[each]
            ends[each] = self.readers[node.writes[0]] if len(node.writes) == 1 else []
        for last in dict.fromkeys((*ends, *(end[0] for end in ends.values() if end))):
            between = [each for each in ends if each != last]
            if self.steps[last].carries or any(
                ends[each] != [last] or len(self.steps[each].reads) != 1 or self.steps[each].carries
                for each in between
            ):
                continue
            return last, between
        return None, []

    def _inside(
        self, node: _StepTable, middle: Sequence[_StepTable], reader: _StepTable
    ) -> tuple[CostTable, CostTable]:
        """Return what a pair of configurations of two steps costs, and which ones the steps between take."""
        table = self.tables[node.writes[0]]
        best, best_config = [], []
        for each in middle:
            into = self.tables[each.writes[0]][each.orders[:, 1]]
            after = _sums(into[:, reader.order_of(each.writes[0], written=False)], each.costs[:, None])
            first = np.full((table.shape[1], len(reader.costs)), NEVER, dtype=np.int64)  # by order wanted
            config = np.zeros_like(first)
            for wanted in np.unique(each.orders[:, 0]).tolist():
                taking = np.flatnonzero(each.orders[:, 0] == wanted)
                config[wanted] = taking[after[taking].argmin(axis=0)]
                first[wanted] = after[taking].min(axis=0)
            best.append(first)
            best_config.append(config)
        ways = table.shape[1] ** len(middle)
        grid = np.indices((table.shape[1],) * len(middle)).reshape(len(middle), ways)  # orders wanted between
        direct = [place for place, each in enumerate(reader.reads) if each == node.writes[0]]
        orders = [reader.orders[:, place] for place in direct]
        after_all = np.zeros((ways, len(reader.costs)), dtype=np.int64)
        for number, first in enumerate(best):
            after_all = _sums(after_all, first[grid[number]])
        costs = np.empty((len(node.costs), len(reader.costs)), dtype=np.int64)
        configs = np.zeros((*costs.shape, len(middle)), dtype=np.int64)
        for row in np.unique(node.orders[:, -1]).tolist():
            total = after_all
            for number, wanted in enumerate(grid):
                paid = np.any([wanted == grid[other] for other in range(number)], axis=0)
                total = _sums(total, np.where(paid, 0, table[row, wanted])[:, None])
            for number, order in enumerate(orders):
                paid = np.any([order == orders[other] for other in range(number)], axis=0)
                paid = paid | np.any([wanted[:, None] == order for wanted in grid], axis=0)
                total = _sums(total, np.where(paid, 0, table[row, order]))
            least = total.argmin(axis=0)
            of_row = np.flatnonzero(node.orders[:, -1] == row)
            costs[of_row] = total.min(axis=0)
            for number, config in enumerate(best_config):
                configs[of_row, :, number] = config[grid[number][least], np.arange(len(least))]
        return _sums(_sums(costs, node.costs[:, None]), reader.costs[None, :]), configs

    def _uses(self, node: _StepTable) -> list[BufferUse]:
        """Return the operands and results of a step, as the other steps see them."""
        return [
            BufferUse(buffer, self.tables[buffer], number >= len(node.reads), len(self.readers[buffer]))
            for number, buffer in enumerate((*node.reads, *node.writes))
        ]

    def _replace(self, step: int, old: int, new: int) -> None:
        node = self.steps[step]
        self.steps[step] = replace(node, reads=tuple(new if each == old else each for each in node.reads))

    def _remove(self, step: int, buffer: int) -> None:
        del self.steps[step], self.tables[buffer], self.readers[buffer]
        self.names.pop(buffer, None)
        del self.producers[buffer]

    def problem(self) -> LayoutProblem:
        """Return the problem of the steps and buffers that are left."""
        places = {buffer: place for place, buffer in enumerate(sorted(self.tables))}
        used: dict[int, tuple[set[int], set[int]]] = {buffer: (set(), set()) for buffer in places}
        for node in self.steps.values():
            for place, buffer in enumerate((*node.reads, *node.writes)):
                used[buffer][place < len(node.reads)].update(np.unique(node.orders[:, place]).tolist())
        known: dict[object, NamedBuffer] = {}
        named = {buffer: self._named(buffer, used[buffer], known) for buffer in places}
        steps = []
        for node in self.steps.values():
            sides = [named[buffer].columns for buffer in node.reads]
            sides += [named[buffer].rows for buffer in node.writes]
            configs = []
            for row, value in zip(node.orders.tolist(), node.costs.tolist(), strict=True):
                cost = self.digits.cost(value)
                assert cost is not None  # a configuration costs what it costs
                orders = tuple(names[order] for names, order in zip(sides, row, strict=True))
                configs.append(Config(orders[: len(node.reads)], orders[len(node.reads) :], cost))
            reads, writes = (tuple(places[each] for each in side) for side in (node.reads, node.writes))
            steps.append(Step(node.name, reads, writes, tuple(configs), node.carries))
        buffers = tuple(replace(named[b].buffer, name=self.whole.buffers[b].name) for b in places)
        return LayoutProblem(self.whole.units, buffers, tuple(steps), self.whole.candidates)

    def _named(
        self, index: int, used: tuple[set[int], set[int]], known: dict[object, NamedBuffer]
    ) -> NamedBuffer:
        """Return a buffer with names for its orders: its own, unless it replaces several buffers."""
        if index in self.names:
            return NamedBuffer(
                self.whole.buffers[index], *(dict(enumerate(side)) for side in self.names[index])
            )
        rows, columns = map(sorted, used)
        alike = id(self.tables[index]), tuple(rows), tuple(columns)
        if alike not in known:
            known[alike] = name_orders(self.tables[index], rows, columns, self.digits)
        return known[alike]


def _orders(config: Config) -> tuple[Order, ...]:
    return (*config.reads, *config.writes)


def _sums(first: CostTable, second: CostTable) -> CostTable:
    return np.minimum(first + second, NEVER)
