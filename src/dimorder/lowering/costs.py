"""Decides in what a plan is charged: a unit, and what conversions and configurations cost in it.

A target has one such table per objective. What is not measured by a target is counted: bytes moved, or
conversions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dimorder.lowering.sites import Arrangement, AxisOrder, BufferInfo, Site
from dimorder.planning.problem import Cost

Buffers = Sequence[BufferInfo]


@dataclass(frozen=True)
class Costs:
    """What a plan costs, lexicographically in `units`.

    `conversion(buffer, from, to)` is what it costs to convert a buffer, None where the target cannot;
    `configuration(site, arrangement, buffers)` what it costs to run an operator so.
    """

    units: tuple[str, ...]
    conversion: Callable[[BufferInfo, AxisOrder, AxisOrder], Cost | None]
    configuration: Callable[[Site, Arrangement, Buffers], Cost]


def counted(*, min_run: int = 1) -> Mapping[str, Costs]:
    """The objectives `bytes` and `count`, each of which breaks the other's ties.

    Cutting and joining in runs of fewer than `min_run` elements moves the result twice over.

    >>> counted()["count"].units
    ('conversions', 'bytes')
    """

    def priced(units: tuple[str, str], order: Callable[[tuple[int, int]], Cost]) -> Costs:
        def conversion(buffer: BufferInfo, source: AxisOrder, target: AxisOrder) -> Cost:
            return order((buffer.nbytes, 1))

        def configuration(site: Site, arrangement: Arrangement, buffers: Buffers) -> Cost:
            run = run_length(site, arrangement, buffers)
            if run is None or run >= min_run:
                return (0, 0)
            return order(
                (2 * max(buffers[view.buffer].nbytes for view in site.views), 0 if units[0] == "bytes" else 2)
            )

        return Costs(units, conversion, configuration)

    return {
        "bytes": priced(("bytes", "conversions"), lambda cost: cost),
        "count": priced(("conversions", "bytes"), lambda cost: cost[::-1]),
    }


def run_length(site: Site, arrangement: Arrangement, buffers: Buffers) -> int | None:
    """How many elements in a row an operator that cuts or joins moves; None where it does neither."""
    if site.kind != "indexed" or not any(_cuts(label) for tokens in site.tokens for label, _ in tokens):
        return None
    smaller = min(range(len(site.views)), key=lambda i: buffers[site.views[i].buffer].nbytes)
    held, sizes = site.tokens[smaller], buffers[site.views[smaller].buffer].tensor.sizes
    run = 1
    for token in reversed(arrangement.tokens):
        run *= math.prod(sizes[a] for a in held.get(token, ()))
        if _cuts(token[0]):
            break
    return run


def _cuts(label: str) -> bool:
    return label.startswith("cut.") or label == "step"


def transpose_rank(source: AxisOrder, target: AxisOrder) -> int:
    """How many dimensions a transpose between two orders has once runs that stay together are one."""
    position = {axis: i for i, axis in enumerate(source)}
    breaks = sum(position[b] != position[a] + 1 for a, b in itertools.pairwise(target))
    return breaks + 1
