"""Export a network with dynamic sizes, and specialize it at points.

A network is exported once, with its symbols: that program defines which numbers are right. The pipeline works
on programs of fixed sizes that are made from it, at a few *points*: a size for each dynamic size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils._sympy.value_ranges import ValueRanges

from dimorder.capture.claims import MOST_SIZES
from dimorder.contract import Contract, Size, Symbol
from dimorder.errors import UnsupportedError, UsageError
from dimorder.graph.expressions import function_of
from dimorder.graph.nodes import tensors_in
from dimorder.graph.prediction import fake_mode_of
from dimorder.sizes.affine import is_affine
from dimorder.sizes.numbers import numbers_of, sizes_in
from dimorder.sizes.range_sizes import ends, middle_of, points_of, sizes_of
from dimorder.sizes.size_table import SizeTable
from dimorder.sizes.specialize_shapes import input_nodes, require_accepted, resize_tensor, specialize_shapes

Point = Mapping[str, int]  # a size for each dynamic size, by its name


@dataclass(frozen=True)
class SymbolicProgram:
    """An exported program with dynamic sizes, each with its range.

    Attributes:
        exported: The program.
        examples: The leaves of the call that it was exported with.
        symbols: The dynamic sizes.
        roots: Torch's own symbols, by the names of the dynamic sizes. A size is `step` times its root.
    """

    exported: ExportedProgram
    examples: tuple[Any, ...]
    symbols: tuple[Symbol, ...]
    roots: Mapping[str, sympy.Symbol]

    def at(self, point: Point) -> ExportedProgram:
        """Return the program with these sizes fixed, and with example inputs of such sizes."""
        return specialize_shapes(self.exported, self.inputs_at(point), format_point(point))

    def require(self, point: Point) -> None:
        """Check that the network accepts these sizes.

        Raises:
            UnsupportedError: for the first operator that does not.
        """
        require_accepted(self.at(point), format_point(point))

    def accepts(self, points: Iterable[Point]) -> bool:
        """Return whether the network accepts sizes that may be outside of the ranges.

        A program without examples is dimorder's own, which does.
        """
        try:
            for point in points if self.examples else ():
                self.require(point)
        except UnsupportedError:
            return False
        return True

    def inputs_at(self, point: Point) -> tuple[Any, ...]:
        """Return the leaves of a call with these sizes."""
        return tuple(
            resize_tensor(leaf, self._shape(node.meta["val"].shape, point))
            if isinstance(leaf, torch.Tensor)
            else leaf
            for node, leaf in zip(input_nodes(self.exported), self.examples, strict=True)
        )

    def rewritten(self, rewrite: Callable[[ExportedProgram], ExportedProgram]) -> SymbolicProgram:
        """Return the same dynamic sizes with a rewritten program, which must compute the same numbers."""
        return replace(self, exported=rewrite(self.exported))

    @property
    def input_shapes(self) -> list[tuple[Size, ...]]:
        """Return the shapes of the tensors among the inputs in sequence, with dynamic sizes by name."""
        return self._named(input_nodes(self.exported))

    @property
    def output_shapes(self) -> list[tuple[Size, ...]]:
        """Return the shapes of the tensors among the outputs, with dynamic sizes by name."""
        results: Any = self.exported.graph.output_node().args[0]
        specs = self.exported.graph_signature.output_specs
        own = (n for n, spec in zip(results, specs, strict=True) if spec.kind is OutputKind.USER_OUTPUT)
        return self._named([node for node in own if isinstance(node, Node)])

    @property
    def corners(self) -> list[Point]:
        """Return the ends of the ranges, in all combinations."""
        return list(points_of(self.symbols, [dict.fromkeys(ends(symbol)) for symbol in self.symbols]))

    def points(self) -> Iterator[Point]:
        """Yield all points of the ranges."""
        return points_of(self.symbols, map(sizes_of, self.symbols))

    @property
    def ranges(self) -> str:
        """Return the dynamic sizes with their ranges, in words."""
        return ", ".join(map(str, self.symbols))

    @property
    def middle(self) -> Point:
        """Return the geometric middle of each range: not an end, if there is a size between."""
        return {symbol.name: middle_of(symbol) for symbol in self.symbols}

    @cached_property
    def numbers(self) -> list[Any]:
        """Return the numbers that the network computes from sizes for its tensors, each once."""
        return numbers_of(self.exported, self.limits)

    def point(self, sizes: Point) -> Point:
        """Return a point with these sizes, and with the middle of each range that has none.

        Raises:
            UsageError: if there is no such dynamic size, or if a size is outside its range.
        """
        known = {symbol.name: symbol for symbol in self.symbols}
        for name, size in sizes.items():
            if name not in known:
                found = f"no symbol {name!r}"
                raise UsageError("cost_at", found, f"give sizes of {', '.join(known)}")
            if size not in sizes_of(known[name]):
                raise UsageError("cost_at", f"{name} = {size}", f"give a size of {known[name]}")
        return {**self.middle, **sizes}

    def make_contract(self, contracts: Sequence[Contract]) -> Contract:
        """Return the contract for all sizes, from the contracts at several points."""
        first = contracts[0]
        inputs, outputs = (
            tuple(replace(spec, shape=shape) for spec, shape in zip(specs, shapes, strict=True))
            for specs, shapes in ((first.inputs, self.input_shapes), (first.outputs, self.output_shapes))
        )
        return Contract(inputs, outputs, self.symbols)

    def table(self, points: Sequence[Point]) -> SizeTable:
        """Return the program's sizes and numbers by their values at these points, the inputs' sizes first."""
        known = dict[tuple[int, ...], Any]()
        for size in (*self.sizes, *self.numbers):
            known.setdefault(tuple(self.size_at(size, point) for point in points), size)
        volumes: dict[tuple[int, ...], Any] = {
            tuple(self.volume_at(each, point) for point in points): math.prod(each) for each in self.volumes
        }
        mode = fake_mode_of(self.exported)
        assert mode is not None, "symbols are of a mode"
        return SizeTable(known, mode, self.limits, volumes)

    @property
    def limits(self) -> dict[sympy.Symbol, ValueRanges[Any]]:
        """Return the ranges of torch's own symbols. torch itself says 2 where a size may be 1."""
        return {self.roots[s.name]: ValueRanges(*(end // s.step for end in ends(s))) for s in self.symbols}

    def roots_at(self, point: Point) -> list[int]:
        """Return the values of torch's symbols at a point, in the order of the dynamic sizes."""
        return [point[symbol.name] // symbol.step for symbol in self.symbols]

    def varying(self, point: Point) -> frozenset[int]:
        """Return the values at a point of all sizes that are dynamic or computed from dynamic ones."""
        return frozenset(self.size_at(size, point) for size in self.sizes)

    def is_affine(self) -> bool:
        """Return whether each size is an affine function of one dynamic size over its range."""
        return all(self._is_affine(size) for size in self.sizes)

    def _is_affine(self, size: Any) -> bool:
        symbols = self.symbols_in(size.node.expr)
        if len(symbols) != 1 or len(size.node.expr.free_symbols) != 1:
            return False
        known, name = sizes_of(symbols[0]), symbols[0].name
        if len(known) > MOST_SIZES:
            (root,) = size.node.expr.free_symbols
            return bool(size.node.expr.is_polynomial(root) and sympy.degree(size.node.expr, root) == 1)
        return is_affine([self.size_at(size, {**self.middle, name: each}) for each in known], known)

    def symbols_in(self, expression: Any) -> list[Symbol]:
        """Return the dynamic sizes in an expression of torch's symbols."""
        return self._known_values(expression)[0]

    def _known_values(self, expression: Any) -> tuple[list[Symbol], dict[tuple[int, ...], int]]:
        """Return the dynamic sizes in an expression, and its known values by their roots."""
        if expression not in self._expressions:
            free = expression.free_symbols
            self._expressions[expression] = [s for s in self.symbols if self.roots[s.name] in free], {}
        return self._expressions[expression]

    @cached_property
    def _expressions(self) -> dict[Any, tuple[list[Symbol], dict[tuple[int, ...], int]]]:
        return {}

    @cached_property
    def sizes(self) -> list[Any]:
        """Return the distinct sizes of values that are dynamic or computed from dynamic ones."""
        return list(
            {str(size): size for size in sizes_in(self.exported) if not isinstance(size, int)}.values()
        )

    @cached_property
    def volumes(self) -> list[tuple[Any, ...]]:
        """Return the dynamic sizes of each choice of a value's dimensions.

        Views join such dimensions, and means count their elements.
        """
        values = itertools.chain(*(tensors_in(n.meta.get("val")) for n in self.exported.graph.nodes))
        dynamic = ([n for n in value.shape if not isinstance(n, int)] for value in values)
        known = {tuple(map(str, own)): own for own in dynamic}.values()
        chosen = (itertools.combinations(own, n) for own in known for n in range(2, len(own) + 1))
        return list({tuple(map(str, each)): each for each in itertools.chain(*chosen)}.values())

    @cached_property
    def factors(self) -> list[Any]:
        """Return the dynamic sizes as expressions, and the computed factors of those that are products.

        A view may cut a product into its factors: 96 times the rows of windows, say. Two of them may be
        negative.
        """
        sizes = [size.node.expr for size in self.sizes]
        factors = (each for size in sizes if size.is_Mul for each in size.args)
        computed = (sympy.Abs(each) for each in factors if each.args and each.free_symbols)
        return list(dict.fromkeys([*sizes, *computed]))

    @cached_property
    def constant_sizes(self) -> set[int]:
        """Return the other sizes of the program's values."""
        return {size for size in sizes_in(self.exported) if isinstance(size, int)}

    def _shape(self, shape: Sequence[Any], point: Point) -> tuple[int, ...]:
        return tuple(self.size_at(size, point) for size in shape)

    def volume_at(self, sizes: Sequence[Any], point: Point) -> int:
        """Return the product of some sizes of a value at a point."""
        return math.prod(self._shape(sizes, point))

    def size_at(self, size: Any, point: Point) -> int:
        """Return a size of the program, or a number that it computes from sizes, at a point."""
        return size if isinstance(size, int) else self.value(size.node.expr, point)

    def value(self, expression: Any, point: Point) -> int:
        """Return the value of an expression of torch's symbols at a point."""
        symbols, known = self._known_values(expression)
        roots = tuple(point[symbol.name] // symbol.step for symbol in symbols)
        if roots not in known:
            own = tuple(self.roots[symbol.name] for symbol in symbols)
            known[roots] = int(function_of(expression, own)(*roots))
        return known[roots]

    def _named(self, nodes: Sequence[Node]) -> list[tuple[Size, ...]]:
        own = {s: sympy.Symbol(s.name, integer=True, positive=True) for s in self.symbols}
        known = {self.roots[s.name]: size / s.step for s, size in own.items()}
        values = (node.meta.get("val") for node in nodes)
        return [
            tuple(
                size if isinstance(size, int) else str(size.node.expr.xreplace(known)) for size in value.shape
            )
            for value in values
            if isinstance(value, torch.Tensor)
        ]


def format_point(point: Point) -> str:
    """Return a point in words.

    >>> format_point({"N": 4, "H": 64})
    'N = 4, H = 64'
    """
    return ", ".join(f"{name} = {size}" for name, size in point.items())
