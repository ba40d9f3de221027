"""Write sizes that a network rounds in floats, such as `math.ceil(n / 8)`, in integers and floors.

Files have no floats of sizes. ExecuTorch's modulo of a negative number is negative, as in C++: a floor is the
same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import frexp
from types import MappingProxyType
from typing import Any

import sympy
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatTrueDiv,
    FloorDiv,
    FloorToInt,
    IntTrueDiv,
    Mod,
    PythonMod,
    RoundToInt,
    ToFloat,
    TruncToInt,
)
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from dimorder.capture.claims import holds

_MOST_PARTS = 2**10  # of a fraction of a size: with more, a float is rounded
_MOST_COMPARED = 2**11  # sizes at which integers are compared with floats
_DIVISIONS = (IntTrueDiv, FloatTrueDiv)


def by_floors(expression: Any, ranges: Mapping[Any, ValueRanges[Any]]) -> Any:
    """Return an expression of sizes with floors only. Floats stay if integers would compute something else.

    >>> n = sympy.Symbol("n", integer=True, positive=True)
    >>> by_floors(CeilToInt(IntTrueDiv(n - 4, 4) + 1.0), {n: ValueRanges(4, 90)})
    -(((-n)//4))
    >>> by_floors(TruncToInt(0.29 * ToFloat(n)), {n: ValueRanges(2, 99)})
    ((29*n)//100)
    >>> by_floors(TruncToInt(0.29 * ToFloat(n)), {n: ValueRanges(2, 100)})  # 0.29 * 100 is 28.999999999999996
    TruncToInt(0.29*ToFloat(n))
    """
    expression = expression.replace(PythonMod, _modulo).replace(Mod, _modulo)
    for rounded, write in _ROUNDED.items():
        expression = expression.replace(rounded, lambda n, r=rounded, w=write: _written(r(n), w, ranges))
    return expression


def has_floats(expression: Any) -> bool:
    """Return whether an expression of sizes computes in floats."""
    return bool(expression.has(*_ROUNDED, *_DIVISIONS, ToFloat))


def _written(rounded: Any, write: Callable[[Any, Any], Any], ranges: Mapping[Any, ValueRanges[Any]]) -> Any:
    """Return a number that is rounded in integers, if these compute what floats do."""
    (number,) = rounded.args
    fraction = _fraction(number)
    if fraction is None:
        return rounded
    written = write(*sympy.fraction(sympy.together(fraction)))
    is_floor = not isinstance(rounded, TruncToInt) or bound_sympy(number, dict(ranges)).lower >= 0
    is_right = _is_exact(number) and is_floor
    return written if is_right or holds(sympy.Eq(written, rounded), ranges, _MOST_COMPARED) else rounded


def _fraction(number: Any) -> Any:
    """Return a number of floats as a fraction of integers, or None."""
    if number.is_Float:
        return sympy.Rational(float(number)).limit_denominator(_MOST_PARTS)
    if number.is_integer:
        return number
    if not isinstance(number, (ToFloat, *_DIVISIONS, sympy.Add, sympy.Mul)):
        return None
    parts = [_fraction(each) for each in number.args]
    if None in parts:
        return None
    if isinstance(number, _DIVISIONS):
        return parts[0] / parts[1]
    return parts[0] if isinstance(number, ToFloat) else number.func(*parts)


def _is_exact(number: Any) -> bool:
    """Return whether floats compute a number exactly, or a quotient of integers next to it."""
    divisors = [each.args[1] for each in number.atoms(*_DIVISIONS)]
    are_powers = all(each.is_number and frexp(float(each))[0] == 0.5 for each in divisors)
    are_short = all(_fraction(each) == sympy.Rational(float(each)) for each in number.atoms(sympy.Float))
    return isinstance(number, IntTrueDiv) or (are_powers and are_short)


def _modulo(dividend: Any, divisor: Any) -> Any:
    return dividend - divisor * FloorDiv(dividend, divisor)


def _up(dividend: Any, divisor: Any) -> Any:
    return -FloorDiv(-dividend, divisor)


def _to_even(dividend: Any, divisor: Any) -> Any:
    """Return the nearest integer; of two, the even one: less 1 if the next step would be an odd one."""
    twice = 2 * dividend + divisor
    rest = _modulo(twice, 4 * divisor)
    is_odd_tie = FloorDiv(rest, 2 * divisor) - FloorDiv(rest, 2 * divisor + 1)  # 1 if the rest is 2 * divisor
    return FloorDiv(twice, 2 * divisor) - is_odd_tie


_ROUNDED: Mapping[Any, Callable[[Any, Any], Any]] = MappingProxyType(
    {TruncToInt: FloorDiv, FloorToInt: FloorDiv, CeilToInt: _up, RoundToInt: _to_even}
)
