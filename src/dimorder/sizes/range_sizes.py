"""Return the sizes in the range of a dynamic size: all, both ends, and those that are tried as points."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from dimorder.capture.claims import MOST_SIZES
from dimorder.contract import Symbol

_CANDIDATES = {1: 24, 2: 10, 3: 6, 4: 4, 5: 4, 6: 4}  # sizes of each symbol, by the number of symbols
_MANY = 5  # so many symbols have too few of the same sizes


def sizes_of(symbol: Symbol) -> range:
    """Return all values that a dynamic size may have."""
    least, most = ends(symbol)
    return range(least, most + 1, symbol.step)


def combinations(sizes: Sequence[Iterable[int]]) -> Iterator[tuple[int, ...]]:
    """Yield all combinations of sizes, in the order of `itertools.product`, without a list of a long range.

    >>> next(combinations([range(2, 10**12), range(3, 10**12)]))
    (2, 3)
    """
    if not sizes:
        yield ()
        return
    for size in sizes[0]:
        for rest in combinations(sizes[1:]):
            yield (size, *rest)


def ends(symbol: Symbol) -> tuple[int, int]:
    """Return the least and the largest size of a range."""
    assert symbol.maximum is not None
    return symbol.minimum, symbol.maximum


def candidate_sizes(
    symbols: Sequence[Symbol],
    least: int,
    is_wanted: Callable[[Symbol, int], bool] = lambda symbol, size: True,
) -> list[list[int]]:
    """Return the sizes of each symbol that are tried, at least so many if the range has them.

    Many symbols are tried at different sizes, as far as their ranges allow it.

    Args:
        symbols: the dynamic sizes.
        least: how many sizes of each are needed.
        is_wanted: says which sizes are tried, if enough are wanted. All above such a size are so too.

    >>> candidate_sizes([Symbol("H", 3, 11)], 3, lambda symbol, size: size // 4 > 1)
    [[11, 8, 9, 10]]
    """
    enough = max(least, len(symbols))  # at a point, all differ
    symbols = [_upper_part(symbol, partial(is_wanted, symbol), enough) for symbol in symbols]
    count = _CANDIDATES.get(len(symbols), least)
    if len(symbols) < _MANY:
        return [_some(symbol, count) for symbol in symbols]
    tried, taken = dict[str, list[int]](), set[int]()
    for symbol in sorted(symbols, key=lambda each: len(sizes_of(each))):
        sizes = _some(symbol, count * len(symbols))
        tried[symbol.name] = sorted(sizes, key=taken.__contains__)[:count]
        taken.update(tried[symbol.name])
    return [tried[symbol.name] for symbol in symbols]


def _upper_part(symbol: Symbol, is_wanted: Callable[[int], bool], least: int) -> Symbol:
    """Return a range from the first size on that is wanted; the whole range if few sizes remain."""
    known = sizes_of(symbol)
    rest = known[bisect.bisect_left(known, True, key=is_wanted) :]
    return replace(symbol, minimum=rest[0]) if len(rest) >= least else symbol


def _some(symbol: Symbol, count: int) -> list[int]:
    """Return sizes in a range: the smallest primes from 2 roots on, primes all over the range, and others.

    Only the first sizes of a very long range are tried.
    """
    first = sizes_of(symbol)[:MOST_SIZES]
    roots = [size // symbol.step for size in first if size // symbol.step > 1]
    primes = list(filter(is_odd_prime, roots))
    spread = primes[:: max(1, len(primes) // count)]
    mixed = [root for pair in itertools.zip_longest(primes, spread) for root in pair if root is not None]
    return [symbol.step * root for root in list(dict.fromkeys([*mixed[: 2 * count], *roots]))[:count]]


def is_odd_prime(number: int) -> bool:
    """Return whether a number is a prime other than 2."""
    return number > 2 and all(number % factor for factor in range(2, math.isqrt(number) + 1))


def middle_of(symbol: Symbol) -> int:
    """Return a size in the middle of a range, by factors; the most of a range of one or two sizes."""
    least, most = (end // symbol.step for end in ends(symbol))
    if most - least < 2:
        return symbol.step * most
    return symbol.step * min(max(math.isqrt(least * most), least + 1), most - 1)


def points_of(symbols: Sequence[Symbol], sizes: Iterable[Iterable[int]]) -> Iterator[dict[str, int]]:
    """Yield all combinations of some sizes of each symbol."""
    names = [symbol.name for symbol in symbols]
    return (dict(zip(names, point, strict=True)) for point in combinations(list(sizes)))
