"""Export a network with dynamic sizes, and specialize it at points.

A network is exported once, with its symbols: that program defines which numbers are right. The pipeline works
on programs of fixed sizes that are made from it, at a few *points*: a size for each dynamic size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import sympy
import torch
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod
from torch.utils._sympy.value_ranges import ValueRanges

from dimorder.capture.claims import MOST_SIZES
from dimorder.contract import Contract, Size, Symbol
from dimorder.errors import UnsupportedError, UsageError
from dimorder.sizes.affine import is_affine
from dimorder.sizes.numbers import numbers_of
from dimorder.sizes.points_apart import are_apart, find_three_apart, first_that_differ, products_are_apart
from dimorder.sizes.range_sizes import candidate_sizes, ends, is_odd_prime, middle_of, points_of, sizes_of
from dimorder.sizes.size_table import SizeTable
from dimorder.sizes.specialize_shapes import input_nodes, require_accepted, resize_tensor, specialize_shapes

Point = Mapping[str, int]  # a size for each dynamic size, by its name

_MAX_POINTS = 3  # two determine an affine function of a size, the third confirms it
_MOST_POINTS = 6  # with those that distinguish remainders
_NEAR = (0, -1, 1, -2, 2, -4, 4, -8, 8)  # steps between a point and others, which change remainders
_FAR = (*range(3, 33), *(2**power for power in range(6, 32)))  # the same, where points nearby are all alike
_MANY = 5  # beside so many dynamic sizes, points are sought in fewer steps
_DIVISIONS = (FloorDiv, Mod, PythonMod)


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

    @property
    def verification_points(self) -> list[Point]:
        """Return the points at which a program is run before it is returned.

        They are the corners and the middle. The smallest sizes are followed by those of the first
        specialization, which a file may name: a runtime must then take more memory. A dynamic size that is
        odd at all of these is also tried at an even size. If a number that the network computes from sizes is
        the same at all points and specializations, a point where it differs is added.
        """
        (smallest, *corners), planned = self.corners, self.specialization_points()
        named = [point for point in planned[:1] if point not in self.corners]
        points = [smallest, *named, *corners, self.middle]
        even = {
            symbol.name: size - symbol.step if size > symbol.minimum else size + symbol.step
            for symbol in self.symbols
            if all(point[symbol.name] // symbol.step % 2 for point in points)
            and len(sizes_of(symbol)) > 1
            and (size := self.middle[symbol.name])
        }
        points += [{**self.middle, **even}] if even else []
        for number in self._numbers:
            if len({self.size_at(number, point) for point in (*points, *planned)}) == 1:
                points += itertools.islice(self._where_else(number, points[0]), 1)
        return points

    @cached_property
    def _numbers(self) -> list[Any]:
        """Return the numbers that the network computes from sizes for its tensors, each once."""
        return numbers_of(self.exported, self.limits)

    def _where_else(self, number: Any, point: Point) -> Iterator[Point]:
        """Yield points with other values of a number's own dynamic sizes, at which the number differs."""
        own, known = self._symbols_in(number.node.expr), self.size_at(number, point)
        for sizes in itertools.islice(points_of(own, map(sizes_of, own)), MOST_SIZES):
            other = {**self.middle, **sizes}
            if self.size_at(number, other) != known:
                yield other

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

    def specialization_points(self, wanted: Point | None = None) -> list[Point]:
        """Return the points at which the program is planned.

        A size is its step times its root. If possible, roots are odd primes, so that 2, say, divides a size
        only if it divides all sizes in the range. If possible, no size there is 1, and no two sizes are equal
        by chance. Each size that varies differs between all of the points.

        Args:
            wanted: the first point, if results there do not follow from others and no size there is 1.

        Raises:
            UnsupportedError: if a range has too few sizes.
        """
        varying, constant = self._sizes

        def chance(point: Point) -> tuple[int, int]:
            values = [self.size_at(size, point) for size in varying]
            alike = len(values) - len(set(values)) + sum(value in constant for value in values)
            roots = [point[symbol.name] // symbol.step for symbol in self.symbols]
            odd = 10 * sum(not is_odd_prime(root) for root in roots)
            return 1000 * sum(value < 2 for value in values) + odd + alike, math.prod(point.values())

        found = list[Point]()
        if wanted is not None and chance(wanted)[0] < 1000 and not self.is_affine():
            found.append(wanted)
        needed = min(_MAX_POINTS, len(self.symbols) + 1)  # else one dynamic size could pass for another
        candidates = candidate_sizes(self.symbols, _MAX_POINTS, self._is_above_one)
        short = [str(s) for s, sizes in zip(self.symbols, candidates, strict=True) if len(sizes) < needed]
        if short:
            fix = "give each range three sizes above its step, or two if it is the only one, or fix a size"
            raise UnsupportedError("the ranges of sizes", f"too few sizes in {', '.join(short)}", fix)
        points = sorted(points_of(self.symbols, candidates), key=chance)
        telling = [size for size in varying if len({self.size_at(size, p) for p in points}) >= _MAX_POINTS]

        def repeats(point: Point, others: Sequence[Point]) -> bool:
            return any(self.size_at(size, point) == self.size_at(size, p) for size in telling for p in others)

        best = (p for p in points if not repeats(p, found) and products_are_apart([*found, p]))
        for point in itertools.chain(best, points):
            if len(found) < _MAX_POINTS and are_apart([*found, point]):
                found.append(point)
        if len(found) < _MAX_POINTS:  # few sizes: the first points may leave none for the last
            found = find_three_apart([*found, *points]) or found
        if len(found) > 1 and self._count_varying(found) < len(self._remainders):
            *found, last = found  # else n // 2 and (n - 1) // 2, say, could pass for one another
            ways = [self._among(self._around(point, _NEAR[:3])) for point in (last, *found)]
            near = (p for p in itertools.chain(*ways) if chance(p)[0] < 1000)
            apart = (p for p in near if are_apart([*found, p]) and products_are_apart([*found, p]))
            others = sorted((p for p in apart if not repeats(p, found)), key=chance)
            found.append(max([last, *others], key=lambda p: self._count_varying([*found, p])))
        if len(found) < needed:
            reason = f"too few sizes to distinguish {self.ranges}"
            raise UnsupportedError("the ranges of sizes", reason, "give wider ranges, or fix a size")
        return self._with_points_apart(found)

    def _is_above_one(self, symbol: Symbol, size: int) -> bool:
        """Return whether no size is 1, as deep layers have it of small images. Others are the largest."""
        point = {**self.corners[-1], symbol.name: size}
        own = (each for each in self._sizes[0] if symbol in self._symbols_in(each.node.expr))
        return all(self.size_at(each, point) > 1 for each in own)

    def _with_points_apart(self, points: Sequence[Point]) -> list[Point]:
        """Return points, and others at which numbers differ that are equal here, such as H % 2 and W % 2.

        Such points are near. A quotient such as (H - 1) // 32 may differ at an end of its range alone.
        """
        found, steps = list(points), _NEAR if len(self.symbols) < _MANY else _NEAR[:3]
        around = zip(self.symbols, self._around(points[-1], steps), strict=True)
        sizes = [[*sizes, *self._farther(symbol, found)] for symbol, sizes in around]
        near = [point for point in self._among(sizes) if self._is_general(point)]
        wanted = sum(bool(n.free_symbols) for n in {size.node.expr for size in self._sizes_and_numbers})
        while near and len(found) < _MOST_POINTS and self._count_apart(found) < wanted:
            best = max(near, key=lambda point: self._count_apart([*found, point]))
            if self._count_apart([*found, best]) == self._count_apart(found):
                break
            found.append(best)
        return found

    def _around(self, point: Point, steps: Sequence[int]) -> list[list[int]]:
        """Return the sizes that are some steps away from those of a point."""
        return [[point[s.name] + s.step * step for step in steps] for s in self.symbols]

    def _among(self, sizes: Sequence[Sequence[int]]) -> list[Point]:
        """Return the points of these sizes that are in the ranges, and the corners."""
        return [p for p in (*points_of(self.symbols, sizes), *self.corners) if self._contains(p)]

    def _farther(self, symbol: Symbol, points: Sequence[Point]) -> list[int]:
        """Return sizes at which numbers differ that are alike at all points, such as H // 32 near one H."""
        own = [size for size in self._sizes_and_numbers if symbol in self._symbols_in(size.node.expr)]
        known, last = sizes_of(symbol), points[-1]
        steps = (sign * symbol.step * step for step in _FAR for sign in (1, -1))
        sizes = (*(last[symbol.name] + step for step in steps), known[-1], known[0])
        others = [{**last, symbol.name: size} for size in sizes if size in known]
        above_one = [p for p in others if all(self.size_at(size, p) > 1 for size in self._sizes[0])]
        rows = [[self.size_at(size, point) for size in own] for point in (*points, *above_one)]
        found = [above_one[place][symbol.name] for place in first_that_differ(rows, len(points))]
        return [size for each in found for size in (each, each - symbol.step)]

    def _is_general(self, point: Point) -> bool:
        """Return whether no size is 1 or less at a point, and no two dynamic sizes are equal."""
        return min(self.size_at(s, point) for s in self._sizes[0]) > 1 and are_apart([point])

    def _count_apart(self, points: Sequence[Point]) -> int:
        """Return how many of the sizes and numbers differ between the points, and from one another."""
        values = {tuple(self.size_at(s, point) for point in points) for s in self._sizes_and_numbers}
        return sum(len(set(each)) > 1 for each in values)

    @property
    def _sizes_and_numbers(self) -> list[Any]:
        """Return what the program computes from its dynamic sizes, after these sizes themselves."""
        return [*self._sizes[0], *self._numbers]

    @cached_property
    def _remainders(self) -> list[Any]:
        """Return the remainder of each division in the program's sizes and numbers."""
        expressions = [size.node.expr for size in self._sizes_and_numbers]
        divisions = {each.args for expression in expressions for each in expression.atoms(*_DIVISIONS)}
        return [PythonMod(dividend, divisor) for dividend, divisor in sorted(divisions, key=str)]

    def _contains(self, point: Point) -> bool:
        return all(point[symbol.name] in sizes_of(symbol) for symbol in self.symbols)

    def _count_varying(self, points: Sequence[Point]) -> int:
        """Return how many remainders differ between the points."""
        return sum(len({self._value(each, p) for p in points}) > 1 for each in self._remainders)

    def table(self, points: Sequence[Point]) -> SizeTable:
        """Return the program's sizes and numbers by their values at these points, the inputs' sizes first."""
        known = dict[tuple[int, ...], Any]()
        for size in self._sizes_and_numbers:
            known.setdefault(tuple(self.size_at(size, point) for point in points), size)
        mode = detect_fake_mode([node.meta.get("val") for node in input_nodes(self.exported)])
        assert mode is not None, "symbols are of a mode"
        return SizeTable(known, mode, self.limits)

    @property
    def limits(self) -> dict[sympy.Symbol, ValueRanges[Any]]:
        """Return the ranges of torch's own symbols. torch itself says 2 where a size may be 1."""
        return {self.roots[s.name]: ValueRanges(*(end // s.step for end in ends(s))) for s in self.symbols}

    def varying(self, point: Point) -> frozenset[int]:
        """Return the values at a point of all sizes that are dynamic or computed from dynamic ones."""
        return frozenset(self.size_at(size, point) for size in self._sizes[0])

    def is_affine(self) -> bool:
        """Return whether each size is an affine function of one dynamic size over its range."""
        return all(self._is_affine(size) for size in self._sizes[0])

    def _is_affine(self, size: Any) -> bool:
        symbols = self._symbols_in(size.node.expr)
        if len(symbols) != 1 or len(size.node.expr.free_symbols) != 1:
            return False
        known, name = sizes_of(symbols[0]), symbols[0].name
        if len(known) > MOST_SIZES:
            (root,) = size.node.expr.free_symbols
            return bool(size.node.expr.is_polynomial(root) and sympy.degree(size.node.expr, root) == 1)
        return is_affine([self.size_at(size, {**self.middle, name: each}) for each in known], known)

    def _symbols_in(self, expression: Any) -> list[Symbol]:
        return [symbol for symbol in self.symbols if self.roots[symbol.name] in expression.free_symbols]

    @cached_property
    def _known_sizes(self) -> dict[Any, tuple[list[Symbol], dict[tuple[int, ...], int]]]:
        """Return, for each expression, the dynamic sizes in it, and its known values by their roots."""
        return {}

    @cached_property
    def _sizes(self) -> tuple[list[Any], set[int]]:
        """Return the distinct sizes of the program's values: those that vary, and the constant ones."""
        varying: dict[str, Any] = {}
        constant: set[int] = set()
        for node in self.exported.graph.nodes:
            for value in pytree.tree_leaves(node.meta.get("val")):
                if isinstance(value, torch.Tensor):
                    constant.update(size for size in value.shape if isinstance(size, int))
                    varying.update({str(size): size for size in value.shape if not isinstance(size, int)})
        return list(varying.values()), constant

    def _shape(self, shape: Sequence[Any], point: Point) -> tuple[int, ...]:
        return tuple(self.size_at(size, point) for size in shape)

    def size_at(self, size: Any, point: Point) -> int:
        """Return a size of the program, or a number that it computes from sizes, at a point."""
        return size if isinstance(size, int) else self._value(size.node.expr, point)

    def _value(self, expression: Any, point: Point) -> int:
        if expression not in self._known_sizes:
            self._known_sizes[expression] = self._symbols_in(expression), {}
        symbols, known = self._known_sizes[expression]
        roots = tuple(point[symbol.name] // symbol.step for symbol in symbols)
        if roots not in known:
            own = {self.roots[s.name]: sympy.Integer(r) for s, r in zip(symbols, roots, strict=True)}
            known[roots] = int(expression.xreplace(own))
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
