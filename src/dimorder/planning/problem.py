"""Define the layout problem as plain data, and compute what a choice costs.

`evaluate` is the only place that knows what a plan is charged for.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Order = Hashable  # any hashable value; the planner only compares orders for equality
Cost = tuple[int, ...]  # lexicographic, one entry per unit of the problem


class InvalidChoice(ValueError):
    """A choice of configurations that is not a plan for its problem."""


@dataclass(frozen=True)
class Buffer:
    """Memory that has one order when produced, and may be converted; an exception of None is not offered.

    >>> buffer = Buffer("x", (8,), {("NCHW", "CHWN"): (9,), ("CHWN", "NCHW"): None})
    >>> buffer.cost("NCHW", "NHWC"), buffer.cost("NCHW", "CHWN"), buffer.cost("CHWN", "NCHW")
    ((8,), (9,), None)
    """

    name: str
    conversion_cost: Cost
    exceptions: Mapping[tuple[Any, Any], Cost | None] = field(default_factory=dict, hash=False)

    def cost(self, from_order: Order, to_order: Order) -> Cost | None:
        """Return what one conversion costs: nothing between equal orders, None if it is not offered."""
        if from_order == to_order:
            return (0,) * len(self.conversion_cost)
        return self.exceptions.get((from_order, to_order), self.conversion_cost)

    @property
    def costs(self) -> tuple[Cost, ...]:
        """Return every cost that a conversion may have."""
        return self.conversion_cost, *(cost for cost in self.exceptions.values() if cost is not None)


@dataclass(frozen=True)
class Config:
    """One way to run a step: an order per operand, an order per result, and its cost."""

    reads: tuple[Order, ...]
    writes: tuple[Order, ...]
    cost: Cost


@dataclass(frozen=True)
class Step:
    """A step, the indices of the buffers that it reads and writes, and its configurations, the default first.

    Inputs and constants are steps without reads, outputs are steps without writes. A step that `carries`
    reads what later steps write, and writes that for the next run of all steps.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    configs: tuple[Config, ...]
    carries: bool = False


@dataclass(frozen=True)
class LayoutProblem:
    """Steps over buffers, in topological order; exactly one step writes each buffer.

    `units` are those of costs, the most important first. `candidates` is "complete" if the configurations are
    all there are, "truncated" if a cap cut them. Raises `ValueError` if the problem is inconsistent.

    >>> row, col = (0, 1), (1, 0)
    >>> LayoutProblem(
    ...     units=("bytes",),
    ...     buffers=(Buffer("x", (8,)),),
    ...     steps=(
    ...         Step("input", (), (0,), (Config((), (row,), (0,)),)),
    ...         Step("output", (0,), (), (Config((col,), (), (0,)),)),
    ...     ),
    ...     candidates="complete",
    ... ).size
    (2, 2)
    """

    units: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    candidates: str

    def __post_init__(self) -> None:
        if not self.units or len(set(self.units)) < len(self.units):
            raise _fault("the problem", f"cost units {self.units}", "name at least one, each once")
        if self.candidates not in ("complete", "truncated"):
            raise _fault("the problem", f"candidates={self.candidates!r}", "say 'complete' or 'truncated'")
        for buffer in self.buffers:
            _check_buffer(buffer, len(self.units))
        written = [False] * len(self.buffers)
        for step in self.steps:
            _check_step(step, len(self.units), written)
        missing = [buffer.name for buffer, done in zip(self.buffers, written, strict=True) if not done]
        if missing:
            raise _fault(f"buffer {missing[0]!r}", "no step writes it", "add the step that does")

    @property
    def size(self) -> tuple[int, int]:
        """Return the numbers of steps and of configurations."""
        return len(self.steps), sum(len(step.configs) for step in self.steps)


@dataclass(frozen=True)
class Conversion:
    """A buffer converted from the order that step `producer` writes; the steps `consumers` share it."""

    buffer: int
    name: str
    from_order: Order
    to_order: Order
    cost: Cost
    consumers: tuple[int, ...]
    producer: int


@dataclass(frozen=True)
class Evaluation:
    """The total cost of a choice, and the conversions that it needs, by buffer, then first consumer."""

    cost: Cost
    conversions: tuple[Conversion, ...]


