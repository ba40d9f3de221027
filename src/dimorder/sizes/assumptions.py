"""Find sizes at which what torch.export assumed of the dynamic sizes does not hold.

torch assumes that an `if` on sizes takes the way of the example. It refuses ranges in which this is wrong,
but not if a size is written as a multiple, `4 * Dim("H")`. Most assumptions are those of operators of torch.
They do no harm, since the program is right without them. So the program must be run at such sizes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import sympy

from dimorder.capture.claims import MOST_SIZES
from dimorder.graph.expressions import function_of
from dimorder.graph.prediction import assumptions_of, places_of_assumptions
from dimorder.sizes.range_sizes import points_of, sizes_of
from dimorder.sizes.symbolic_program import Point, SymbolicProgram

_MOST_TRIED = 4000  # points: all of small ranges, or so many at random
_MOST_FOUND = 4


def points_against(program: SymbolicProgram, points: Sequence[Point]) -> list[Point]:
    """Return points at which assumptions do not hold that hold at all of the given points.

    At each point returned, most of those that are left do not hold. At most four points are returned.
    """
    assumptions = list(_assumptions(program).values())

    def broken(point: Point) -> frozenset[int]:
        roots = program.roots_at(point)
        return frozenset(place for place, is_so in enumerate(assumptions) if not is_so(*roots))

    known = frozenset[int]().union(*map(broken, points))
    tried = _tried(program) if assumptions else ()
    left = {places: point for point in tried if (places := broken(point) - known)}
    found: list[Point] = []
    while left and len(found) < _MOST_FOUND:
        places = max(left, key=len)
        found.append(left[places])
        left = {other - places: point for other, point in left.items() if other - places}
    return found


def decisions_of(program: SymbolicProgram) -> dict[Callable[..., bool], frozenset[str]]:
    """Return what torch assumed that does not hold at all sizes, each with the names of its dynamic sizes.

    Each is a function of the roots of all dynamic sizes.
    """
    middle, found = program.middle, dict[Callable[..., bool], frozenset[str]]()
    for assumed, is_so in _assumptions(program).items():
        own = frozenset(s.name for s in program.symbols if program.roots[s.name] in assumed.free_symbols)
        sizes = [sizes_of(s) if s.name in own else (middle[s.name],) for s in program.symbols]
        points = points_of(program.symbols, sizes)
        if math.prod(map(len, sizes)) > MOST_SIZES or not all(
            is_so(*program.roots_at(point)) for point in points
        ):
            found[is_so] = own
    return found


def line_against(program: SymbolicProgram, point: Point) -> str | None:
    """Return the line of the network at which it decides otherwise at a point than at the example's sizes.

    None if it does not, or if the line is not known. A program has the way of the example alone.
    """
    names = (program.roots[symbol.name] for symbol in program.symbols)
    roots = dict(zip(names, map(sympy.Integer, program.roots_at(point)), strict=True))
    for guard, place in places_of_assumptions(program.exported):
        if guard.free_symbols <= roots.keys() and guard.xreplace(roots) == sympy.false and place is not None:
            return f"{Path(place.filename).name}:{place.lineno}"
    return None


def _tried(program: SymbolicProgram) -> Iterable[Point]:
    """Return all points of the ranges, or many if there are too many."""
    sizes = [sizes_of(symbol) for symbol in program.symbols]
    if math.prod(map(len, sizes)) <= _MOST_TRIED:
        return points_of(program.symbols, sizes)
    chance = random.Random(0)
    names = [symbol.name for symbol in program.symbols]
    return ({n: chance.choice(s) for n, s in zip(names, sizes, strict=True)} for _ in range(_MOST_TRIED))


def _assumptions(program: SymbolicProgram) -> dict[sympy.Basic, Callable[..., bool]]:
    """Return what torch assumed, with functions of the roots of the dynamic sizes."""
    roots = tuple(program.roots[symbol.name] for symbol in program.symbols)
    assumed = dict.fromkeys(assumptions_of(program.exported))
    varying = (each for each in assumed if each.free_symbols and each.free_symbols <= {*roots})
    return {each: function_of(each, roots) for each in varying}
