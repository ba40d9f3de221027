"""Compute expressions of sizes as Python computes them: sympy rounds quotients of floats otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter


@lru_cache(maxsize=65536)
def function_of(expression: sympy.Basic, symbols: tuple[sympy.Symbol, ...]) -> Callable[..., Any]:
    """Return a function that computes an expression of sizes from the values of its symbols.

    >>> from torch.utils._sympy.functions import FloatTrueDiv, IntTrueDiv, ToFloat, TruncToInt
    >>> n = sympy.Symbol("n", integer=True, positive=True)
    >>> function_of(TruncToInt(FloatTrueDiv(ToFloat(n), IntTrueDiv(4 * n, 4))), (n,))(49)
    1
    """
    names = ", ".join(map(str, symbols))
    function: Callable[..., Any] = eval(
        f"lambda {names}: {_Printer().doprint(expression)}", {"math": math, "torch": torch}
    )
    return function


class _Printer(PythonPrinter):
    """Prints floats with all their digits."""

    def _print_Float(self, number: sympy.Float) -> str:
        return repr(float(number))
