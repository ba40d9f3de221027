"""Write the expression of a size in other sizes, such as those of a delegate's operands.

A size of torch's is an expression of symbols. The other sizes may show a symbol, or a quotient of one alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv


def place_symbols(count: int) -> list[sympy.Symbol]:
    """Return the symbols that stand for sizes in what `express` returns, by their places."""
    return [sympy.Symbol(f"place{place}", integer=True, nonnegative=True) for place in range(count)]


def express(expression: Any, others: Sequence[Any]) -> Any:
    """Return an expression in other sizes, which `place_symbols` stand for; None if it needs more than these.

    Args:
        expression: the size's expression.
        others: the expressions of the other sizes, or None for those that are not known.

    >>> s = sympy.Symbol("s", integer=True, positive=True)
    >>> express(FloorDiv(s, 20) - 1, [None, FloorDiv(s, 5) - 1])
    (((place1 + 1)//4)) - 1
    >>> express(2 * s, [s + 3]), express(s, [FloorDiv(s, 5)])
    (2*place0 - 6, None)
    """
    symbols = place_symbols(len(others))
    known = [(other, symbol) for other, symbol in zip(others, symbols, strict=True) if other is not None]
    roots, quotients = _solved(known, sympy.Symbol), list(_solved(known, FloorDiv))
    by_root: dict[Any, Any] = {}
    for root, value in roots:
        if not isinstance(by_root.get(root), sympy.Symbol):
            by_root[root] = value
    parts = {
        atom: found
        for atom in expression.atoms(FloorDiv)
        if not atom.free_symbols <= by_root.keys() and (found := _quotient(atom, quotients)) is not None
    }
    written = expression.xreplace(parts).xreplace(by_root)
    return written if written.free_symbols <= set(symbols) else _shifted(expression, known)


def _solved(known: Sequence[tuple[Any, Any]], kind: type) -> Iterator[tuple[Any, Any]]:
    """Yield each symbol, or each quotient, that a size is a whole multiple of plus a number, by that size."""
    for other, symbol in known:
        offset, rest = other.as_coeff_Add()
        factor, root = rest.as_coeff_Mul()
        if isinstance(root, kind) and offset.is_Integer and factor.is_Integer and factor != 0:
            yield root, symbol - offset if factor == 1 else FloorDiv(symbol - offset, factor)


def _quotient(atom: Any, quotients: Sequence[tuple[Any, Any]]) -> Any:
    """Return a quotient by a multiple of another quotient's divisor: (s + 5) // 20 is (s // 5 + 1) // 4."""
    dividend, divisor = atom.args
    for quotient, value in quotients:
        of, by = quotient.args
        more = sympy.expand(dividend - of)
        whole = all(each.is_Integer for each in (divisor, by, more))
        if whole and by > 0 and divisor % by == 0 and more % by == 0:
            return FloorDiv(value + more // by, divisor // by)
    return None


def _shifted(expression: Any, known: Sequence[tuple[Any, Any]]) -> Any:
    """Return another size plus a number, or None if there is none such."""
    differences = ((sympy.expand(expression - other), symbol) for other, symbol in known)
    return next((symbol + more for more, symbol in differences if more.is_Integer), None)


def remainders_repeat_after(expressions: Sequence[Any]) -> int:
    """Return a number after which the remainders in some expressions repeat, if their divisors are fixed.

    >>> s = sympy.Symbol("s", integer=True, positive=True)
    >>> remainders_repeat_after([FloorDiv(s, 4) + 1, 2 * FloorDiv(s + 1, 6)])
    12
    """
    divisors = {each.args[1] for expression in expressions for each in expression.atoms(FloorDiv)}
    return int(sympy.ilcm(1, *(each for each in divisors if each.is_Integer), 1))
