"""Ask the solver for a plan of a program, and report an error if there is none."""

from __future__ import annotations

from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import operator_name, where
from dimorder.layout.problem import Extracted
from dimorder.planning.plan import LayoutPlan
from dimorder.planning.problem import InvalidChoice
from dimorder.planning.solve import solve


def choose(extracted: Extracted, max_rank: int | None) -> LayoutPlan:
    """Return the cheapest plan.

    Args:
        extracted: the layout problem of a program.
        max_rank: the highest rank of a transpose on the target, for the error.

    Raises:
        UnsupportedError: if every plan needs a transpose of a higher rank.
    """
    try:
        return solve(extracted.problem)
    except InvalidChoice as error:
        raise _beyond_rank(extracted, max_rank) from error


def _beyond_rank(extracted: Extracted, max_rank: int | None) -> UnsupportedError:
    """Return the error for values that cannot be converted from their order to a wanted one."""
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
