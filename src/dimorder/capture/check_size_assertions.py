"""Check size assertions that torch could not prove, by computing them for every size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy.value_ranges import ValueRanges

MOST = 50_000  # the most sizes, or combinations of sizes, to check


def holds_throughout(program: ExportedProgram) -> bool:
    """Return whether a program's assertions on sizes hold for every size in their ranges.

    The result is also false if a size has no upper bound, or if there are too many sizes to check.

    >>> class Halves(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.relu() if x.shape[0] % 2 else x.sigmoid()
    >>> dims = ({0: torch.export.Dim("N", min=2, max=9)},)
    >>> made = torch.export.export(
    ...     Halves(), (torch.ones(4),), dynamic_shapes=dims, prefer_deferred_runtime_asserts_over_guards=True
    ... )
    >>> holds_throughout(made)
    False
    """
    ranges = program.range_constraints
    return all(_holds(claim, ranges) for claim in dict.fromkeys(_claims(program)))


def _claims(program: ExportedProgram) -> Iterator[sympy.Basic]:
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        value = node.args[0]
        value = value.meta["val"] if isinstance(value, torch.fx.Node) else value
        yield value.node.expr if isinstance(value, torch.SymBool) else sympy.sympify(bool(value))


def _holds(claim: sympy.Basic, ranges: dict[sympy.Symbol, ValueRanges[Any]]) -> bool:
    symbols = sorted(claim.free_symbols, key=str)
    if any(symbol not in ranges or not ranges[symbol].upper.is_Integer for symbol in symbols):
        return False
    sizes = [range(int(ranges[symbol].lower), int(ranges[symbol].upper) + 1) for symbol in symbols]
    if math.prod(map(len, sizes)) > MOST:
        return False
    return all(
        claim.xreplace(dict(zip(symbols, map(sympy.Integer, point), strict=True))) == sympy.true
        for point in itertools.product(*sizes)
    )
