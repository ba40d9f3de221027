"""Choose the points at which a network with dynamic sizes is planned, and those at which it is verified."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from dimorder.capture.claims import MOST_SIZES
from dimorder.contract import Symbol
from dimorder.errors import UnsupportedError
from dimorder.sizes.assumptions import points_against
from dimorder.sizes.points_apart import (
    are_apart,
    find_three,
    first_that_differ,
    products_are_apart,
    slope,
)
from dimorder.sizes.range_sizes import candidate_sizes, ends, is_odd_prime, points_of, sizes_of
from dimorder.sizes.symbolic_program import Point, SymbolicProgram

_MAX_POINTS = 3  # two determine an affine function of a size, the third confirms it
_MOST_POINTS = 6  # with those that distinguish remainders
_NEAR = (0, -1, 1, -2, 2, -4, 4, -8, 8)  # steps between a point and others, which change remainders
_FAR = (*range(3, 33), *(2**power for power in range(6, 32)))  # the same, where points nearby are all alike
_SOME = 8  # sizes of a range at which others are compared
_MANY = 5  # beside so many dynamic sizes, points are sought in fewer steps
_DIVISIONS = (FloorDiv, Mod, PythonMod)


def specialization_points(program: SymbolicProgram, wanted: Point | None = None) -> list[Point]:
    """Return the points at which a program is planned.

    A size is its step times its root. If possible, roots are odd primes, so that 2, say, divides a size only
    if it divides all sizes in the range. If possible, no size there is 1, and no two sizes are equal by
    chance. Each size that varies differs between all of the points.

    Points after the first may be larger than the ranges. The deepest map of small images has 1 or 2 rows. At
    the points in the ranges without a size of 1, it would pass for a constant 2.

    Args:
        program: the program with its ranges.
        wanted: the first point, if results there do not follow from others and no size there is 1.

    Raises:
        UnsupportedError: if a range has too few sizes.
    """
    chooser = _Chooser(program, program)
    usable = wanted is not None and not chooser.count_unfit(wanted) and not program.is_affine()
    try:
        points = chooser.choose([wanted] if wanted is not None and usable else [])
    except UnsupportedError:  # short ranges
        larger = None if chooser.count_unfit(program.middle) else _larger(chooser, [program.middle])
        if larger is None:
            raise
        return larger
    if chooser.are_enough(points):
        return points
    return _larger(chooser, points) or points


def _larger(chooser: _Chooser, points: Sequence[Point]) -> list[Point] | None:
    """Return points of which those after the first may be larger than the ranges; None if not enough.

    A file may name the sizes of the first one. A runtime has memory for the ranges alone.
    """
    program = chooser.program
    wider = replace(chooser, searched=replace(program, symbols=tuple(map(_wider, program.symbols))))
    try:
        larger = wider.choose(points[:1])
    except UnsupportedError:
        return None
    is_within = all(larger[0][symbol.name] in sizes_of(symbol) for symbol in program.symbols)
    return larger if is_within and wider.are_enough(larger) and program.accepts(larger) else None


def verification_points(program: SymbolicProgram, planned: Sequence[Point]) -> list[Point]:
    """Return the points at which a program is run before it is returned; `planned` are the specializations'.

    They are the corners and the middle. The smallest sizes are followed by those of the first specialization,
    which a file may name: a runtime must then take more memory. A dynamic size that is odd at all of these is
    also tried at an even size. If a number that the network computes from sizes is the same at all points and
    specializations, a point where it differs is added. So are points that break an assumption of torch.
    """
    smallest, *corners = program.corners
    named = [point for point in planned[:1] if point not in program.corners]
    points = [smallest, *named, *corners, program.middle]
    even = {
        symbol.name: size - symbol.step if size > symbol.minimum else size + symbol.step
        for symbol in program.symbols
        if all(point[symbol.name] // symbol.step % 2 for point in points)
        and len(sizes_of(symbol)) > 1
        and (size := program.middle[symbol.name])
    }
    points += [{**program.middle, **even}] if even else []
    for number in program.numbers:
        if len({program.size_at(number, point) for point in (*points, *planned)}) == 1:
            points += itertools.islice(_where_else(program, number, points[0]), 1)
    return points + points_against(program, points)


def are_enough(program: SymbolicProgram, points: Sequence[Point]) -> bool:
    """Return whether no size passes for a constant or for a function of another at the points."""
    return _Chooser(program, program).are_enough(points)


def _where_else(program: SymbolicProgram, number: Any, point: Point) -> Iterator[Point]:
    """Yield points with other values of a number's own dynamic sizes, at which the number differs."""
    own, known = program.symbols_in(number.node.expr), program.size_at(number, point)
    for sizes in itertools.islice(points_of(own, map(sizes_of, own)), MOST_SIZES):
        other = {**program.middle, **sizes}
        if program.size_at(number, other) != known:
            yield other


