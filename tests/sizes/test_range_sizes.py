"""Test the sizes of a range that are tried as points, and their combinations."""

from __future__ import annotations

import itertools

from dimorder.contract import Symbol
from dimorder.sizes.range_sizes import candidate_sizes, combinations


def test_combinations_are_those_of_a_product() -> None:
    sizes = [range(2, 4), range(3), [7, 5]]
    assert list(combinations(sizes)) == list(itertools.product(*sizes))


def test_points_of_a_very_long_range_are_found_among_its_first_sizes() -> None:
    long, shorter = (candidate_sizes([Symbol("H", 2, most)], 3) for most in (10**12, 50_001))
    assert long == shorter and len(long[0]) == 24
