"""How long the planner takes: real networks, ten of them chained, and synthetic wirings of six orders.

python -m benchmarks.planner [--repeats 3] [--only PATTERN] [--time-limit 60] [--out planner.json]
"""

from __future__ import annotations

import argparse
import fnmatch
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path

from benchmarks import record
from dimorder.planning.greedy import greedy
from dimorder.planning.plan import LayoutPlan
from dimorder.planning.problem import Buffer, Config, LayoutProblem, Step
from dimorder.planning.solve import solve

ORDERS = tuple(permutations("HWC"))
UNITS = ("bytes", "count")


class Network:
    """A network under construction: six orders, row-major inputs, seeded random costs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []

    def new_buffer(self) -> int:
        size = 4 * self.random.randint(1, 64) * self.random.choice((49, 196, 784, 3136))
        self.buffers.append(Buffer(f"b{len(self.buffers)}", (size, 1)))
        return len(self.buffers) - 1

    def source(self) -> int:
        written = self.new_buffer()
        self.steps.append(Step("input", (), (written,), (Config((), ORDERS[:1], (0, 0)),)))
        return written

    def agnostic(self, name: str, *reads: int) -> int:
        """Any order, the same for all operands and the result."""
        written = self.new_buffer()
        configs = tuple(Config((order,) * len(reads), (order,), (0, 0)) for order in ORDERS)
        self.steps.append(Step(name, reads, (written,), configs))
        return written

    def picky(self, name: str, read: int) -> int:
        """Reads and writes one order for nothing; the others cost what they cost."""
        written = self.new_buffer()
        fast = self.random.randrange(len(ORDERS))
        size = self.buffers[read].conversion_cost[0]
        configs = tuple(
            Config((order,), (order,), (0 if index == fast else self.random.randint(1, 8) * size // 8, 0))
            for index, order in enumerate(ORDERS)
        )
        self.steps.append(Step(name, (read,), (written,), configs))
        return written

    def relabel(self, name: str, read: int) -> int:
        """A free permute that keeps the memory: orders map to one another by a bijection."""
        written = self.new_buffer()
        renamed = dict(zip("HWC", self.random.choice(ORDERS), strict=True))
        configs = tuple(
            Config((order,), (tuple(renamed[axis] for axis in order),), (0, 0)) for order in ORDERS
        )
        self.steps.append(Step(name, (read,), (written,), configs))
        return written

    def problem(self, result: int) -> LayoutProblem:
        self.steps.append(Step("output", (result,), (), (Config(ORDERS[:1], (), (0, 0)),)))
        return LayoutProblem(UNITS, tuple(self.buffers), tuple(self.steps), "complete")


def resnet_like(steps: int) -> LayoutProblem:
    """Blocks of conv, relu, conv, add to the skip, relu."""
    network = Network(seed=steps)
    value = network.source()
    while len(network.steps) < steps:
        skip = value
        value = network.agnostic("relu", network.picky("conv", value))
        value = network.agnostic("add", network.picky("conv", value), skip)
        value = network.agnostic("relu", value)
    return network.problem(value)


def swin_like(steps: int) -> LayoutProblem:
    """Blocks with permutes: orders come back under other names before they meet the skip."""
    network = Network(seed=steps + 1)
    value = network.source()
    while len(network.steps) < steps:
        skip = value
        value = network.picky("attention", network.relabel("permute", network.picky("norm", value)))
        value = network.agnostic("add", network.relabel("permute", value), skip)
        skip = value
        value = network.agnostic("gelu", network.picky("linear", value))
        value = network.agnostic("add", network.picky("linear", value), skip)
    return network.problem(value)


def densenet_like(steps: int) -> LayoutProblem:
    """Blocks of eight layers, each of which reads the concatenation of all before it."""
    network = Network(seed=steps + 2)
    value = network.source()
    while len(network.steps) < steps:
        values = [value]
        for _ in range(8):
            joined = network.agnostic("cat", *values) if len(values) > 1 else value
            values.append(network.agnostic("relu", network.picky("conv", joined)))
        value = network.picky("pool", network.agnostic("cat", *values))
    return network.problem(value)


REAL = (
    "resnet18",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "shufflenet_v2_x1_0",
    "convnext_tiny",
    "densenet121",
    "fastvit_t8",
    "swin_t",
    "vit_b_16",
    "efficientnet_b0",
)


def real_problems() -> Iterator[tuple[str, LayoutProblem]]:
    """The problems of real networks for target xnnpack, contract in NCHW, batch 1."""
    import dimorder
    from tests.zoo import network

    for name in REAL:
        row = network(name)
        plan = dimorder.plan(row.make().eval(), row.inputs(), target="xnnpack")
        yield name, plan.extracted.problem


def chained(problems: Sequence[LayoutProblem]) -> LayoutProblem:
    """Chain many problems into one: the order of a result decides the order in which the next network starts.

    Each output and the input after it become one step. Its i-th configuration reads the i-th order that the
    result may have, and writes the i-th order of the next network's input.
    """
    buffers: list[Buffer] = []
    steps: list[Step] = []
    for problem in problems:
        offset = len(buffers)
        buffers += problem.buffers
        moved = [_shifted(step, offset) for step in problem.steps]
        if steps:
            result, start = steps.pop(), moved.pop(0)
            reads = _orders(steps, result.reads[0], start=result.configs[0].reads)
            writes = _orders(moved, start.writes[0], start=start.configs[0].writes)
            pairs = [
                (reads[i % len(reads)], writes[i % len(writes)]) for i in range(max(len(reads), len(writes)))
            ]
            zero = result.configs[0].cost
            link = tuple(Config((read,), (write,), zero) for read, write in pairs)
            steps.append(Step("link", result.reads, start.writes, link))
        steps += moved
    return LayoutProblem(problems[0].units, tuple(buffers), tuple(steps), "complete")


def _shifted(step: Step, offset: int) -> Step:
    reads, writes = (tuple(b + offset for b in side) for side in (step.reads, step.writes))
    return Step(step.name, reads, writes, step.configs)


def _orders(steps: Sequence[Step], buffer: int, start: tuple[object, ...]) -> list[object]:
    """The orders that any configuration reads or writes of a buffer, `start` first."""
    found = dict.fromkeys(start)
    for step in steps:
        for config in step.configs:
            sides = zip((*step.reads, *step.writes), (*config.reads, *config.writes), strict=True)
            found.update(dict.fromkeys(order for b, order in sides if b == buffer))
    return list(found)


def problems() -> Iterator[tuple[str, LayoutProblem]]:
    """Every problem of the benchmark, by name."""
    real = dict(real_problems())
    yield from real.items()
    copies = round(10_000 / sum(len(problem.steps) for problem in real.values()))
    yield "ten-chained-10000", chained(list(real.values()) * copies)
    for size in (400, 1_000, 10_000):
        for wiring in (resnet_like, swin_like, densenet_like):
            yield f"{wiring.__name__}-{size}", wiring(size)


def measure(name: str, problem: LayoutProblem, repeats: int, time_limit_s: float) -> dict[str, object]:
    """One row of the result: the median time of `repeats` runs, the plan's cost and its bound."""
    plans: list[LayoutPlan] = [solve(problem, time_limit_s=time_limit_s) for _ in range(repeats)]
    plan = plans[0]
    steps, configs = problem.size
    return {
        "name": name,
        "operators": steps,
        "configs": configs,
        "median_s": round(statistics.median(plan.seconds for plan in plans), 3),
        "cost": plan.cost,
        "lower_bound": plan.certificate.lower_bound,
        "optimal": plan.certificate.optimal,
        "solver": plan.certificate.solver,
        "conversions": len(plan.conversions),
        "greedy_over_plan": round(greedy(problem).cost[0] / max(1, plan.cost[0]), 3),
        "faults": plan.check(problem),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="*", help="a pattern of names, such as 'ten-*'")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per problem")
    parser.add_argument("--out", type=Path, help="write the rows, the machine and the command as JSON")
    options = parser.parse_args(arguments)
    rows = []
    print(
        f"{'problem':22} {'ops':>6} {'configs':>7} {'median s':>8} {'optimal':>7} {'greedy/plan':>11}  solver"
    )
    for name, problem in problems():
        if not fnmatch.fnmatch(name, options.only):
            continue
        row = measure(name, problem, options.repeats, options.time_limit)
        rows.append(row)
        print(
            f"{name:22} {row['operators']:6} {row['configs']:7} {row['median_s']:8} {row['optimal']!s:>7} "
            f"{row['greedy_over_plan']:11}  {row['solver']}",
            flush=True,
        )
    if options.out:
        record.write(options.out, "planner", ("numpy", "scipy"), rows=rows)
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
