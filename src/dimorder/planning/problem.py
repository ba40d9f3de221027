"""The layout problem as plain data, and what a choice costs.

This file decides what a plan is charged for: `evaluate` is the only place that knows.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

Layout = Hashable  # any hashable value; the planner only compares layouts for equality
Cost = tuple[int, ...]  # lexicographic, one entry per unit of the problem


class InvalidChoice(ValueError):
    """A choice of configurations that is no plan for its problem."""


@dataclass(frozen=True)
class Buffer:
    """One piece of memory that has one layout when produced and may be converted to others.

    `conversion_cost` is what one conversion to one other layout costs. `unreachable` lists the (from, to)
    conversions that are not offered.
    """

    name: str
    conversion_cost: Cost
    unreachable: frozenset[tuple[Layout, Layout]] = frozenset()


@dataclass(frozen=True)
class Config:
    """One way to run an operator: a layout per operand, a layout per result, and its cost."""

    reads: tuple[Layout, ...]
    writes: tuple[Layout, ...]
    cost: Cost


@dataclass(frozen=True)
class Operator:
    """An operator with its buffers (indices; one buffer may be read twice) and its configurations.

    `configs[0]` is the default. Inputs and constants are operators without reads, outputs operators without
    writes.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    configs: tuple[Config, ...]


