"""Estimate the cost of conversions on an Ethos-U, for a plan that Vela compiles beside others.

Only Vela knows the cycles of a graph. Even Vela does not know the cycles of one conversion, since it fuses
and overlaps operators. But a permutation of channels is a convolution (see `permutation`), which takes a
small part of the cycles of other transposes. A plan should prefer it.
"""

from __future__ import annotations

import math

from dimorder.layout.costs import Buffers, Costs, moved_in_short_runs
from dimorder.ops.problem_map import Arrangement, BufferInfo, Site, transpose_rank
from dimorder.ops.relation import AxisOrder
from dimorder.planning.problem import Cost
from dimorder.targets.ethos_u import macs
from dimorder.targets.tosa.integers.permutation import unmoved_dims
from dimorder.targets.tosa.target import MIN_RUN

WEIGHTS = 8  # bytes of a matrix that are read in a cycle


def estimated_costs(accelerator: str) -> Costs:
    """Return conversion costs in cycles, the nearest estimate that needs no compiler.

    A transpose writes its elements one by one. A transpose of more dimensions is split into several.
    """

    def conversion(buffer: BufferInfo, source: AxisOrder, target: AxisOrder) -> Cost:
        elements = math.prod(buffer.shape)
        still = unmoved_dims(source, target, buffer.tensor.sizes)
        if still is None:
            return elements * max(1, 2 * (transpose_rank(source, target) - 2)), 1
        channels = math.prod(buffer.tensor.sizes[a] for a in source[still:])
        return math.ceil(elements * channels / macs(accelerator)) + channels**2 // WEIGHTS, 1

    def configuration(site: Site, arrangement: Arrangement, buffers: Buffers) -> Cost:
        return 2 * moved_in_short_runs(site, arrangement, buffers, MIN_RUN), 0

    return Costs(("estimated cycles", "conversions"), conversion, configuration)
