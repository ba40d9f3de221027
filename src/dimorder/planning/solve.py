"""Solve a layout problem: return the best plan and its certificate.

`milp` plans, and proves what it finds. The other solvers are baselines.
"""

from __future__ import annotations

from dataclasses import replace

from dimorder.planning.milp import LIMIT_S, milp
from dimorder.planning.plan import LayoutPlan
from dimorder.planning.problem import Conversion, InvalidChoice, LayoutProblem, Order


def solve(problem: LayoutProblem, *, time_limit_s: float = LIMIT_S) -> LayoutPlan:
    """Return the cheapest plan, unit by unit, with a proof for the first unit.

    If time runs out, this is the best plan found and the bound proven, with optimal=False.

    Args:
        problem: the problem.
        time_limit_s: seconds for one plan.

    Raises:
        InvalidChoice: if there is no plan.

    >>> from dimorder.planning.problem import Buffer, Config, Step
    >>> source = Step("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Step("output", (0,), (), (Config(("NCHW",), (), (9,)), Config(("NHWC",), (), (0,))))
    >>> plan = solve(LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete"))
    >>> plan.cost, plan.certificate.optimal
    ((8,), True)
    """
    return milp(problem, time_limit_s=time_limit_s)


def forbid(problem: LayoutProblem, buffer: int, from_order: Order, to_order: Order) -> LayoutProblem:
    """Return the same problem with one conversion of one buffer not offered.

    >>> from dimorder.planning.problem import Buffer, Config, Step
    >>> source = Step("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Step("output", (0,), (), (Config(("NCHW",), (), (9,)), Config(("NHWC",), (), (0,))))
    >>> problem = LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete")
    >>> solve(forbid(problem, 0, "NCHW", "NHWC")).cost
    (9,)
    """
    old = problem.buffers[buffer]
    new = replace(old, exceptions={**old.exceptions, (from_order, to_order): None})
    return replace(problem, buffers=(*problem.buffers[:buffer], new, *problem.buffers[buffer + 1 :]))


def solve_without(
    problem: LayoutProblem, conversion: Conversion, *, time_limit_s: float = LIMIT_S
) -> LayoutPlan | None:
    """Return the best plan if one conversion were not offered, which explains that conversion.

    None if nothing replaces it.

    >>> from dimorder.planning.problem import Buffer, Config, Step
    >>> source = Step("input", (), (0,), (Config((), ("NCHW",), (0,)),))
    >>> sink = Step("output", (0,), (), (Config(("NHWC",), (), (0,)),))
    >>> problem = LayoutProblem(("bytes",), (Buffer("x", (8,)),), (source, sink), "complete")
    >>> solve_without(problem, solve(problem).conversions[0]) is None
    True
    """
    without = forbid(problem, conversion.buffer, conversion.from_order, conversion.to_order)
    try:
        return solve(without, time_limit_s=time_limit_s)
    except InvalidChoice:
        return None
