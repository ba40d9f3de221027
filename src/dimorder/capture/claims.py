"""Check claims on sizes, and find their largest values, at every size in the ranges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from dimorder.graph.expressions import function_of
from dimorder.graph.prediction import size_assertions

MOST_SIZES = 50_000  # the most sizes, or combinations of sizes, for which assertions are checked


def holds(
    claim: sympy.Basic, ranges: Mapping[sympy.Symbol, ValueRanges[Any]], most: int = MOST_SIZES
) -> bool:
    """Return whether a claim on sizes holds for every size in their ranges.

    The result is also false if a size has no upper bound, or if there are more than `most` sizes to check.
    """
    values = _values(claim, ranges, most)
    return values is not None and all(values)


def holds_throughout(program: ExportedProgram) -> bool:
    """Return whether a program's assertions on sizes hold for every size in their ranges.

    The result is also false if a size has no upper bound, or if there are too many sizes to check.

    >>> class Halves(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.relu() if x.shape[0] % 2 else x.sigmoid()
    >>> dims = ({0: torch.export.Dim("N", min=2, max=9)},)
    >>> program = torch.export.export(
    ...     Halves(), (torch.ones(4),), dynamic_shapes=dims, prefer_deferred_runtime_asserts_over_guards=True
    ... )
    >>> holds_throughout(program)
    False
    """
    ranges = program.range_constraints
    return all(holds(claim, ranges) for claim in dict.fromkeys(_claims(program)))


def _claims(program: ExportedProgram) -> Iterator[sympy.Basic]:
    for node in size_assertions(program):
        value = node.args[0]
        value = value.meta["val"] if isinstance(value, torch.fx.Node) else value
        yield value.node.expr if isinstance(value, torch.SymBool) else sympy.sympify(bool(value))


def largest(
    size: sympy.Basic, ranges: Mapping[sympy.Symbol, ValueRanges[Any]], most: int = MOST_SIZES
) -> int | None:
    """Return the largest value of a size that is computed from others, or None if there are too many values.

    >>> height = sympy.Symbol("H", integer=True)
    >>> largest(height + (-height) % 32, {height: ValueRanges(33, 97)})
    128
    """
    ends = {symbol: known.upper for symbol, known in ranges.items()}
    bound = bound_sympy(size, dict(ranges)).upper
    if bound.is_Integer and bound == size.xreplace(ends):
        return int(bound)
    values = _values(size, ranges, most)
    return None if values is None else int(max(values))


def _values(
    expression: sympy.Basic, ranges: Mapping[sympy.Symbol, ValueRanges[Any]], most: int
) -> Iterator[Any] | None:
    """Yield the values of an expression for all sizes, or return None if there are more than `most`."""
    symbols = tuple(sorted(expression.free_symbols, key=str))
    if any(symbol not in ranges or not ranges[symbol].upper.is_Integer for symbol in symbols):
        return None
    sizes = [range(int(ranges[symbol].lower), int(ranges[symbol].upper) + 1) for symbol in symbols]
    if math.prod(map(len, sizes)) > most:
        return None
    return itertools.starmap(function_of(expression, symbols), itertools.product(*sizes))
