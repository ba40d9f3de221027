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
import torch
from torch.utils._sympy.printers import PythonPrinter

from dimorder.graph.prediction import assumptions_of, places_of_assumptions
from dimorder.sizes.range_sizes import points_of, sizes_of
from dimorder.sizes.symbolic_program import Point, SymbolicProgram

_MOST_TRIED = 4000  # points: all of small ranges, or so many at random
_MOST_FOUND = 4


def points_against(program: SymbolicProgram, points: Sequence[Point]) -> list[Point]:
    """Return points at which assumptions do not hold that hold at all of the given points.

    At each point returned, most of those that are left do not hold. At most four points are returned.
    """
    assumptions = _assumptions(program)

    def broken(point: Point) -> frozenset[int]:
        roots = [point[symbol.name] // symbol.step for symbol in program.symbols]
        return frozenset(place for place, holds in enumerate(assumptions) if not holds(*roots))

    known = frozenset[int]().union(*map(broken, points))
    tried = _tried(program) if assumptions else ()
    left = {places: point for point in tried if (places := broken(point) - known)}
    found: list[Point] = []
    while left and len(found) < _MOST_FOUND:
        places = max(left, key=len)
        found.append(left[places])
        left = {other - places: point for other, point in left.items() if other - places}
    return found


def line_against(program: SymbolicProgram, point: Point) -> str | None:
    """Return the line of the network at which it decides otherwise at a point than at the example's sizes.

    None if it does not, or if the line is not known. A program has the way of the example alone.
    """
    roots = {program.roots[s.name]: sympy.Integer(point[s.name] // s.step) for s in program.symbols}
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


def _assumptions(program: SymbolicProgram) -> list[Callable[..., bool]]:
    """Return what torch assumed, as functions of the roots of the dynamic sizes."""
    roots = [program.roots[symbol.name] for symbol in program.symbols]
    assumed = assumptions_of(program.exported)
    varying = (each for each in assumed if each.free_symbols and each.free_symbols <= {*roots})
    written = dict.fromkeys(map(PythonPrinter().doprint, varying))
    names = ", ".join(map(str, roots))
    return [eval(f"lambda {names}: {each}", {"math": math, "torch": torch}) for each in written]
