"""Decides what conversions are estimated to cost an Ethos-U, for a plan that Vela compiles beside others.

Vela alone knows what a graph takes, and of one conversion in it not even Vela: it fuses and overlaps. But
channels that change places among themselves are a product (see `permutation`), which takes a small part of
the cycles of other transposes, and a plan had better have these.
"""

from __future__ import annotations

import math

from dimorder.layout.costs import Buffers, Costs, moved_in_short_runs, transpose_rank
from dimorder.ops.problem_map import Arrangement, BufferInfo, Site
from dimorder.ops.tokens import AxisOrder
from dimorder.planning.problem import Cost
from dimorder.targets.ethos_u import macs
from dimorder.targets.tosa.integers.permutation import unmoved
from dimorder.targets.tosa.target import MIN_RUN

WEIGHTS = 8  # bytes of a matrix that are read in a cycle


def estimated(accelerator: str) -> Costs:
    """Conversions in cycles, to the nearest estimate that takes no compiler.

    A transpose writes its elements one by one, and those of more dimensions are cut into several.
    """

    def conversion(buffer: BufferInfo, source: AxisOrder, target: AxisOrder) -> Cost:
        elements = math.prod(buffer.shape)
        still = unmoved(source, target, buffer.tensor.sizes)
        if still is None:
            return elements * max(1, 2 * (transpose_rank(source, target) - 2)), 1
        channels = math.prod(buffer.tensor.sizes[a] for a in source[still:])
        return math.ceil(elements * channels / macs(accelerator)) + channels**2 // WEIGHTS, 1

    def configuration(site: Site, arrangement: Arrangement, buffers: Buffers) -> Cost:
        return 2 * moved_in_short_runs(site, arrangement, buffers, MIN_RUN), 0

    return Costs(("estimated cycles", "conversions"), conversion, configuration)
