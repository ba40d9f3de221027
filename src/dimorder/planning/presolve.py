"""Operators merged exactly: a smaller problem with the same optimum, whose relaxation has fewer gaps.

This file decides what may be merged. A producer whose results have one and the same consumer becomes one
operator with it: each pair of their configurations, with the conversions between them, is a configuration.
Of those that read and write the same layouts the cheapest stays: whatever surrounds them, the difference is
the same. A configuration also goes if another one, with a conversion added for each operand and result in
which they differ, costs no more: conversions around the other one replace it, and what a plan pays already
can only get less. Neither changes the least cost in lexicographic order, so that a bound on the merged
problem is one on the original. (One step of non-serial dynamic programming: Bertelè and Brioschi, 1972.)
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dimorder.planning.problem import Config, Layout, LayoutProblem, Operator

Merges = tuple[tuple[int, int], ...]  # (producer, consumer); the merged operator goes by the consumer's index

# Merges beyond these make the linear programme slower than the gaps they close.
_MAX_PAIRS = 1600
_MAX_CONFIGS = 48

_Array = Any  # of integers
_Origin = tuple[tuple[int, int], ...]  # the original (operator, configuration) pairs


@dataclass(frozen=True)
class Merged:
    """A merged problem, its merges, and the original (operator, configuration) pairs it is made of."""

    problem: LayoutProblem
    merges: Merges
    origins: tuple[tuple[_Origin, ...], ...]

    def lift(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The choice for the original problem that a choice for the merged one stands for."""
        pairs = [
            pair for options, chosen in zip(self.origins, choice, strict=True) for pair in options[chosen]
        ]
        return tuple(config for _, config in sorted(pairs))


def merge(problem: LayoutProblem, merges: Iterable[tuple[int, int]]) -> Merged:
    """The problem after the given merges; ValueError if one of them is none.

    >>> from dimorder.planning.problem import Buffer
    >>> source = Operator("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Operator("output", (0,), (), (Config(("NHWC",), (), (1,)),))
    >>> small = merge(LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete"), [(0, 1)])
    >>> small.problem.operators[0].configs[0].cost, small.lift((0,))
    ((9,), (0, 0))
    """
    graph = _Graph(problem)
    for first, second in merges:
        if first not in graph.nodes or graph.partner(first) != second:
            raise ValueError(f"operator {first} cannot be merged into operator {second}")
        graph.replace(first, second, graph.joined(first, second))
    return graph.merged()


def merge_around(problem: LayoutProblem, seeds: Collection[int], time_limit_s: float = 30.0) -> Merged:
    """The problem after merging what lies around some operators, small ones first, while they stay small.

    >>> source = Operator("input", (), (), (Config((), (), (1,)),))
    >>> merge_around(LayoutProblem(("bytes",), (), (source,), "complete"), {0}).merges
    ()
    """
    deadline = time.perf_counter() + time_limit_s
    graph = _Graph(problem)
    grown = set(seeds)
    pairs: list[tuple[int, int, int]] = []

    def look_at(indices: Iterable[int]) -> None:
        for first in indices:
            second = graph.partner(first)
            if second is not None and (first in grown or second in grown):
                heapq.heappush(pairs, (graph.pairs(first, second), first, second))

    look_at(graph.nodes)
    while pairs and time.perf_counter() < deadline:
        size, first, second = heapq.heappop(pairs)
        if size > _MAX_PAIRS:
            break
        if first not in graph.nodes or graph.partner(first) != second or size != graph.pairs(first, second):
            continue
        node = graph.joined(first, second)
        if not 0 < len(node.origins) <= _MAX_CONFIGS:
            continue
        graph.replace(first, second, node)
        grown.add(second)
        look_at(sorted({second, *(graph.producer[buffer] for buffer in node.reads)}))
    return graph.merged()


