"""Cut dimensions into axes: factors that are split and identified consistently.

A cut of a factor applies everywhere that it occurs. The cuts of a factor form a divisibility chain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence


class Factors:
    """A growing set of factors; `cut` and `identify` return False, and refuse, if cuts conflict.

    >>> factors = Factors()
    >>> c, rest = factors.new(96), factors.new(48)
    >>> factors.cut(c, [2, 48]) and factors.identify(factors.leaves(c)[1:], factors.leaves(rest))
    True
    >>> factors.cut(rest, [3, 16]) and factors.sizes(c)
    (2, 3, 16)
    >>> factors.cut(c, [6, 16]), factors.cut(c, [4, 24])
    (True, False)
    """

    def __init__(self) -> None:
        self._size: list[int] = []
        self._same: list[int] = []  # union-find parent
        self._parts: dict[int, tuple[int, ...]] = {}  # root factor → its pieces, outer first

    def new(self, size: int) -> int:
        self._size.append(size)
        self._same.append(len(self._same))
        return len(self._size) - 1

    def leaves(self, factor: int) -> tuple[int, ...]:
        """Return the finest pieces of a factor, outer first; a factor of size 1 has none."""
        root = self._root(factor)
        if self._size[root] == 1:
            return ()
        if root not in self._parts:
            return (root,)
        return tuple(leaf for part in self._parts[root] for leaf in self.leaves(part))

    def size(self, leaf: int) -> int:
        return self._size[leaf]

    def sizes(self, factor: int) -> tuple[int, ...]:
        return tuple(self._size[leaf] for leaf in self.leaves(factor))

    def cut(self, factor: int, sizes: Sequence[int]) -> bool:
        """Cut a factor into pieces of these sizes, outer first; False, and no change, if cuts conflict."""
        wanted = _boundaries(sizes)
        if not _is_chain(wanted | _boundaries(self.sizes(factor))):
            return False
        for boundary in sorted(wanted):
            self._cut_at(factor, boundary)
        return True

    def pieces(self, factor: int, sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the leaves of a cut factor, grouped by the pieces that it was cut into."""
        leaves, groups = list(self.leaves(factor)), []
        for size in sizes:
            group: list[int] = []
            while math.prod(self._size[leaf] for leaf in group) != size:
                group.append(leaves.pop(0))
            groups.append(tuple(group))
        return groups

    def identify(self, first: Sequence[int], second: Sequence[int]) -> bool:
        """Make two sequences of leaves the same, refining both; False, and no change, if cuts conflict."""
        sizes = [[self._size[leaf] for leaf in leaves] for leaves in (first, second)]
        boundaries = _boundaries(sizes[0]) | _boundaries(sizes[1])
        if not _is_chain(boundaries):
            return False
        while True:
            a, b = ([leaf for f in side for leaf in self.leaves(f)] for side in (first, second))
            pairs = zip(reversed(a), reversed(b), strict=False)
            mismatch = next((pair for pair in pairs if self._size[pair[0]] != self._size[pair[1]]), None)
            if mismatch is None:
                break
            small, large = sorted(mismatch, key=lambda leaf: self._size[leaf])
            if self._size[large] % self._size[small]:
                return False
            self._split(large, self._size[small])
        for x, y in zip(a, b, strict=True):
            x, y = self._root(x), self._root(y)
            if x != y:
                self._same[max(x, y)] = min(x, y)
        return True

    def _cut_at(self, factor: int, boundary: int) -> None:
        inner = 1
        for leaf in reversed(self.leaves(factor)):
            if inner < boundary < inner * self._size[leaf]:
                self._split(leaf, boundary // inner)
                return
            inner *= self._size[leaf]

    def _split(self, leaf: int, inner: int) -> None:
        self._parts[leaf] = (self.new(self._size[leaf] // inner), self.new(inner))

    def _root(self, factor: int) -> int:
        while self._same[factor] != factor:
            factor = self._same[factor]
        return factor


def _boundaries(sizes: Iterable[int]) -> set[int]:
    boundaries, inner = set(), 1
    for size in reversed(list(sizes)):
        inner *= size
        boundaries.add(inner)
    return boundaries


def _is_chain(boundaries: set[int]) -> bool:
    ordered = sorted(boundaries)
    return all(large % small == 0 for small, large in itertools.pairwise(ordered))