def evaluate(problem: LayoutProblem, choice: Sequence[int]) -> Evaluation:
    """Return the cost and the conversions of choosing configuration `choice[i]` for each step i.

    Raises `InvalidChoice` if the choice is not a plan.

    >>> row, col = (0, 1), (1, 0)
    >>> source = Step("input", (), (0,), (Config((), (row,), (0,)),))
    >>> sink = Step("output", (0,), (), (Config((row,), (), (5,)), Config((col,), (), (0,))))
    >>> problem = LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete")
    >>> evaluate(problem, (0, 0)).cost, evaluate(problem, (0, 1)).cost
    ((5,), (8,))
    """
    if len(choice) != len(problem.steps):
        raise InvalidChoice(
            _message("the choice", f"{len(choice)} entries", f"give {len(problem.steps)} entries")
        )
    produced: list[tuple[int, Order]] = [(-1, None)] * len(problem.buffers)
    wanted: list[dict[Order, list[int]]] = [{} for _ in problem.buffers]
    costs: list[Cost] = []
    for index, (step, chosen) in enumerate(zip(problem.steps, choice, strict=True)):
        if not 0 <= chosen < len(step.configs):
            count = len(step.configs)
            raise InvalidChoice(
                _message(f"step {step.name!r}", f"configuration {chosen}", f"choose one of its {count}")
            )
        config = step.configs[chosen]
        costs.append(config.cost)
        for buffer, order in zip(step.writes, config.writes, strict=True):
            produced[buffer] = (index, order)
        for buffer, order in zip(step.reads, config.reads, strict=True):
            consumers = wanted[buffer].setdefault(order, [])
            if index not in consumers[-1:]:
                consumers.append(index)
    conversions = tuple(_conversions(problem, produced, wanted))
    costs.extend(conversion.cost for conversion in conversions)
    return Evaluation(add_costs(costs, len(problem.units)), conversions)


def add_costs(costs: Iterable[Cost], units: int) -> Cost:
    """Return the sum of costs of `units` entries, unit by unit.

    >>> add_costs([(1, 2), (3, 4)], 2)
    (4, 6)
    """
    return tuple(map(sum, zip((0,) * units, *costs, strict=True)))


def unit_gcd(problem: LayoutProblem, unit: int) -> int:
    """Return the greatest common divisor of all costs in one unit, at least 1.

    >>> source = Step("input", (), (0,), (Config((), ("NCHW",), (12,)),))
    >>> unit_gcd(LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source,), "complete"), 0)
    4
    """
    costs = [cost[unit] for buffer in problem.buffers for cost in buffer.costs]
    costs.extend(config.cost[unit] for step in problem.steps for config in step.configs)
    return math.gcd(*costs) or 1


def _conversions(
    problem: LayoutProblem, produced: list[tuple[int, Order]], wanted: list[dict[Order, list[int]]]
) -> Iterable[Conversion]:
    for index, buffer in enumerate(problem.buffers):
        producer, order = produced[index]
        for target, consumers in wanted[index].items():
            if target == order:
                continue
            cost = buffer.cost(order, target)
            if cost is None:
                raise InvalidChoice(
                    _message(
                        f"buffer {buffer.name!r}, read by {problem.steps[consumers[0]].name!r}",
                        f"the conversion {order} -> {target} is not offered",
                        "choose another configuration for its producer or its consumer",
                    )
                )
            yield Conversion(index, buffer.name, order, target, cost, tuple(consumers), producer)


def _check_buffer(buffer: Buffer, units: int) -> None:
    where = f"buffer {buffer.name!r}"
    for cost in buffer.costs:
        _check_cost(where, cost, units)
    for from_order, to_order in buffer.exceptions:
        if from_order == to_order:
            raise _fault(where, f"a conversion {from_order} -> {to_order}", "leave it out: it costs nothing")


def _check_step(step: Step, units: int, written: list[bool]) -> None:
    """Check one step against the buffers written before it, and mark the buffers that it writes."""
    where = f"step {step.name!r}"
    for buffer in (*step.reads, *step.writes):
        if not 0 <= buffer < len(written):
            raise _fault(where, f"buffer index {buffer}", f"use an index below {len(written)}")
    for buffer in step.reads:
        if not written[buffer] and not step.carries:
            raise _fault(where, f"it reads buffer {buffer} before it is written", "sort the steps")
    for buffer in step.writes:
        if written[buffer]:
            raise _fault(where, f"buffer {buffer} is written twice", "give each result its own buffer")
        written[buffer] = True
    if not step.configs:
        raise _fault(where, "it has no configuration", "give it at least its default")
    for config in step.configs:
        found = (len(config.reads), len(config.writes))
        needed = (len(step.reads), len(step.writes))
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
