"""Decide whether points distinguish the dynamic sizes, so that no size passes for a function of another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

_MOST_FIRST = 64  # first points of three that are tried
_MOST_PAIRS = 1000  # pairs that are tried beside each of them: six dynamic sizes have 10¹⁰ threes of points


def are_apart(points: Sequence[Mapping[str, int]]) -> bool:
    """Return whether points distinguish the dynamic sizes: no size occurs twice, and no two are in line."""
    columns = [[point[name] for point in points] for name in points[0]]
    if any(len(set(column)) < len(column) for column in columns):
        return False
    if any(len(set(point.values())) < len(point) for point in points):
        return False
    return len(points) < 3 or not any(itertools.starmap(are_in_line, itertools.combinations(columns, 2)))


def find_three(
    points: Sequence[Mapping[str, int]],
    are_good: Callable[[Sequence[Mapping[str, int]]], bool],
    first: Sequence[Mapping[str, int]] = (),
) -> list[Mapping[str, int]] | None:
    """Return the first three points that are good together, or None if few tries find none.

    Args:
        points: what is tried, in sequence.
        are_good: says whether one, two or three points are good together.
        first: the first point, if it is known.

    >>> points = [{"H": h, "W": w} for h in (2, 3, 4) for w in (2, 3, 4)]
    >>> find_three(points, are_apart)
    [{'H': 2, 'W': 3}, {'H': 3, 'W': 4}, {'H': 4, 'W': 2}]
    """
    for head in first or [point for point in points if are_good([point])][:_MOST_FIRST]:
        others = [point for point in points if are_good([head, point])]
        for pair in itertools.islice(itertools.combinations(others, 2), _MOST_PAIRS):
            if are_good([head, *pair]):
                return [head, *pair]
    return None


def products_are_apart(points: Sequence[Mapping[str, int]]) -> bool:
    """Return whether no product of dynamic sizes is fixed, as D * H * W may be, or in line with a size."""
    columns = [[point[name] for point in points] for name in points[0]]
    chosen = (itertools.combinations(columns, count) for count in range(2, len(columns) + 1))
    products = ([*map(math.prod, zip(*each, strict=True))] for each in itertools.chain(*chosen))
    pairs = itertools.product(products, columns)
    return len(points) < 3 or not any(itertools.starmap(are_in_line, pairs))


def first_that_differ(rows: Sequence[Sequence[int]], count: int) -> list[int]:
    """Return rows after the first ones that tell apart what is alike in all of these.

    One is the first row at which a number differs that is the same in the first rows. Another is the first
    row at which two numbers differ that are equal in these.

    Args:
        rows: the values of the same numbers at each point.
        count: how many rows are first.

    >>> first_that_differ([[1, 5], [1, 6], [1, 7], [2, 5], [3, 5]], 2)
    [1]
    >>> first_that_differ([[3, 3], [4, 4], [5, 5], [6, 7], [7, 8]], 2)
    [1]
    """
    alike: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for column in zip(*rows, strict=True):
        alike.setdefault(column[:count], set()).add(column[count:])
    found = set[int]()
    for first, columns in alike.items():
        if len(set(first)) == 1:
            found.update(place for each in columns for place in _first([value != first[0] for value in each]))
        found.update(_first([len(set(values)) > 1 for values in zip(*columns, strict=True)]))
    return sorted(found)


def _first(flags: Sequence[bool]) -> list[int]:
    """Return the place of the first flag that is set, if there is one."""
    return [flags.index(True)] if True in flags else []


def are_in_line(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether one of two sizes, known at some points, is an affine function of the other.

    >>> are_in_line([3, 4, 5, 5], [4, 5, 6, 6]), are_in_line([3, 4, 5, 5], [4, 5, 6, 7])
    (True, False)
    """
    steps = [(x - a[0], y - b[0]) for x, y in zip(a, b, strict=True)]
    return all(x * w == z * y for (x, y), (z, w) in itertools.combinations(steps, 2))


def slope(values: Sequence[int]) -> tuple[int, ...]:
    """Return what a size that varies has in common with all affine functions of it; zeros for a constant.

    >>> slope([7, 3, 5]) == slope([4, 2, 3]), slope([7, 3, 5]) == slope([7, 3, 4])
    (True, False)
    """
    steps = [value - values[0] for value in values]
    unit = (math.gcd(*steps) or 1) * (1 if next(filter(None, steps), 1) > 0 else -1)
    return tuple(step // unit for step in steps)
