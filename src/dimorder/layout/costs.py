"""Define what a plan is charged for: units, and the costs of conversions and configurations in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from dimorder.ops.problem_map import Arrangement, BufferInfo, Site
from dimorder.ops.relation import AxisOrder
from dimorder.planning.problem import Cost

Buffers = Sequence[BufferInfo]


@dataclass(frozen=True)
class Costs:
    """Functions that price a plan in `units`, which are compared lexicographically.

    Either `configuration` or `calls` prices the operators.

    Attributes:
        units: The units, the most important first.
        conversion: `conversion(buffer, from, to)` is the cost of converting a buffer, None if the target
            cannot. Buffers of one shape, type and division into axes cost the same.
        configuration: `configuration(site, arrangement, buffers)` is the cost of running an operator in an
            arrangement.
        calls: The cost of the physical calls that an arrangement writes, which are known for fixed sizes.
        alike: Whether all conversions of a buffer by one transpose cost the same: one of them is priced.
    """

    units: tuple[str, ...]
    conversion: Callable[[BufferInfo, AxisOrder, AxisOrder], Cost | None]
    configuration: Callable[[Site, Arrangement, Buffers], Cost] | None = None
    calls: Callable[[Sequence[Node]], Cost] | None = None
    alike: bool = False

    def __post_init__(self) -> None:
        if (self.configuration is None) == (self.calls is None):
            raise ValueError("configurations are priced by one of the two")


def counted(*, min_run: int = 1, short_runs: int = 2) -> Mapping[str, Costs]:
    """Return the objectives `bytes` and `count`, each of which breaks the other's ties.

    A piece that is cut or joined in runs of fewer than `min_run` elements costs twice its bytes. By count an
    operator with such pieces costs as much as `short_runs` conversions.

    >>> counted()["count"].units
    ('conversions', 'bytes')
    """

    def priced(units: tuple[str, str], order: Callable[[tuple[int, int]], Cost]) -> Costs:
        def conversion(buffer: BufferInfo, source: AxisOrder, target: AxisOrder) -> Cost:
            return order((buffer.nbytes, 1))

        def configuration(site: Site, arrangement: Arrangement, buffers: Buffers) -> Cost:
            moved = 2 * moved_in_short_runs(site, arrangement, buffers, min_run)
            return order((moved, short_runs if units[0] == "conversions" and moved else 0))

        return Costs(units, conversion, configuration, alike=True)

    return {
        "bytes": priced(("bytes", "conversions"), lambda cost: cost),
        "count": priced(("conversions", "bytes"), lambda cost: cost[::-1]),
    }


def moved_in_short_runs(site: Site, arrangement: Arrangement, buffers: Buffers, min_run: int) -> int:
    """Return the bytes of pieces that an operator cuts or joins in runs below `min_run` elements."""
    if site.kind != "indexed" or not any(_cuts(label) for tokens in site.tokens for label, _ in tokens):
        return 0
    held = [buffers[view.buffer] for view in site.views]
    whole = max(range(len(held)), key=lambda i: held[i].nbytes)
    pieces = [i for i in range(len(held)) if i != whole]
    return sum(held[i].nbytes for i in pieces if _run_length(site, arrangement, held[i], i) < min_run)


def _run_length(site: Site, arrangement: Arrangement, piece: BufferInfo, i: int) -> int:
    """Return how many elements of a piece are contiguous in the whole."""
    run = 1
    for token in reversed(arrangement.tokens):
        run *= math.prod(piece.tensor.sizes[a] for a in site.tokens[i].get(token, ()))
        if _cuts(token[0]):
            break
    return run


def _cuts(label: str) -> bool:
    return label.startswith("cut.") or label == "step"
