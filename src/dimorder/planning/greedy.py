"""The baseline: operators in program order take the configuration that is cheapest there and then.

This file decides nothing about plans that ship; it is what `solve` is measured against.
"""

from __future__ import annotations

import time

from dimorder.planning.plan import LayoutPlan, make_plan
from dimorder.planning.problem import Config, Cost, InvalidChoice, Layout, LayoutProblem, Operator, add_costs


def greedy(problem: LayoutProblem) -> LayoutPlan:
    """A plan made without looking ahead; InvalidChoice if it runs into conversions that are not offered.

    >>> from dimorder.planning.problem import Buffer, Config, Operator
    >>> source = Operator("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Operator("output", (0,), (), (Config(("NCHW",), (), (5,)), Config(("NHWC",), (), (0,))))
    >>> greedy(LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete")).choice
    (0, 0)
    """
    started = time.perf_counter()
    present: list[list[Layout]] = [
        [] for _ in problem.buffers
    ]  # the produced layout, then those converted to
    choice = []
    for operator in problem.operators:
        prices = [_price(problem, operator, config, present) for config in operator.configs]
        offered = [(price, index) for index, price in enumerate(prices) if price is not None]
        if not offered:
            raise InvalidChoice(
                f"greedy plan: operator {operator.name!r}\n  found: no configuration can be reached\n"
                "  to do: use solve, which looks ahead"
            )
        index = min(offered)[1]
        choice.append(index)
        for buffer, layout in zip(operator.reads, operator.configs[index].reads, strict=True):
            if layout not in present[buffer]:
                present[buffer].append(layout)
        for buffer, layout in zip(operator.writes, operator.configs[index].writes, strict=True):
            present[buffer].append(layout)
    return make_plan(problem, choice, solver="greedy", seconds=time.perf_counter() - started)


def _price(
    problem: LayoutProblem, operator: Operator, config: Config, present: list[list[Layout]]
) -> Cost | None:
    """What a configuration costs on top of what is there, None if a conversion is not offered."""
    needed = {
        (buffer, layout)
        for buffer, layout in zip(operator.reads, config.reads, strict=True)
        if layout not in present[buffer]
    }
    if any((present[buffer][0], layout) in problem.buffers[buffer].unreachable for buffer, layout in needed):
        return None
    conversions = [problem.buffers[buffer].conversion_cost for buffer, _ in needed]
    return add_costs([config.cost, *conversions], len(problem.units))