def _wider(symbol: Symbol) -> Symbol:
    """Return a dynamic size with a range that ends at twice the maximum."""
    return replace(symbol, maximum=2 * ends(symbol)[1])


@dataclass(frozen=True)
class _Chooser:
    """Chooses the points of one program.

    Attributes:
        program: The program with its own ranges.
        searched: The program with the ranges in which points are searched.
    """

    program: SymbolicProgram
    searched: SymbolicProgram

    def choose(self, first: Sequence[Point]) -> list[Point]:
        """Return points, with the given ones first."""
        found, program, points = list(first), self.searched, self._candidates()
        sizes = (size.node.expr for size in program.sizes)
        counts = ((size, len({program.value(size, point) for point in points})) for size in sizes)
        telling = [size for size, count in counts if count >= _MAX_POINTS]

        def repeats(point: Point, others: Sequence[Point]) -> bool:
            value = program.value
            return any(value(size, point) == value(size, p) for size in telling for p in others)

        def are_good(those: Sequence[Point]) -> bool:
            *others, last = those
            return are_apart(those) and not repeats(last, others) and products_are_apart(those)

        def are_best(those: Sequence[Point]) -> bool:
            return are_good(those) and self._are_independent(telling, those)

        found = find_three(points, are_best, found) or found
        for point in itertools.chain((p for p in points if are_good([*found, p])), points):
            if len(found) < _MAX_POINTS and are_apart([*found, point]):
                found.append(point)
        if len(found) < _MAX_POINTS:  # few sizes: the first points may leave none for the last
            found = find_three([*found, *points], are_apart) or found
        if len(found) > 1 and self._count_varying(found) < len(self._remainders):
            *found, last = found  # else n // 2 and (n - 1) // 2, say, could pass for one another
            ways = [self._among(self._around(point, _NEAR[:3])) for point in (last, *found)]
            near = (p for p in itertools.chain(*ways) if not self.count_unfit(p))
            others = sorted((p for p in near if are_good([*found, p])), key=self._chance)
            found.append(max([last, *others], key=lambda p: self._count_varying([*found, p])))
        if len(found) < self._needed:
            reason = f"too few sizes to distinguish {program.ranges}"
            raise UnsupportedError("the ranges of sizes", reason, "give wider ranges, or fix a size")
        return self._with_points_apart(found)

    @property
    def _needed(self) -> int:
        """Return how many points are needed: else one dynamic size could pass for another."""
        return min(_MAX_POINTS, len(self.searched.symbols) + 1)

    def _candidates(self) -> list[Point]:
        """Return the points among which the first ones are chosen, with the best first."""
        symbols = self.searched.symbols
        candidates = candidate_sizes(symbols, _MAX_POINTS, self._is_above_one)
        short = [str(s) for s, sizes in zip(symbols, candidates, strict=True) if len(sizes) < self._needed]
        if short:
            fix = "give each range three sizes above its step, or two if it is the only one, or fix a size"
            raise UnsupportedError("the ranges of sizes", f"too few sizes in {', '.join(short)}", fix)
        return sorted(points_of(symbols, candidates), key=self._chance)

    def _chance(self, point: Point) -> tuple[int, int]:
        """Return how much of a point is alike by chance, and how large it is."""
        program = self.searched
        values = [program.size_at(size, point) for size in program.sizes]
        alike = len(values) - len(set(values)) + sum(value in program.constant_sizes for value in values)
        odd = 10 * sum(not is_odd_prime(root) for root in self.searched.roots_at(point))
        return 1000 * self.count_unfit(point) + odd + alike, math.prod(point.values())

    def are_enough(self, points: Sequence[Point]) -> bool:
        """Return whether no size passes for a constant or for a function of another at the points.

        A size that is the same at all ends of the ranges may be a constant.
        """
        value, ends = self.program.value, self.program.corners
        varying = [size for size in self._above_one if len({value(size, end) for end in ends}) > 1]
        is_dynamic = all(len({value(size, point) for point in points}) > 1 for size in varying)
        is_fit = self.searched is self.program or not any(map(self.count_unfit, points))
        return is_dynamic and is_fit and self._are_independent(varying, points)

    def _are_independent(self, sizes: Sequence[Any], points: Sequence[Point]) -> bool:
        """Return whether no size is in line with one that is computed from other dynamic sizes."""
        if len(points) < _MAX_POINTS:
            return True
        found: dict[tuple[int, ...], list[Symbol]] = {}
        for size in sizes:
            own, column = self._changed_by(size), [self.program.value(size, p) for p in points]
            if found.setdefault(slope(column), own) != own:
                return False
        return True

    def _changed_by(self, size: Any) -> list[Symbol]:
        """Return the dynamic sizes that change a size. It may name others, as `W * (4 * H // (2 * H))`."""
        if size not in self._changing:
            named = self.program.symbols_in(size)
            self._changing[size] = [symbol for symbol in named if self._is_changed_by(size, symbol)]
        return self._changing[size]

    def _is_changed_by(self, size: Any, symbol: Symbol) -> bool:
        """Return whether some sizes of a range change a size, where the others are at their ends."""
        known = sizes_of(symbol)
        some = {*known[:: max(1, len(known) // _SOME)], known[-1]}
        value, ends = self.program.value, (self.program.corners[0], self.program.corners[-1])
        return any(len({value(size, {**end, symbol.name: each}) for each in some}) > 1 for end in ends)

    @cached_property
    def _changing(self) -> dict[Any, list[Symbol]]:
        return {}

    def _is_above_one(self, symbol: Symbol, size: int) -> bool:
        """Return whether no size is 1, as deep layers have it of small images. Others are the largest."""
        point = {**self.searched.corners[-1], symbol.name: size}
        own = (each for each in self._above_one if symbol in self.searched.symbols_in(each))
        return all(self.program.value(each, point) > 1 for each in own)

    def count_unfit(self, point: Point) -> int:
        """Return how many sizes are 1 or less at a point, of those that are more at other points.

        Those count too that are more than 1 at a point outside of the ranges alone.
        """
        ones = sum(self.program.value(size, point) < 2 for size in self._above_one)
        if self.searched is self.program:
            return ones
        return ones + sum(self.program.value(size, point) > 1 for size in self._ones)

    @property
    def _above_one(self) -> list[Any]:
        """Return the sizes that are above 1 at an end of the ranges."""
        return self._by_ends[True]

    @property
    def _ones(self) -> list[Any]:
        """Return the sizes that are 1 at all ends of the ranges."""
        return self._by_ends[False]

    @cached_property
    def _by_ends(self) -> dict[bool, list[Any]]:
        """Return the sizes by whether they are above 1 at an end of the ranges."""
        found: dict[bool, list[Any]] = {True: [], False: []}
        for size in self.program.factors:
            found[any(self.program.value(size, end) > 1 for end in self.program.corners)].append(size)
        return found

    def _with_points_apart(self, points: Sequence[Point]) -> list[Point]:
        """Return points, and others at which numbers differ that are equal here, such as H % 2 and W % 2.

        Such points are near. A quotient such as (H - 1) // 32 may differ at an end of its range alone.
        """
        symbols = self.searched.symbols
        found, steps = list(points), _NEAR if len(symbols) < _MANY else _NEAR[:3]
        each = zip(symbols, *(self._around(point, steps) for point in (points[-1], points[0])), strict=True)
        sizes = [
            dict.fromkeys([*last, *first, *self._farther(symbol, found)]) for symbol, last, first in each
        ]
        around = [point for point in self._among(sizes) if not self.count_unfit(point)]
        near = [point for point in around if are_apart([point])]
        self._extend(found, near, self._count_apart)
        most = max(map(self._count_alike, found))  # calls that are alike at one point alone become one there
        primes = [each for each in near if self._is_prime(each) and self._count_alike(each) <= most]
        self._extend(found, primes, self._count_slopes)
        self._extend(found, around, self._count_volumes)  # three sizes of three values each need equal ones
        return found

    def _extend(
        self, found: list[Point], others: Sequence[Point], count: Callable[[Sequence[Point]], Any]
    ) -> None:
        """Add those of the other points that increase a count most, one at a time."""
        wanted = count([*found, *others])
        while len(found) < _MOST_POINTS and count(found) < wanted:
            best = max(others, key=lambda point: count([*found, point]))
            if count([*found, best]) == count(found):
                return
            found.append(best)

    def _around(self, point: Point, steps: Sequence[int]) -> list[list[int]]:
        """Return the sizes that are some steps away from those of a point."""
        return [[point[s.name] + s.step * step for step in steps] for s in self.searched.symbols]

    def _among(self, sizes: Sequence[Iterable[int]]) -> list[Point]:
        """Return the points of these sizes that are in the ranges, and the corners."""
        symbols = self.searched.symbols
        points = (*points_of(symbols, sizes), *self.searched.corners)
        return [p for p in points if all(p[symbol.name] in sizes_of(symbol) for symbol in symbols)]

    def _farther(self, symbol: Symbol, points: Sequence[Point]) -> list[int]:
        """Return sizes at which numbers differ that are alike at all points, such as H // 32 near one H."""
        own = [size for size in self._sizes_and_numbers if symbol in self.searched.symbols_in(size.node.expr)]
        known, last = sizes_of(symbol), points[-1]
        steps = (sign * symbol.step * step for step in _FAR for sign in (1, -1))
        sizes = (*(last[symbol.name] + step for step in steps), known[-1], known[0])
        others = [{**last, symbol.name: size} for size in sizes if size in known]
        above_one = [point for point in others if not self.count_unfit(point)]
        rows = [[self.program.size_at(size, point) for size in own] for point in (*points, *above_one)]
        found = [above_one[place][symbol.name] for place in first_that_differ(rows, len(points))]
        return [size for each in found for size in (each, each - symbol.step)]

    def _is_prime(self, point: Point) -> bool:
        return all(map(is_odd_prime, self.searched.roots_at(point)))

    def _count_apart(self, points: Sequence[Point]) -> tuple[int, int]:
        """Return how many of the sizes and numbers differ between the points, and how many from one another.

        The first is more: a size that is the same at all points is taken for a constant.
        """
        varying = self._varying(points)
        return len(varying), len(set(varying))

    def _count_slopes(self, points: Sequence[Point]) -> int:
        """Return how many of them are no affine functions of one another, such as H // 2 and H // 4."""
        return len(set(map(slope, self._varying(points))))

    def _count_volumes(self, points: Sequence[Point]) -> int:
        """Return how many products of a value's sizes differ between the points."""
        volume_at, volumes = self.program.volume_at, self.program.volumes
        return sum(len({volume_at(each, point) for point in points}) > 1 for each in volumes)

    def _count_alike(self, point: Point) -> int:
        """Return how many of the sizes and numbers are equal to another one at a point."""
        values = [self.program.size_at(each, point) for each in self._sizes_and_numbers]
        return len(values) - len(set(values))

    def _varying(self, points: Sequence[Point]) -> list[tuple[int, ...]]:
        values = [tuple(self.program.size_at(s, point) for point in points) for s in self._sizes_and_numbers]
        return [each for each in values if len(set(each)) > 1]

    @property
    def _sizes_and_numbers(self) -> list[Any]:
        return [*self.program.sizes, *self.program.numbers]

    @cached_property
    def _remainders(self) -> list[Any]:
        """Return the remainder of each division in the program's sizes and numbers."""
        expressions = [size.node.expr for size in self._sizes_and_numbers]
        divisions = {each.args for expression in expressions for each in expression.atoms(*_DIVISIONS)}
        return [PythonMod(dividend, divisor) for dividend, divisor in sorted(divisions, key=str)]

    def _count_varying(self, points: Sequence[Point]) -> int:
        """Return how many remainders differ between the points."""
        return sum(len({self.program.value(each, p) for p in points}) > 1 for each in self._remainders)