@dataclass(frozen=True)
class LayoutProblem:
    """Operators in topological order over buffers, each of which exactly one operator writes.

    `candidates` is "complete" if the configurations are all there are, "truncated" if a cap cut them. A wrong
    problem raises ValueError.

    >>> row, col = (0, 1), (1, 0)
    >>> LayoutProblem(
    ...     units=("bytes",),
    ...     buffers=(Buffer("x", (8,)),),
    ...     operators=(
    ...         Operator("input", (), (0,), (Config((), (row,), (0,)),)),
    ...         Operator("output", (0,), (), (Config((col,), (), (0,)),)),
    ...     ),
    ...     candidates="complete",
    ... ).size
    (2, 2)
    """

    units: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    operators: tuple[Operator, ...]
    candidates: str

    def __post_init__(self) -> None:
        if not self.units or len(set(self.units)) < len(self.units):
            raise _fault("the problem", f"cost units {self.units}", "name at least one, each once")
        if self.candidates not in ("complete", "truncated"):
            raise _fault("the problem", f"candidates={self.candidates!r}", "say 'complete' or 'truncated'")
        for buffer in self.buffers:
            _check_cost(f"buffer {buffer.name!r}", buffer.conversion_cost, len(self.units))
        written = [False] * len(self.buffers)
        for operator in self.operators:
            _check_operator(operator, len(self.units), written)
        missing = [buffer.name for buffer, done in zip(self.buffers, written, strict=True) if not done]
        if missing:
            raise _fault(f"buffer {missing[0]!r}", "no operator writes it", "add the operator that does")

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of operators and of configurations."""
        return len(self.operators), sum(len(operator.configs) for operator in self.operators)


@dataclass(frozen=True)
class Conversion:
    """Buffer `buffer` (called `name`) converted once from the layout `producer` writes to another.

    `producer` and `consumers` are operator indices; the consumers, in program order, share it.
    """

    buffer: int
    name: str
    from_layout: Layout
    to_layout: Layout
    cost: Cost
    consumers: tuple[int, ...]
    producer: int


@dataclass(frozen=True)
class Evaluation:
    """What a choice costs in all, and the conversions it needs, by buffer, then first consumer."""

    cost: Cost
    conversions: tuple[Conversion, ...]


def evaluate(problem: LayoutProblem, choice: Sequence[int]) -> Evaluation:
    """What choosing configuration `choice[i]` for each operator i costs; InvalidChoice if it is no plan.

    >>> row, col = (0, 1), (1, 0)
    >>> source = Operator("input", (), (0,), (Config((), (row,), (0,)),))
    >>> sink = Operator("output", (0,), (), (Config((row,), (), (5,)), Config((col,), (), (0,))))
    >>> problem = LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete")
    >>> evaluate(problem, (0, 0)).cost, evaluate(problem, (0, 1)).cost
    ((5,), (8,))
    """
    if len(choice) != len(problem.operators):
        raise InvalidChoice(
            _message("the choice", f"{len(choice)} entries", f"give {len(problem.operators)} entries")
        )
    produced: list[tuple[int, Layout]] = [(-1, None)] * len(problem.buffers)
    wanted: list[dict[Layout, list[int]]] = [{} for _ in problem.buffers]
    costs: list[Cost] = []
    for index, (operator, chosen) in enumerate(zip(problem.operators, choice, strict=True)):
        if not 0 <= chosen < len(operator.configs):
            count = len(operator.configs)
            raise InvalidChoice(
                _message(
                    f"operator {operator.name!r}", f"configuration {chosen}", f"choose one of its {count}"
                )
            )
        config = operator.configs[chosen]
        costs.append(config.cost)
        for buffer, layout in zip(operator.writes, config.writes, strict=True):
            produced[buffer] = (index, layout)
        for buffer, layout in zip(operator.reads, config.reads, strict=True):
            consumers = wanted[buffer].setdefault(layout, [])
            if index not in consumers[-1:]:
                consumers.append(index)
    conversions = tuple(_conversions(problem, produced, wanted))
    costs.extend(conversion.cost for conversion in conversions)
    return Evaluation(add_costs(costs, len(problem.units)), conversions)


def add_costs(costs: Iterable[Cost], units: int) -> Cost:
    """The sum of costs of `units` entries, unit by unit.

    >>> add_costs([(1, 2), (3, 4)], 2)
    (4, 6)
    """
    total = [0] * units
    for cost in costs:
        for unit, value in enumerate(cost):
            total[unit] += value
    return tuple(total)


def unit_gcd(problem: LayoutProblem, unit: int) -> int:
    """The greatest common divisor of all costs in one unit, at least 1.

    >>> source = Operator("input", (), (0,), (Config((), ("NCHW",), (12,)),))
    >>> unit_gcd(LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source,), "complete"), 0)
    4
    """
    costs = [buffer.conversion_cost[unit] for buffer in problem.buffers]
    costs.extend(config.cost[unit] for operator in problem.operators for config in operator.configs)
    return math.gcd(*costs) or 1


def _conversions(
    problem: LayoutProblem, produced: list[tuple[int, Layout]], wanted: list[dict[Layout, list[int]]]
) -> Iterable[Conversion]:
    for index, buffer in enumerate(problem.buffers):
        producer, layout = produced[index]
        for target, consumers in wanted[index].items():
            if target == layout:
                continue
            if (layout, target) in buffer.unreachable:
                raise InvalidChoice(
                    _message(
                        f"buffer {buffer.name!r}, read by {problem.operators[consumers[0]].name!r}",
                        f"the conversion {layout} -> {target} is not offered",
                        "choose another configuration for its producer or its consumer",
                    )
                )
            yield Conversion(
                index, buffer.name, layout, target, buffer.conversion_cost, tuple(consumers), producer
            )


def _check_operator(operator: Operator, units: int, written: list[bool]) -> None:
    """Check one operator against the buffers written before it, and mark those it writes."""
    where = f"operator {operator.name!r}"
    for buffer in (*operator.reads, *operator.writes):
        if not 0 <= buffer < len(written):
            raise _fault(where, f"buffer index {buffer}", f"use an index below {len(written)}")
    for buffer in operator.reads:
        if not written[buffer]:
            raise _fault(where, f"it reads buffer {buffer} before it is written", "sort the operators")
    for buffer in operator.writes:
        if written[buffer]:
            raise _fault(where, f"buffer {buffer} is written twice", "give each result its own buffer")
        written[buffer] = True
    if not operator.configs:
        raise _fault(where, "it has no configuration", "give it at least its default")
    for config in operator.configs:
        found = (len(config.reads), len(config.writes))
        needed = (len(operator.reads), len(operator.writes))
        if found != needed:
            raise _fault(where, f"a configuration of {found} reads and writes", f"it needs {needed}")
        _check_cost(where, config.cost, units)


def _check_cost(where: str, cost: Cost, units: int) -> None:
    if len(cost) != units:
        raise _fault(where, f"cost {cost}", f"give one integer for each of the {units} units")
    if any(type(value) is not int or value < 0 for value in cost):
        raise _fault(where, f"cost {cost}", "give integers that are not negative")


def _fault(where: str, found: str, remedy: str) -> ValueError:
    return ValueError(_message(where, found, remedy))


def _message(where: str, found: str, remedy: str) -> str:
    return f"layout problem: {where}\n  found: {found}\n  to do: {remedy}"
