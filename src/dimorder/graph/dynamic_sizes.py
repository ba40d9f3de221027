"""Represent numbers that depend on dynamic sizes, and find them in graphs that differ in nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from dimorder.graph.nodes import VALUE, tensors_in

FIX = "fix the size, or lower one program for each size that is needed"


class DynamicSizeError(Exception):
    """A number that depends on dynamic sizes was used where it must be the same at all sizes.

    `node` is the node whose number it is, if that is known.
    """

    def __init__(self, found: str, node: Node | None = None) -> None:
        super().__init__(found)
        self.node = node


class DynamicSize(int):
    """A number that depends on dynamic sizes: its value at the first of several points, and all its values.

    Arithmetic with whole numbers gives such numbers again. A comparison must come out the same at all points;
    two of them are equal if they are so at all points.

    >>> height = DynamicSize.of((5, 7, 11))
    >>> height * 2 + 1, height * 3 // height, height == 5, height > 3
    (11 | 15 | 23, 3, False, True)
    >>> height > 6
    Traceback (most recent call last):
    dimorder.graph.dynamic_sizes.DynamicSizeError: 5 | 7 | 11
    """

    values: tuple[int, ...]

    @staticmethod
    def of(values: Iterable[int]) -> int:
        """Return a number with these values at the points; a plain one if they are all the same."""
        known = tuple(map(int, values))
        if len(set(known)) == 1:
            return known[0]
        number = DynamicSize(known[0])
        number.values = known
        return number

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


def common_divisor(numbers: Sequence[int]) -> int:
    """Return the greatest number that divides all of these, at every point.

    >>> common_divisor((DynamicSize.of((18, 50)), DynamicSize.of((27, 75)))), common_divisor((8, 12))
    (9 | 25, 4)
    """
    points = next((len(number.values) for number in numbers if isinstance(number, DynamicSize)), 1)
    values = (n.values if isinstance(n, DynamicSize) else (n,) * points for n in numbers)
    return DynamicSize.of(math.gcd(*each) for each in zip(*values, strict=True))


def is_fixed(sizes: Iterable[Any]) -> bool:
    """Return whether none of these numbers depends on a dynamic size."""
    return not any(isinstance(size, DynamicSize) for size in sizes)


@dataclass(frozen=True)
class DynamicCall:
    """The numbers of a node at all sizes: those that depend on dynamic sizes are `DynamicSize`s.

    Attributes:
        args: The node's arguments.
        kwargs: The node's arguments by name.
        shapes: The shapes of its results.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shapes: Sequence[tuple[int, ...]]

    def at(self, place: int) -> DynamicCall:
        """Return the numbers at one of the points."""

        def value(number: DynamicSize) -> int:
            return number.values[place]

        return DynamicCall(*pytree.tree_map_only(DynamicSize, value, (self.args, self.kwargs, self.shapes)))


def is_dynamic(node: Node, numbers: Mapping[Node, DynamicCall]) -> bool:
    """Return whether a number of a node, or of a value that it reads, depends on a dynamic size."""
    calls = [numbers[each] for each in (node, *node.all_input_nodes) if each in numbers]
    read = [(call.args, call.kwargs, call.shapes) for call in calls]
    return not is_fixed(pytree.tree_leaves(read))


def dynamic_calls(graphs: Sequence[Graph]) -> dict[Node, DynamicCall]:
    """Return the numbers of each node of the first graph, from graphs with the same nodes at several points.

    Raises `DynamicSizeError` if the graphs differ in anything but numbers.

    >>> import torch
    >>> graphs = [Graph() for _ in range(2)]
    >>> for size, graph in enumerate(graphs, start=3):
    ...     _ = graph.call_function(torch.ops.aten.view.default, (graph.placeholder("x"), [size, 2]))
    >>> [call.args for call in dynamic_calls(graphs).values()]
    [(), (x, [3 | 4, 2])]
    """
    rows = list(zip(*(graph.nodes for graph in graphs), strict=False))
    first = {node: row[0] for row in rows for node in row}
    if len({len(graph.nodes) for graph in graphs}) > 1:
        raise DynamicSizeError("the number of operators", rows[-1][0] if rows else None)
    calls = {}
    for row in rows:
        if len({(node.op, node.target) for node in row}) > 1:
            raise DynamicSizeError(" or ".join(dict.fromkeys(str(node.target) for node in row)), row[0])
        try:
            args, kwargs = merge_numbers([(node.args, node.kwargs) for node in row], first)
        except DynamicSizeError as error:
            raise DynamicSizeError(str(error), row[0]) from error
        columns = zip(*(tensors_in(node.meta.get(VALUE)) for node in row), strict=True)
        shapes = [
            tuple(map(DynamicSize.of, zip(*(tensor.shape for tensor in each), strict=True)))
            for each in columns
        ]
        calls[row[0]] = DynamicCall(args, kwargs, shapes)
    return calls


def _is_same(value: Any, other: Any) -> bool:
    return bool(value == other or (value != value and other != other))  # NaN is the same as NaN


def merge_numbers(values: Sequence[Any], first: Mapping[Node, Node]) -> Any:
    """Return what values of several graphs have in common, with a `DynamicSize` for ints that differ.

    Args:
        values: an argument in each of the graphs.
        first: the nodes of the first graph, by their own and by those of the other graphs.

    Raises:
        DynamicSizeError: if the values differ in anything else.
    """
    one = values[0]
    if isinstance(one, Node):
        if {first.get(value) for value in values} == {one}:
            return one
    elif isinstance(one, (list, tuple)):
        if all(isinstance(value, (list, tuple)) and len(value) == len(one) for value in values):
            merged = [merge_numbers(each, first) for each in zip(*values, strict=True)]
            return tuple(merged) if isinstance(one, tuple) else merged
    elif isinstance(one, Mapping):
        if all(isinstance(value, Mapping) and list(value) == list(one) for value in values):
            return {key: merge_numbers([value[key] for value in values], first) for key in one}
    elif all(type(value) is type(one) and _is_same(value, one) for value in values):
        return one
    elif all(type(value) is int for value in values):
        return DynamicSize.of(values)
    raise DynamicSizeError(" or ".join(dict.fromkeys(map(str, values))))
