"""Compute the least cost of a problem by exact elimination, in integers and without a solver.

The result is a number and not a plan: it proves a bound that prices alone do not reach.

The variables are each step's configuration, and, for each buffer with several reads and each order, whether
that order exists. Costs are tables over one or two variables. Eliminating a variable adds the tables that
mention it and minimises over it. (Bertele and Brioschi, Nonserial Dynamic Programming, 1972.)
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from dimorder.planning.cost_tables import CostTable
from dimorder.planning.problem import LayoutProblem, Order

MAX_ENTRIES = 1 << 20  # of one table; beyond it the problem is too entangled for this method
FORBIDDEN = 1 << 50


def least_cost(problem: LayoutProblem, max_entries: int = MAX_ENTRIES) -> int | None:
    """Return the least first-unit cost of any plan; None if that needs a table of more than `max_entries`.

    >>> from dimorder.planning.problem import Buffer, Config, Step
    >>> source = Step("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Step("output", (0,), (), (Config(("NCHW",), (), (9,)), Config(("NHWC",), (), (0,))))
    >>> least_cost(LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete"))
    8
    """
    network = _Tables()
    for index, step in enumerate(problem.steps):
        network.add([index], np.array([config.cost[0] for config in step.configs], dtype=np.int64))
    for index, buffer in enumerate(_ends(problem)):
        buffer.charge(network, problem, index)
    return network.minimum(max_entries)


@dataclass(frozen=True)
class _Ends:
    """The step that produces a buffer and the steps that read it, each as (step, order per configuration)."""

    producer: tuple[int, tuple[Order, ...]]
    reads: tuple[tuple[int, tuple[Order, ...]], ...]

    def charge(self, network: _Tables, problem: LayoutProblem, index: int) -> None:
        step, produced = self.producer
        price = {
            (source, target): FORBIDDEN if cost is None else cost[0]
            for target in dict.fromkeys(order for _, wanted in self.reads for order in wanted)
            for source in dict.fromkeys(produced)
            for cost in [problem.buffers[index].cost(source, target)]
        }
        if not any(price.values()):
            return
        if len(self.reads) == 1:
            reader, wanted = self.reads[0]
            pairs = [[price[source, target] for target in wanted] for source in produced]
            network.add([step, reader], np.array(pairs, dtype=np.int64))
            return
        for order in dict.fromkeys(target for (_, target), cost in price.items() if cost):
            exists = (index, order)
            prices = [[0, price[source, order]] for source in produced]
            network.add([step, exists], np.array(prices, dtype=np.int64))
            for reader, wanted in self.reads:
                missing = [[FORBIDDEN if order == b else 0, 0] for b in wanted]
                network.add([reader, exists], np.array(missing, dtype=np.int64))


def _ends(problem: LayoutProblem) -> list[_Ends]:
    producers: dict[int, tuple[int, tuple[Order, ...]]] = {}
    reads: dict[int, list[tuple[int, tuple[Order, ...]]]] = defaultdict(list)
    for index, step in enumerate(problem.steps):
        for position, buffer in enumerate(step.writes):
            producers[buffer] = (index, tuple(config.writes[position] for config in step.configs))
        for position, buffer in enumerate(step.reads):
            reads[buffer].append((index, tuple(config.reads[position] for config in step.configs)))
    return [_Ends(producers[b], tuple(reads[b])) for b in range(len(problem.buffers))]


class _Tables:
    """Costs over variables, which are eliminated by least number of neighbours."""

    def __init__(self) -> None:
        self.tables: dict[int, tuple[tuple[Hashable, ...], CostTable]] = {}
        self.mentions: dict[Hashable, set[int]] = defaultdict(set)
        self.sizes: dict[Hashable, int] = {}
        self.keys = count()
        self.constant = 0

    def add(self, variables: Sequence[Hashable], table: CostTable) -> None:
        """Add a cost; a variable may appear twice (a step that reads one buffer twice)."""
        if len(variables) == 2 and variables[0] == variables[1]:
            variables, table = variables[:1], np.ascontiguousarray(table.diagonal())
        kept = [axis for axis, size in enumerate(table.shape) if size > 1]
        for variable, size in zip(variables, table.shape, strict=True):
            self.sizes.setdefault(variable, size)
        if not kept:
            self.constant += int(table.reshape(-1)[0])
            return
        names = tuple(variables[axis] for axis in kept)
        key = next(self.keys)
        self.tables[key] = (names, table.reshape([table.shape[axis] for axis in kept]))
        for name in names:
            self.mentions[name].add(key)

    def neighbours(self, variable: Hashable) -> set[Hashable]:
        return {name for key in self.mentions[variable] for name in self.tables[key][0]} - {variable}

    def minimum(self, max_entries: int) -> int | None:
        rank = {variable: position for position, variable in enumerate(self.mentions)}
        queue = [(len(self.neighbours(variable)), rank[variable], variable) for variable in rank]
        heapq.heapify(queue)
        gone: set[Hashable] = set()
        while queue:
            degree, _, variable = heapq.heappop(queue)
            if variable in gone:
                continue
            around = self.neighbours(variable)
            if len(around) > degree:
                heapq.heappush(queue, (len(around), rank[variable], variable))
                continue
            if not self._eliminate(variable, sorted(around, key=rank.__getitem__), max_entries):
                return None
            gone.add(variable)
            for name in around:
                heapq.heappush(queue, (len(self.neighbours(name)), rank[name], name))
        return self.constant

    def _eliminate(self, variable: Hashable, around: list[Hashable], max_entries: int) -> bool:
        names = [*around, variable]
        shape = [self.sizes[name] for name in names]
        if math.prod(shape) > max_entries:
            return False
        total = np.zeros(shape, dtype=np.int64)
        for key in self.mentions.pop(variable):
            variables, table = self.tables.pop(key)
            order = sorted(range(len(variables)), key=lambda axis: names.index(variables[axis]))
            placed: list[Any] = [1] * len(names)
            for axis in order:
                placed[names.index(variables[axis])] = table.shape[axis]
            total += table.transpose(order).reshape(placed)
            for name in variables:
                if name != variable:
                    self.mentions[name].discard(key)
        self.add(around, np.minimum(total.min(axis=-1), FORBIDDEN))
        return True
