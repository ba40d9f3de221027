"""Choose dimensions to merge, so that an NPU computes more elements side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

LANES = 16  # in which an Ethos-U computes the elements of the last dimension
LITTLE = 8  # times fewer elements than the result has


def dimensions_to_merge(shape: tuple[int, ...], shapes: Sequence[tuple[int, ...]]) -> int:
    """Return how many last dimensions of a result to merge, or 0; `shapes` are those of its operands.

    The merged dimension must fill the lanes better, and the elements repeated for it must be few.

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
    """Return the share of lanes that so many channels fill."""
    return count / (math.ceil(count / LANES) * LANES)
