"""Check a claim on sizes at every size in their ranges, where torch proves nothing of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import sympy
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges

MOST_SIZES = 50_000  # the most sizes, or combinations of sizes, for which assertions are checked


def holds(
    claim: sympy.Basic, ranges: Mapping[sympy.Symbol, ValueRanges[Any]], most: int = MOST_SIZES
) -> bool:
    """Return whether a claim on sizes holds for every size in their ranges.

    The result is also false if a size has no upper bound, or if there are more than `most` sizes to check.
    """
    symbols = sorted(claim.free_symbols, key=str)
    if any(symbol not in ranges or not ranges[symbol].upper.is_Integer for symbol in symbols):
        return False
    sizes = [range(int(ranges[symbol].lower), int(ranges[symbol].upper) + 1) for symbol in symbols]
    if math.prod(map(len, sizes)) > most:
        return False
    return all(
        sympy_interp(PythonReferenceAnalysis, dict(zip(symbols, point, strict=True)), claim)
        for point in itertools.product(*sizes)
    )
