"""Random layout problems for the planner's tests: small enough for `exhaustive`, odd enough to matter."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import permutations

from dimorder.planning.problem import Buffer, Config, Cost, LayoutProblem, Order, Step

ORDERS: tuple[Order, ...] = ("NCHW", "NHWC", "CHWN", "WHCN")


class Builder:
    """A problem under construction, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.units = ("bytes", "count", "constant_bytes")[: self.random.randint(1, 3)]
        self.orders = ORDERS[: self.random.choice((2, 3, 3, 4))]
        self.scale = self.random.choice((1, 1, 6, 1000))
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []

    def cost(self, most: int) -> Cost:
        return tuple(self.scale * self.random.randint(0, most) for _ in self.units)

    def buffer(self) -> int:
        pairs = list(permutations(self.orders, 2))
        cost = self.conversion_cost()
        priced = self.random.sample(pairs, self.random.choice((0, 0, 1, 2, len(pairs))))
        banned = self.random.sample(pairs, self.random.choice((0, 0, 0, 0, 1, 2)))
        exceptions = {pair: self.conversion_cost() for pair in priced} | dict.fromkeys(banned)
        self.buffers.append(Buffer(f"b{len(self.buffers)}", cost, exceptions))
        return len(self.buffers) - 1

    def conversion_cost(self) -> Cost:
        return (self.scale * self.random.choice((0, 1, 2, 3, 5, 9)), *self.cost(2)[1:])

    def step(self, reads: tuple[int, ...], configs: list[Config], writes: int = 1) -> tuple[int, ...]:
        """Add a step, with at most four of the configurations, and return what it writes."""
        written = tuple(self.buffer() for _ in range(writes))
        chosen = sorted(self.random.sample(range(len(configs)), min(len(configs), self.random.randint(1, 4))))
        name = f"op{len(self.steps)}"
        self.steps.append(Step(name, reads, written, tuple(configs[index] for index in chosen)))
        return written

    def source(self) -> int:
        return self.step((), [Config((), (order,), self.cost(1)) for order in self.orders])[0]

    def agnostic(self, *reads: int) -> int:
        zero = (0,) * len(self.units)
        configs = [Config((order,) * len(reads), (order,), zero) for order in self.orders]
        return self.step(reads, configs)[0]

    def relabel(self, read: int) -> int:
        images = self.random.sample(self.orders, len(self.orders))
        zero = (0,) * len(self.units)
        configs = [Config((a,), (b,), zero) for a, b in zip(self.orders, images, strict=True)]
        return self.step((read,), configs)[0]

    def anything(self, *reads: int, writes: int = 1) -> tuple[int, ...]:
        """Any orders at any cost."""
        configs = [
            Config(self.pick(len(reads)), self.pick(writes), self.cost(6))
            for _ in range(self.random.randint(2, 4))
        ]
        return self.step(reads, configs, writes)

    def pick(self, count: int) -> tuple[Order, ...]:
        return tuple(self.random.choice(self.orders) for _ in range(count))

    def problem(self) -> LayoutProblem:
        return LayoutProblem(self.units, tuple(self.buffers), tuple(self.steps), "complete")


def chain_with_skips(seed: int) -> LayoutProblem:
    """Steps one after the other, some of which also read something older, or one buffer twice."""
    b = Builder(seed)
    values = [b.source()]
    for _ in range(b.random.randint(2, 6)):
        reads = [values[-1]]
        if b.random.random() < 0.5:
            reads.append(b.random.choice(values))
        values.append(b.agnostic(*reads) if b.random.random() < 0.4 else b.anything(*reads)[0])
    b.anything(values[-1], writes=0)
    return b.problem()


def relabels(seed: int) -> LayoutProblem:
    """Orders that come back under other names before they meet again."""
    b = Builder(seed)
    values = [b.source()]
    for _ in range(b.random.randint(1, 3)):
        skip = values[-1]
        value = b.relabel(skip)
        if b.random.random() < 0.5:
            value = b.anything(value)[0]
        other = b.relabel(skip) if b.random.random() < 0.5 else skip
        values.append(b.agnostic(value, other))
    b.agnostic(values[-1], b.random.choice(values))
    return b.problem()


def fan_out(seed: int) -> LayoutProblem:
    """Buffers with many consumers, and steps with two results."""
    b = Builder(seed)
    values = [b.source(), *b.anything(writes=2)]
    for _ in range(b.random.randint(3, 5)):
        reads = b.random.choices(values[:3], k=b.random.randint(1, 3))
        values.extend(b.anything(*reads, writes=b.random.randint(0, 2)))
    b.anything(*values[-2:], writes=0)
    return b.problem()


def carried(seed: int) -> LayoutProblem:
    """Make a problem whose last steps write what its first steps read in the next run, in the same order."""
    b = Builder(seed)
    found = [b.source() for _ in range(b.random.randint(1, 2))]
    values = [*found, b.source()]
    for _ in range(b.random.randint(1, 3)):
        reads = b.random.choices(values, k=2)
        values.append(b.agnostic(*reads) if b.random.random() < 0.4 else b.anything(*reads)[0])
    zero = (0,) * len(b.units)
    for buffer in found:
        orders = b.random.sample(b.orders, b.random.randint(1, len(b.orders)))
        configs = tuple(Config((order,), (order,), zero) for order in orders)
        b.steps[buffer] = Step(f"state{buffer}", (b.random.choice(values),), (buffer,), configs, carries=True)
    return b.problem()


KINDS: tuple[Callable[[int], LayoutProblem], ...] = (chain_with_skips, relabels, fan_out)


def frustrated_triangle(weight: int = 2, copies: int = 1) -> LayoutProblem:
    """The least problem whose relaxation has a gap: three sinks, each wanting two of three buffers to differ.

    Each buffer may be produced in either order for nothing; a sink takes its two buffers in different
    orders. Two of three buffers always agree, so that one conversion is needed; the relaxation takes
    half of everything and pays nothing. Copies are independent.
    """
    buffers, steps = [], []
    for copy in range(copies):
        first = 3 * copy
        for index in range(3):
            buffers.append(Buffer(f"b{copy}.{index}", (weight,)))
            free = tuple(Config((), (order,), (0,)) for order in "AB")
            steps.append(Step(f"source{copy}.{index}", (), (first + index,), free))
        for index in range(3):
            reads = (first + index, first + (index + 1) % 3)
            configs = (Config(("A", "B"), (), (0,)), Config(("B", "A"), (), (0,)))
            steps.append(Step(f"sink{copy}.{index}", reads, (), configs))
    sources_first = sorted(steps, key=lambda step: bool(step.reads))
    return LayoutProblem(("bytes",), tuple(buffers), tuple(sources_first), "complete")
