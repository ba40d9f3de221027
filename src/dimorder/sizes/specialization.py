"""Fix the sizes of a program with dynamic ones, and remember which of its numbers depend on them.

An emitter that writes graphs of fixed sizes writes one, and sees in each number whether it is the same at all
sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import SymInt, Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node, map_arg
from torch.utils import _pytree as pytree

from dimorder.contract import Symbol
from dimorder.graph.exported import keep_names, remade
from dimorder.graph.nodes import set_value, tensors_in
from dimorder.sizes.symbolic import SizeTable
from dimorder.sizes.symbolic_program import SymbolicProgram


class DynamicSizeError(Exception):
    """A number that depends on dynamic sizes was used where it must be the same at all sizes."""


class DynamicSize(int):
    """A number that depends on dynamic sizes: its value at the first of several points, and all its values.

    Arithmetic with whole numbers gives such numbers again. A comparison must come out the same at all points;
    two of them are equal if they are so at all points.

    >>> height = DynamicSize.of((5, 7, 11))
    >>> height * 2 + 1, height * 3 // height, height == 5, height > 3
    (11 | 15 | 23, 3, False, True)
    >>> height > 6
    Traceback (most recent call last):
    dimorder.sizes.specialization.DynamicSizeError: 5 | 7 | 11
    """

    values: tuple[int, ...]

    @staticmethod
    def of(values: Iterable[int]) -> int:
        """Return a number with these values at the points; a plain one if they are all the same."""
        known = tuple(map(int, values))
        if len(set(known)) == 1:
            return known[0]
        made = DynamicSize(known[0])
        made.values = known
        return made

    def _with(self, other: Any, function: Callable[[int, int], Any]) -> list[Any]:
        others = other.values if isinstance(other, DynamicSize) else [other] * len(self.values)
        return [function(a, b) for a, b in zip(self.values, others, strict=True)]

    def _number(self, other: Any, function: Callable[[int, int], Any]) -> Any:
        return DynamicSize.of(self._with(other, function)) if isinstance(other, int) else NotImplemented

    def _same(self, other: Any, function: Callable[[int, int], bool]) -> bool:
        found: set[bool] = set(self._with(other, function))
        if len(found) > 1:
            raise DynamicSizeError(repr(self))
        return found.pop()

    def __add__(self, other: Any) -> Any:
        return self._number(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return self._number(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._number(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return self._number(other, lambda a, b: a * b)

    def __floordiv__(self, other: Any) -> Any:
        return self._number(other, lambda a, b: a // b)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._number(other, lambda a, b: b // a)

    def __mod__(self, other: Any) -> Any:
        return self._number(other, lambda a, b: a % b)

    def __rmod__(self, other: Any) -> Any:
        return self._number(other, lambda a, b: b % a)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return 0 - self

    def __truediv__(self, other: Any) -> Any:
        raise DynamicSizeError(repr(self))

    def __rtruediv__(self, other: Any) -> Any:
        raise DynamicSizeError(repr(self))

    def __float__(self) -> float:
        raise DynamicSizeError(repr(self))

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, int) and all(self._with(other, lambda a, b: a == b))

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return self._same(other, lambda a, b: a < b)

    def __le__(self, other: Any) -> bool:
        return self._same(other, lambda a, b: a <= b)

    def __gt__(self, other: Any) -> bool:
        return self._same(other, lambda a, b: a > b)

    def __ge__(self, other: Any) -> bool:
        return self._same(other, lambda a, b: a >= b)

    def __bool__(self) -> bool:
        return self._same(0, lambda a, b: a != b)

    def __hash__(self) -> int:
        return hash(self.values)

    def __repr__(self) -> str:
        return " | ".join(map(str, self.values))


def values_of(size: int) -> tuple[int, ...] | int:
    """Return a number's values at all points, or the number itself if it depends on no size."""
    return size.values if isinstance(size, DynamicSize) else size


def is_fixed(sizes: Iterable[Any]) -> bool:
    """Return whether none of these numbers depends on a dynamic size."""
    return not any(isinstance(size, DynamicSize) for size in sizes)


@dataclass(frozen=True)
class DynamicCall:
    """The numbers of a node at all sizes: those that depend on dynamic sizes are `DynamicSize`s.

    Attributes:
        args: the node's arguments.
        kwargs: the node's arguments by name.
        shapes: the shapes of its results.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shapes: Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Specialization:
    """A program with dynamic sizes at one point of their ranges.

    Attributes:
        program: the program with fixed sizes and the names of the original.
        calls: the numbers of each node at all sizes.
        table: the sizes of the program by their values at the points.
        count: the number of points.
    """

    program: ExportedProgram
    calls: Mapping[Node, DynamicCall]
    table: SizeTable
    count: int


def specialize(program: ExportedProgram) -> Specialization:
    """Return a program with dynamic sizes at one point, chosen so that few sizes are equal by chance."""
    roots = {str(root): root for root in program.range_constraints}
    symbols = tuple(
        Symbol(str(root), int(ends.lower), int(ends.upper))
        for root, ends in program.range_constraints.items()
    )
    symbolic = SymbolicProgram(program, (), symbols, roots)
    points = symbolic.specialization_points()
    sizes = _SizesAtPoints(
        [{roots[name]: sympy.Integer(size) for name, size in point.items()} for point in points]
    )
    graph = Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    keep_names(graph, program.graph)
    shapes: dict[Node, Sequence[tuple[int, ...]]] = {}
    numbers: dict[Node, int] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, SymInt):
            numbers[node] = sizes.of(value)
        elif value is not None:
            shapes[node] = [tuple(map(sizes.of, tensor.shape)) for tensor in tensors_in(value)]
            set_value(node, pytree.tree_map_only(Tensor, sizes.tensor, value))
    calls: dict[Node, DynamicCall] = {}
    for node in reversed(graph.nodes):
        if node in numbers:
            graph.erase_node(node)
            continue
        args, kwargs = (map_arg(each, lambda n: numbers.get(n, n)) for each in (node.args, node.kwargs))
        calls[node] = DynamicCall(args, kwargs, shapes.get(node, ()))
        node.args, node.kwargs = pytree.tree_map_only(DynamicSize, int.__int__, (args, kwargs))
    fixed = remade(program, root=torch.nn.Module(), graph=graph, range_constraints={})
    return Specialization(fixed, calls, symbolic.table(points), len(points))


class _SizesAtPoints:
    """The sizes of a program at several points, each computed once."""

    def __init__(self, points: Sequence[Mapping[Any, Any]]) -> None:
        self.points = points
        self.known: dict[Any, int] = {}

    def of(self, size: Any) -> int:
        if not isinstance(size, SymInt):
            return int(size)
        expression = size.node.expr
        if expression not in self.known:
            self.known[expression] = DynamicSize.of(int(expression.xreplace(p)) for p in self.points)
        return self.known[expression]

    def tensor(self, value: Tensor) -> Tensor:
        """Return a tensor without data that has the sizes and strides of the first point."""
        sizes, strides = ([int.__int__(self.of(n)) for n in each] for each in (value.shape, value.stride()))
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
