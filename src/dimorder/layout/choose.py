"""Decides how the solver is asked for a plan of a program, and how it is told that there is none."""

from __future__ import annotations

from dimorder.capture.captured import operator_name, where
from dimorder.errors import UnsupportedError
from dimorder.layout.problem import Extracted
from dimorder.planning.plan import LayoutPlan
from dimorder.planning.problem import InvalidChoice
from dimorder.planning.solve import solve


def choose(extracted: Extracted, max_rank: int | None) -> LayoutPlan:
    """The cheapest plan. Raises `UnsupportedError` where every one needs a transpose above `max_rank`."""
    try:
        return solve(extracted.problem)
    except InvalidChoice as error:
        raise _beyond_rank(extracted, max_rank) from error


def _beyond_rank(extracted: Extracted, max_rank: int | None) -> UnsupportedError:
    """Why there is no plan: some values cannot be brought from the order they are made in to a wanted one."""
    stuck = [
        f"{operator_name(info.root)} ({where(info.root)})"
        if info.root.op == "call_function"
        else f"input {info.root.name!r}"
        for info, buffer in zip(extracted.buffers, extracted.problem.buffers, strict=True)
        if None in buffer.exceptions.values()
    ]
    return UnsupportedError(
        " or ".join(stuck[:3]),
        f"its result is wanted in an order that takes a transpose of more than {max_rank} dimensions",
        "permute fewer dimensions at once, or choose another target",
    )