@dataclass(frozen=True)
class _Node:
    """An operator, merged or not: a row of layout numbers and of costs per configuration."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    layouts: _Array  # configurations × (reads, then writes)
    costs: _Array  # units × configurations
    origins: tuple[_Origin, ...]


class _Graph:
    """The operators that are left, by the index of the last one in them."""

    def __init__(self, problem: LayoutProblem) -> None:
        self.problem = problem
        self.merges: list[tuple[int, int]] = []
        self.numbers: dict[Layout, int] = {}
        costs = [buffer.conversion_cost for buffer in problem.buffers]
        worst = sum(map(max, costs)) * len(problem.operators)
        worst += sum(max(config.cost) for operator in problem.operators for config in operator.configs)
        self.dtype: Any = np.int64 if worst < 2**62 else object
        self.conversion_costs = costs
        self.nodes = {index: self._node(index) for index in range(len(problem.operators))}
        self.producer = {buffer: index for index, node in self.nodes.items() for buffer in node.writes}
        self.consumers: dict[int, set[int]] = {buffer: set() for buffer in range(len(problem.buffers))}
        for index, node in self.nodes.items():
            for buffer in node.reads:
                self.consumers[buffer].add(index)
        self.unreachable = {
            index: {
                (self.numbers[source], self.numbers[target])
                for source, target in buffer.unreachable
                if source in self.numbers and target in self.numbers
            }
            for index, buffer in enumerate(problem.buffers)
            if buffer.unreachable
        }

    def _node(self, index: int) -> _Node:
        operator = self.problem.operators[index]
        layouts = [
            [self.numbers.setdefault(layout, len(self.numbers)) for layout in (*config.reads, *config.writes)]
            for config in operator.configs
        ]
        return _Node(
            operator.reads,
            operator.writes,
            np.array(layouts, dtype=np.int64).reshape(len(operator.configs), -1),
            np.array([config.cost for config in operator.configs], dtype=self.dtype).T,
            tuple(((index, config),) for config in range(len(operator.configs))),
        )

    def partner(self, index: int) -> int | None:
        """The one operator that consumes all results of another, if so."""
        found = {consumer for buffer in self.nodes[index].writes for consumer in self.consumers[buffer]}
        return found.pop() if len(found) == 1 else None

    def pairs(self, first: int, second: int) -> int:
        """How many pairs of configurations two operators have."""
        return len(self.nodes[first].origins) * len(self.nodes[second].origins)

    def joined(self, first: int, second: int) -> _Node:
        """What merging a producer into its consumer gives; without configurations if none is offered."""
        producer, consumer = self.nodes[first], self.nodes[second]
        costs, offered = self._pair_costs(producer, consumer)
        outside = [position for position, b in enumerate(consumer.reads) if b not in producer.writes]
        kept = [*outside, *range(len(consumer.reads), consumer.layouts.shape[1])]
        before, after = producer.layouts[:, : len(producer.reads)], consumer.layouts[:, kept]
        width = len(consumer.origins)
        kinds = _kinds(before)[:, None] * width + _kinds(after)[None, :]
        flat = np.flatnonzero(offered)
        costs, kinds = costs.reshape(len(costs), -1)[:, flat], kinds.ravel()[flat]
        order = np.lexsort((*costs[::-1], kinds))  # by kind, then cost, then index
        cheapest = order[np.flatnonzero(np.diff(kinds[order], prepend=-1))]
        made, wanted = np.divmod(flat[cheapest], width)
        return self._slim(
            _Node(
                producer.reads + tuple(consumer.reads[position] for position in outside),
                consumer.writes,
                np.hstack([before[made], after[wanted]]),
                costs[:, cheapest],
                tuple(
                    producer.origins[i] + consumer.origins[j]
                    for i, j in zip(made.tolist(), wanted.tolist(), strict=True)
                ),
            )
        )

    def _pair_costs(self, producer: _Node, consumer: _Node) -> tuple[_Array, _Array]:
        """What each pair of configurations costs with the conversions between them, and which are offered."""
        costs = producer.costs[:, :, None] + consumer.costs[:, None, :]
        offered = np.ones(costs.shape[1:], dtype=bool)
        for slot, buffer in enumerate(producer.writes):
            produced = producer.layouts[:, len(producer.reads) + slot]
            seen: list[_Array] = []
            for position, read in enumerate(consumer.reads):
                if read != buffer:
                    continue
                wanted = consumer.layouts[:, position]
                converted = produced[:, None] != wanted[None, :]
                for earlier in seen:
                    converted &= (wanted != earlier)[None, :]
                seen.append(wanted)
                self._charge(costs, converted, buffer)
                for source, target in self.unreachable.get(buffer, ()):
                    if source != target:
                        offered &= ~((produced == source)[:, None] & (wanted == target)[None, :])
        return costs, offered

    def _slim(self, node: _Node) -> _Node:
        """Without the configurations that conversions around others replace, and without repeated reads."""
        buffers = (*node.reads, *node.writes)
        order = np.lexsort(tuple(node.costs[::-1]))
        layouts, costs = node.layouts[order], node.costs[:, order]
        around = np.repeat(costs[:, :, None], len(order), axis=2)
        fixed = np.zeros(around.shape[1:], dtype=bool)
        for column, buffer in enumerate(buffers):
            differs = layouts[:, None, column] != layouts[None, :, column]
            if buffer in self.unreachable:
                fixed |= differs
            self._charge(around, differs, buffer)
        replaced = np.triu(_at_most(around, costs[:, None, :]) & ~fixed, 1).any(axis=0)
        kept = order[~replaced]
        layouts = node.layouts[kept]
        columns = [
            column
            for column, buffer in enumerate(buffers)
            if column >= len(node.reads)
            or not any(
                buffers[earlier] == buffer and (layouts[:, earlier] == layouts[:, column]).all()
                for earlier in range(column)
            )
        ]
        reads = tuple(buffers[column] for column in columns if column < len(node.reads))
        origins = tuple(node.origins[index] for index in kept.tolist())
        return _Node(reads, node.writes, layouts[:, columns], node.costs[:, kept], origins)

    def _charge(self, costs: _Array, where: _Array, buffer: int) -> None:
        """Add one conversion of a buffer to some of the costs, unit by unit."""
        for unit, cost in enumerate(self.conversion_costs[buffer]):
            if cost:
                costs[unit] += where * cost

    def replace(self, first: int, second: int, node: _Node) -> None:
        """Put a merged operator in the place of both."""
        self.merges.append((first, second))
        for buffer in self.nodes[first].reads:
            self.consumers[buffer].discard(first)
        for buffer in self.nodes.pop(first).writes:
            del self.consumers[buffer], self.producer[buffer]
        self.nodes[second] = node
        for buffer in node.reads:
            self.consumers[buffer].add(second)

    def merged(self) -> Merged:
        """What is left, as a problem."""
        left = sorted(self.consumers)
        number = {buffer: index for index, buffer in enumerate(left)}
        layouts = tuple(self.numbers)
        indices = sorted(self.nodes)
        operators = []
        for index in indices:
            node = self.nodes[index]
            configs = tuple(
                Config(
                    tuple(layouts[i] for i in row[: len(node.reads)]),
                    tuple(layouts[i] for i in row[len(node.reads) :]),
                    tuple(cost),
                )
                for row, cost in zip(node.layouts.tolist(), node.costs.T.tolist(), strict=True)
            )
            reads = tuple(number[buffer] for buffer in node.reads)
            writes = tuple(number[buffer] for buffer in node.writes)
            operators.append(Operator(self.problem.operators[index].name, reads, writes, configs))
        problem = LayoutProblem(
            self.problem.units,
            tuple(self.problem.buffers[buffer] for buffer in left),
            tuple(operators),
            self.problem.candidates,
        )
        return Merged(problem, tuple(self.merges), tuple(self.nodes[index].origins for index in indices))


def _kinds(rows: _Array) -> _Array:
    """A number for each row, the same for equal rows, smaller than the number of rows."""
    seen: dict[tuple[int, ...], int] = {}
    return np.array([seen.setdefault(tuple(row), len(seen)) for row in rows.tolist()], dtype=np.int64)


def _at_most(left: _Array, right: _Array) -> _Array:
    """Whether costs are lexicographically at most others, along the first axis."""
    result = left[-1] <= right[-1]
    for ours, theirs in zip(left[-2::-1], right[-2::-1], strict=True):
        result = (ours < theirs) | ((ours == theirs) & result)
    return result
