"""How long the planner takes: synthetic networks of 1,000 and 10,000 operators with six layouts each.

python benchmarks/planner.py [--repeats 3] [--only NAME] [--time-limit 60] [--out planner.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path

import numpy
import scipy

from dimorder.planning import Buffer, Config, LayoutPlan, LayoutProblem, Operator, solve
from dimorder.planning.greedy import greedy

LAYOUTS = tuple(permutations("HWC"))
UNITS = ("bytes", "count")


class Network:
    """A network under construction: six layouts, row-major inputs, seeded random costs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.buffers: list[Buffer] = []
        self.operators: list[Operator] = []

    def new_buffer(self) -> int:
        size = 4 * self.random.randint(1, 64) * self.random.choice((49, 196, 784, 3136))
        self.buffers.append(Buffer(f"b{len(self.buffers)}", (size, 1)))
        return len(self.buffers) - 1

    def source(self) -> int:
        written = self.new_buffer()
        self.operators.append(Operator("input", (), (written,), (Config((), LAYOUTS[:1], (0, 0)),)))
        return written

    def agnostic(self, name: str, *reads: int) -> int:
        """Any layout, the same for all operands and the result."""
        written = self.new_buffer()
        configs = tuple(Config((layout,) * len(reads), (layout,), (0, 0)) for layout in LAYOUTS)
        self.operators.append(Operator(name, reads, (written,), configs))
        return written

    def picky(self, name: str, read: int) -> int:
        """Reads and writes one layout for nothing; the others cost what they cost."""
        written = self.new_buffer()
        fast = self.random.randrange(len(LAYOUTS))
        size = self.buffers[read].conversion_cost[0]
        configs = tuple(
            Config((layout,), (layout,), (0 if index == fast else self.random.randint(1, 8) * size // 8, 0))
            for index, layout in enumerate(LAYOUTS)
        )
        self.operators.append(Operator(name, (read,), (written,), configs))
        return written

    def relabel(self, name: str, read: int) -> int:
        """A free permute that keeps the memory: layouts map to one another by a bijection."""
        written = self.new_buffer()
        order = self.random.choice(LAYOUTS)
        renamed = dict(zip("HWC", order, strict=True))
        configs = tuple(
            Config((layout,), (tuple(renamed[axis] for axis in layout),), (0, 0)) for layout in LAYOUTS
        )
        self.operators.append(Operator(name, (read,), (written,), configs))
        return written

    def problem(self, result: int) -> LayoutProblem:
        self.operators.append(Operator("output", (result,), (), (Config(LAYOUTS[:1], (), (0, 0)),)))
        return LayoutProblem(UNITS, tuple(self.buffers), tuple(self.operators), "complete")


def resnet_like(operators: int) -> LayoutProblem:
    """Blocks of conv, relu, conv, add to the skip, relu."""
    network = Network(seed=operators)
    value = network.source()
    while len(network.operators) < operators:
        skip = value
        value = network.agnostic("relu", network.picky("conv", value))
        value = network.agnostic("add", network.picky("conv", value), skip)
        value = network.agnostic("relu", value)
    return network.problem(value)


def swin_like(operators: int) -> LayoutProblem:
    """Blocks with permutes: layouts come back under other names before they meet the skip."""
    network = Network(seed=operators + 1)
    value = network.source()
    while len(network.operators) < operators:
        skip = value
        value = network.picky("attention", network.relabel("permute", network.picky("norm", value)))
        value = network.agnostic("add", network.relabel("permute", value), skip)
        skip = value
        value = network.agnostic("gelu", network.picky("linear", value))
        value = network.agnostic("add", network.picky("linear", value), skip)
    return network.problem(value)


def densenet_like(operators: int) -> LayoutProblem:
    """Blocks of eight layers, each of which reads the concatenation of all before it."""
    network = Network(seed=operators + 2)
    value = network.source()
    while len(network.operators) < operators:
        values = [value]
        for _ in range(8):
            joined = network.agnostic("cat", *values) if len(values) > 1 else value
            values.append(network.agnostic("relu", network.picky("conv", joined)))
        value = network.picky("pool", network.agnostic("cat", *values))
    return network.problem(value)


def problems() -> Iterator[tuple[str, LayoutProblem]]:
    """Every problem of the benchmark, by name."""
    for size in (400, 1_000, 10_000):
        for wiring in (resnet_like, swin_like, densenet_like):
            yield f"{wiring.__name__}-{size}", wiring(size)


def measure(name: str, problem: LayoutProblem, repeats: int, time_limit_s: float) -> dict[str, object]:
    """One row of the result: the median time of `repeats` runs, the plan's cost and its bound."""
    plans: list[LayoutPlan] = [solve(problem, time_limit_s=time_limit_s) for _ in range(repeats)]
    plan = plans[0]
    operators, configs = problem.size
    return {
        "name": name,
        "operators": operators,
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
    parser.add_argument("--only", default="", help="part of a problem's name")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per problem")
    parser.add_argument("--out", type=Path, help="write the rows, the machine and the command as JSON")
    options = parser.parse_args(arguments)
    rows = []
    print(
        f"{'problem':22} {'ops':>6} {'configs':>7} {'median s':>8} {'optimal':>7} {'greedy/plan':>11}  solver"
    )
    for name, problem in problems():
        if options.only not in name:
            continue
        row = measure(name, problem, options.repeats, options.time_limit)
        rows.append(row)
        print(
            f"{name:22} {row['operators']:6} {row['configs']:7} {row['median_s']:8} {row['optimal']!s:>7} "
            f"{row['greedy_over_plan']:11}  {row['solver']}",
            flush=True,
        )
    if options.out:
        machine = {
            "platform": platform.platform(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "scipy": scipy.__version__,
        }
        record = {"command": ["python", *sys.argv], "machine": machine, "rows": rows}
        options.out.write_text(json.dumps(record, indent=2) + "\n")
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
