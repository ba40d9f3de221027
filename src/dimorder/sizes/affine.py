"""Fit functions of sizes to numbers: a number is known at several points, and so are the sizes there.

Every module that computes a number from sizes uses these functions.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dimorder.contract import Symbol


@dataclass(frozen=True)
class AffineFunction:
    """An affine function of one size."""

    factor: Fraction
    offset: Fraction

    def __call__(self, size: int) -> Fraction:
        return self.factor * size + self.offset

    @property
    def is_whole(self) -> bool:
        """Whether each whole size gives a whole number."""
        return self.factor.denominator == self.offset.denominator == 1


def fit_affine(values: Sequence[int], sizes: Sequence[int]) -> AffineFunction | None:
    """Return the increasing affine function from sizes to values, or None if there is none.

    >>> fit_affine((7, 11, 19), (3, 5, 9))
    AffineFunction(factor=Fraction(2, 1), offset=Fraction(1, 1))
    >>> fit_affine((9, 25, 49), (3, 5, 7)) is None
    True
    """
    line = _line(values, sizes)
    return line if line is not None and line.factor > 0 and is_affine(values, sizes) else None


def is_affine(values: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether values are an affine function of sizes, increasing or not.

    >>> is_affine((7, 5, 1), (3, 5, 9)), is_affine((9, 25, 49), (3, 5, 7))
    (True, False)
    """
    line = _line(values, sizes) or AffineFunction(Fraction(0), Fraction(values[0]))
    return all(line(size) == value for size, value in zip(sizes, values, strict=True))


def _line(values: Sequence[int], sizes: Sequence[int]) -> AffineFunction | None:
    """Return the line through the first two points of other sizes, or None if all sizes are equal."""
    at = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
    if at is None:
        return None
    factor = Fraction(values[at] - values[0], sizes[at] - sizes[0])
    return AffineFunction(factor, values[0] - factor * sizes[0])


def corner_weights(symbols: Sequence[Symbol], point: Mapping[str, int]) -> list[Fraction]:
    """Return the weight of each corner of ranges, by which a function of the corners is interpolated.

    A function that is affine in each size alone has at a point the weighted sum of its values at the corners.

    >>> corner_weights([Symbol("N", 1, 5), Symbol("L", 4, 8)], {"N": 2, "L": 4})
    [Fraction(3, 4), Fraction(0, 1), Fraction(1, 4), Fraction(0, 1)]
    """
    shares = [_shares(symbol, point[symbol.name]) for symbol in symbols]
    return [math.prod(each, start=Fraction(1)) for each in itertools.product(*shares)]


def _shares(symbol: Symbol, size: int) -> list[Fraction]:
    """Return the weight of each end of a range at a size."""
    least, most = symbol.minimum, symbol.maximum
    assert most is not None
    if least == most:
        return [Fraction(1)]
    return [Fraction(most - size, most - least), Fraction(size - least, most - least)]


@dataclass(frozen=True)
class Formula:
    """A number computed from sizes.

    It is `factor` times the product of the sizes at the places `of`, plus `offset`, over `divisor`.
    """

    factor: int
    of: tuple[int, ...]
    offset: int
    divisor: int = 1

    def __call__(self, sizes: Sequence[Any] | Mapping[int, Any]) -> Any:
        total: Any = functools.reduce(operator.mul, (sizes[place] for place in self.of)) if self.of else 1
        total = total if self.factor == 1 else total * self.factor
        total = total + self.offset if self.offset else total
        return total if self.divisor == 1 else total // self.divisor


