"""Solve a small problem by trying every choice; `solve` must agree, and shares no code with this."""

from __future__ import annotations

import time

from dimorder.planning.plan import LayoutPlan, make_plan
from dimorder.planning.problem import Config, Cost, InvalidChoice, LayoutProblem, Step, add_costs

_LATER = object()  # in place of the produced order: a later step produces the buffer
# For each buffer: the produced order, then the orders that it has been converted to, or will have to be.
_Present = tuple[tuple[object, ...], ...]


def exhaustive(problem: LayoutProblem) -> LayoutPlan:
    """Return the lexicographically cheapest plan; of several, the first in the order of configurations.

    The search goes in program order, and leaves a branch once it costs more than the best plan (costs never
    shrink). It is exponential: for at most some ten steps.

    """
    started = time.perf_counter()
    best: tuple[Cost, tuple[int, ...]] | None = None
    pending: list[tuple[Cost, tuple[int, ...], _Present]] = [
        ((0,) * len(problem.units), (), ((_LATER,),) * len(problem.buffers))
    ]
    while pending:
        cost, choice, present = pending.pop()
        if best is not None and cost >= best[0]:
            continue
        if len(choice) == len(problem.steps):
            best = (cost, choice)
            continue
        step = problem.steps[len(choice)]
        for index in reversed(range(len(step.configs))):
            ran = _run(problem, step, step.configs[index], present)
            if ran is not None:
                pending.append((add_costs([cost, ran[0]], len(problem.units)), (*choice, index), ran[1]))
    if best is None:
        raise InvalidChoice(
            "exhaustive plan: the problem\n  found: no choice avoids the conversions that are not offered\n"
            "  to do: offer more conversions or configurations"
        )
    return make_plan(problem, best[1], solver="exhaustive", seconds=time.perf_counter() - started)


def _run(
    problem: LayoutProblem, step: Step, config: Config, present: _Present
) -> tuple[Cost, _Present] | None:
    """Return what a configuration adds to the cost if it runs next, and the orders that are then present.

    None if it needs a conversion that is not offered.
    """
    after = list(present)
    costs: list[Cost | None] = [config.cost]
    for index, order in zip(step.reads, config.reads, strict=True):
        if order in after[index]:
            continue
        after[index] = (*after[index], order)
        if after[index][0] is not _LATER:
            costs.append(problem.buffers[index].cost(after[index][0], order))
    for index, order in zip(step.writes, config.writes, strict=True):
        wanted = tuple(other for other in after[index][1:] if other != order)
        costs += [problem.buffers[index].cost(order, other) for other in wanted]
        after[index] = (order, *wanted)
    offered = [cost for cost in costs if cost is not None]
    if len(offered) < len(costs):
        return None
    return add_costs(offered, len(problem.units)), tuple(after)
