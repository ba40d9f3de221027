"""Decides which dimensions are made one, so that an NPU computes more elements side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

LANES = 16  # in which an Ethos-U computes the elements of the last dimension
LITTLE = 8  # times fewer elements than the result has


def dimensions_to_merge(shape: tuple[int, ...], shapes: Sequence[tuple[int, ...]]) -> int:
    """How many of the last dimensions of a result, whose operands have these shapes, if as one they fill
    lanes better, and what is repeated for that is little; else 0.

    >>> dimensions_to_merge((560, 4, 6), [(560, 4, 6), (1, 4, 1)])
    2
    >>> dimensions_to_merge((9, 6), [(9, 6), (9, 1)])
    0
    """
    for merged in range(2, len(shape) + 1):
        ends = shape[-merged:]
        repeated = [s for s in shapes if s[-merged:] not in (ends, (1,) * merged)]
        little = all(math.prod(s[:-merged]) * LITTLE <= math.prod(shape[:-merged]) for s in repeated)
        if repeated and little and _filled(math.prod(ends)) > 1.5 * _filled(shape[-1]):
            return merged
    return 0


def _filled(count: int) -> float:
    """The share of lanes that so many channels fill."""
    return count / (math.ceil(count / LANES) * LANES)