def fit_formulas(values: Sequence[int], sizes: Sequence[Sequence[int]]) -> Iterator[Formula]:
    """Yield the ways in which a number may be computed from sizes.

    A single size is tried first, then an affine function of one size, then a fixed number less a multiple of
    one. A multiple of a product of two sizes follows, and one less than such a product, by which variances
    divide. A fraction of one size, or of such a product, is next. Affine functions that two values of a size
    give are last.

    Args:
        values: the number's value at each point.
        sizes: the values of each size at the same points.
    """
    if len(set(values)) == 1:
        yield Formula(values[0], (), 0)
        return
    places = range(len(sizes))
    for place in places:
        if tuple(sizes[place]) == tuple(values):
            yield Formula(1, (place,), 0)
    yield from _lines(values, sizes, is_confirmed=True)
    for one, other in itertools.combinations_with_replacement(places, 2):
        found = fit_affine(values, [a * b for a, b in zip(sizes[one], sizes[other], strict=True)])
        is_one_less = found is not None and found.factor == 1 and found.offset == -1
        if found is not None and found.is_whole and (found.offset == 0 or is_one_less):
            yield Formula(int(found.factor), (one, other), int(found.offset))
    for of in (*((place,) for place in places), *itertools.combinations_with_replacement(places, 2)):
        products = [math.prod(each) for each in zip(*(sizes[place] for place in of), strict=True)]
        if 0 in products:
            continue
        parts = {Fraction(value, product) for value, product in zip(values, products, strict=True)}
        if len(parts) == 1:
            (part,) = parts
            yield Formula(part.numerator, of, 0, part.denominator)
    yield from _lines(values, sizes, is_confirmed=False)


def _lines(values: Sequence[int], sizes: Sequence[Sequence[int]], *, is_confirmed: bool) -> Iterator[Formula]:
    """Yield the whole affine functions of one size that give the values, increasing ones first.

    A line goes through any values of a size that has two values at the points, as a remainder has. So a third
    one confirms a line. A second one confirms a multiple.
    """
    for increases, place in itertools.product((True, False), range(len(sizes))):
        line = _line(values, sizes[place])
        if line is None or not line.is_whole or (line.factor > 0) is not increases:
            continue
        confirmed = line.offset == 0 or len(set(sizes[place])) > 2
        if confirmed is is_confirmed and is_affine(values, sizes[place]):
            yield Formula(int(line.factor), (place,), int(line.offset))


def fit_formula(values: Sequence[int], sizes: Sequence[Sequence[int]]) -> Formula | None:
    """Return the first of these ways, or None if there is none.

    Args:
        values: the number's value at each point.
        sizes: the values of each size at the same points.

    >>> fit_formula((7, 11, 19), [(2, 3, 4), (3, 5, 9)])
    Formula(factor=2, of=(1,), offset=1, divisor=1)
    >>> fit_formula((12, 30, 72), [(2, 3, 4), (3, 5, 9)])
    Formula(factor=2, of=(0, 1), offset=0, divisor=1)
    >>> fit_formula((5, 14, 35), [(2, 3, 4), (3, 5, 9)])
    Formula(factor=1, of=(0, 1), offset=-1, divisor=1)
    >>> fit_formula((12, 24, 20), [(32, 64, 160), (96, 96, 32)])
    Formula(factor=1, of=(0, 1), offset=0, divisor=256)
    >>> fit_formula((37, 35, 31), [(3, 5, 9)])
    Formula(factor=-1, of=(0,), offset=40, divisor=1)
    """
    return next(fit_formulas(values, sizes), None)


def fit_quotient(values: Sequence[int], sizes: Sequence[Sequence[int]]) -> Formula | None:
    """Return how a number is computed from sizes, with division allowed.

    At sizes that leave a remainder the result may not be what was meant.

    Args:
        values: the number's value at each point.
        sizes: the values of each size at the same points.

    >>> fit_quotient((4, 7, 10), [(10, 16, 22)])
    Formula(factor=1, of=(0,), offset=-2, divisor=2)
    """
    found = fit_formula(values, sizes)
    for place, known in enumerate(sizes if found is None else ()):
        line = _line(values, known)
        if line is None:
            continue
        divisor = line.factor.denominator
        formula = Formula(line.factor.numerator, (place,), int(line.offset * divisor), divisor)
        if [formula(each) for each in zip(*sizes, strict=True)] == list(values):
            return formula
    return found


def fit_sum(values: Sequence[int], sizes: Sequence[Sequence[int]]) -> Callable[[Sequence[Any]], Any] | None:
    """Return how a number is computed as a sum of two sizes, or None if it is no such sum.

    Args:
        values: the number's value at each point.
        sizes: the values of each size at the same points.

    >>> total = fit_sum((11, 13, 16), [(5, 6, 8), (4, 4, 4), (6, 7, 8)])
    >>> total([10, 4, 11])
    21
    """
    for (i, one), (j, other) in itertools.combinations(enumerate(sizes), 2):
        if [a + b for a, b in zip(one, other, strict=True)] == list(values):
            return lambda known: known[i] + known[j]
    return None
