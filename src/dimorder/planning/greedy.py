"""Plan without looking ahead: in program order, each step takes what is cheapest at that point.

`solve` begins with this plan, and is measured against it.
"""

from __future__ import annotations

import time

from dimorder.planning.plan import LayoutPlan, make_plan
from dimorder.planning.problem import Config, Cost, InvalidChoice, LayoutProblem, Order, Step, add_costs


def greedy(problem: LayoutProblem) -> LayoutPlan:
    """Return a plan that is made without looking ahead; raises `InvalidChoice` if none is reached so.

    >>> from dimorder.planning.problem import Buffer, Config, Step
    >>> source = Step("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Step("output", (0,), (), (Config(("NCHW",), (), (5,)), Config(("NHWC",), (), (0,))))
    >>> greedy(LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete")).choice
    (0, 0)
    """
    started = time.perf_counter()
    present: list[list[Order]] = [[] for _ in problem.buffers]  # the produced order, then others
    choice = []
    for step in problem.steps:
        prices = [_price(problem, step, config, present) for config in step.configs]
        offered = [(price, index) for index, price in enumerate(prices) if price is not None]
        if not offered:
            raise InvalidChoice(
                f"greedy plan: step {step.name!r}\n  found: no configuration can be reached\n"
                "  to do: use solve, which looks ahead"
            )
        index = min(offered)[1]
        choice.append(index)
        for buffer, order in zip(step.reads, step.configs[index].reads, strict=True):
            if present[buffer] and order not in present[buffer]:
                present[buffer].append(order)
        for buffer, order in zip(step.writes, step.configs[index].writes, strict=True):
            present[buffer].append(order)
    return make_plan(problem, choice, solver="greedy", seconds=time.perf_counter() - started)


def _price(problem: LayoutProblem, step: Step, config: Config, present: list[list[Order]]) -> Cost | None:
    """Return what a configuration costs beyond what is present, or None if a conversion is not offered."""
    needed = {
        (buffer, order)
        for buffer, order in zip(step.reads, config.reads, strict=True)
        if present[buffer] and order not in present[buffer]
    }
    conversions = [problem.buffers[buffer].cost(present[buffer][0], order) for buffer, order in needed]
    offered = [cost for cost in conversions if cost is not None]
    if len(offered) < len(conversions):
        return None
    return add_costs([config.cost, *offered], len(problem.units))
