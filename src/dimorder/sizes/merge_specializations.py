"""Decides how the programs that one plan makes at several sizes become one program for all sizes.

They have the same nodes and differ in numbers alone. Each number that varies is written as what it is at
every one of these sizes: the size of a dimension of an operand, an affine function of one, a product of two,
or the entry of a view's shape that torch finds out itself.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch.fx import Graph, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer
from torch.utils import _pytree as pytree

from dimorder.capture.captured import operator_name, where
from dimorder.errors import UnsupportedError

aten = torch.ops.aten

FIX = "fix the size, or lower one program for each size that is needed"
_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.view_copy.default)


@dataclass(frozen=True)
class _Varying:
    """A number that is another one in each of several programs."""

    values: tuple[int, ...]


@dataclass(frozen=True)
class _Dimension:
    """A dimension of a value, with its sizes in each of several programs."""

    node: Node
    dim: int
    sizes: tuple[int, ...]


# From what a number is in each of several programs, and from what some sizes are there, to how the one is
# made of the others; None where it is not known.
Formulas = Callable[[Sequence[int], Sequence[Sequence[int]]], "Callable[[Any], Any] | None"]


class Unifier:
    """Grows the one graph of several.

    `graphs` are alike, and each node's `meta["val"]` has its shape in its own program. `formulas` know
    numbers that are no affine functions of sizes.
    """

    def __init__(self, graphs: Sequence[Graph], formulas: Formulas = lambda values, sizes: None) -> None:
        self.rows = _rows(graphs)
        self.formulas = formulas
        self.graph = Graph()
        self.made: dict[Node, Node] = {}  # by the node of the first graph
        self.first: dict[Node, Node] = {}  # of each graph's node: that of the first one
        self.sizes: dict[tuple[Node, int], Node] = {}
        self.given: list[_Dimension] = []
        self.seen: list[_Dimension] = []  # of all values so far

    def unified(self, broadcast: Mapping[str, Sequence[torch.Tensor]] | None = None) -> Graph:
        """The one graph. `broadcast` are the constants that vary in size alone, by the names of the nodes
        that give them: each is made of what such a node gives then, with a size of 1 where it varies.

        Raises `UnsupportedError` for the first node that differs otherwise.
        """
        inputs = [row for row in self.rows if row[0].op == "placeholder"]
        for row in inputs:
            self._keep(row, self.graph.node_copy(row[0]))
            self.given += list(_varying_dims(row)) if row[0].name not in (broadcast or {}) else []
        for row in inputs:
            if broadcast and row[0].name in broadcast:
                self.made[row[0]] = self._grown(row, broadcast[row[0].name])
        for row in self.rows[len(inputs) :]:
            if row[0].op == "get_attr" and broadcast and row[0].name in broadcast:
                self._keep(row, self.graph.node_copy(row[0]))
                self.made[row[0]] = self._grown(row, broadcast[row[0].name])
            elif row[0].op == "output":
                self.graph.output(self._merged([node.args[0] for node in row], row))
            else:
                self._keep(row, self._call(row))
        return self.graph

    def _call(self, row: Sequence[Node]) -> Node:
        first = row[0]
        args, kwargs = self._merged([(node.args, node.kwargs) for node in row], row)
        if first.target in _VIEWS:
            args = (args[0], self._left_to_torch(args[1], row), *args[2:])
        args, kwargs = pytree.tree_map_only(_Varying, lambda v: self._written(v, row), (args, kwargs))
        return self.graph.create_node(first.op, first.target, args, kwargs, first.name)

    def _keep(self, row: Sequence[Node], made: Node) -> None:
        made.name = row[0].name
        made.meta = {key: value for key, value in row[0].meta.items() if key != "val"}
        self.made[row[0]] = made
        self.first.update(dict.fromkeys(row, row[0]))
        self.seen += _varying_dims(row)

    def _merged(self, values: Sequence[Any], row: Sequence[Node]) -> Any:
        """What the values are in all programs; a `_Varying` where they are ints that differ."""
        first = values[0]
        if isinstance(first, Node):
            if {self.first.get(value) for value in values} == {self.first[first]}:
                return self.made[self.first[first]]
        elif isinstance(first, (list, tuple)):
            if all(isinstance(value, (list, tuple)) and len(value) == len(first) for value in values):
                merged = [self._merged(each, row) for each in zip(*values, strict=True)]
                return tuple(merged) if isinstance(first, tuple) else merged
        elif isinstance(first, Mapping):
            if all(isinstance(value, Mapping) and list(value) == list(first) for value in values):
                return {key: self._merged([value[key] for value in values], row) for key in first}
        elif all(type(value) is type(first) and value == first for value in values):
            return first
        elif all(type(value) is int for value in values):
            return _Varying(tuple(values))
        raise SizesError(row[0], f"{_told(values)}, by the sizes")

    def _left_to_torch(self, shape: Sequence[Any], row: Sequence[Node]) -> list[Any]:
        """A view's shape with one entry left out, where several vary: one that is written in no other way."""
        places = [i for i, size in enumerate(shape) if isinstance(size, _Varying)]
        if not places:
            return list(shape)
        unknown = [i for i in places if self._dimension(shape[i], row) is None]
        left = next(iter(unknown), places[0])
        return [-1 if i == left else size for i, size in enumerate(shape)]

    def _written(self, number: _Varying, row: Sequence[Node]) -> Node:
        """The number by sizes of what the call reads, or of the program's inputs, or of another value."""
        dims = [*self._read(row), *self.given]
        found = formula(number.values, [dim.sizes for dim in dims])
        if found is not None:
            size, *others = (self._size(dims[i]) for i in found.of)
            for other in others:
                size = self._number(operator.mul, size, other)
            if found.factor != 1:
                size = self._number(operator.mul, size, found.factor)
            if found.offset:
                size = self._number(operator.add, size, found.offset)
            return size if found.divisor == 1 else self._number(operator.floordiv, size, found.divisor)
        alike = next((dim for dim in reversed(self.seen) if dim.sizes == number.values), None)
        if alike is not None:
            return self._size(alike)
        known = self.formulas(number.values, [dim.sizes for dim in dims])
        if known is not None:
            made: Proxy = known(_Read(self, dims))
            return made.node
        raise SizesError(row[0], f"the number {_told(number.values)}, by the sizes")

    def _dimension(self, number: _Varying, row: Sequence[Node]) -> _Dimension | None:
        """A dimension that has this size: of what the call reads, or of the program's inputs."""
        dims = [*self._read(row), *self.given]
        return next((dim for dim in dims if dim.sizes == number.values), None)

    def _read(self, row: Sequence[Node]) -> Iterator[_Dimension]:
        for operands in zip(*(node.all_input_nodes for node in row), strict=True):
            yield from _varying_dims(operands)

    def _size(self, dim: _Dimension) -> Node:
        key = dim.node, dim.dim
        if key not in self.sizes:
            made = self.made[self.first[dim.node]]
            self.sizes[key] = self._number(aten.sym_size.int, made, dim.dim)
        return self.sizes[key]

    def _number(self, target: Any, *args: Any) -> Node:
        return self.graph.create_node("call_function", target, args, name="size")

    def _grown(self, row: Sequence[Node], values: Sequence[torch.Tensor]) -> Node:
        """A constant that is the same along each dimension whose size varies."""
        shapes = zip(*(value.shape for value in values), strict=True)
        shape = [
            sizes[0] if len(set(sizes)) == 1 else self._written(_Varying(tuple(sizes)), row)
            for sizes in shapes
        ]
        args = (self.made[row[0]], shape)
        return self.graph.create_node(
            "call_function", aten.expand.default, args, name=f"{row[0].name}_repeated"
        )


@dataclass(frozen=True)
class _Read:
    """Sizes of dimensions as a graph has them, each once it is asked for."""

    unifier: Unifier
    dims: Sequence[_Dimension]

    def __getitem__(self, place: int) -> Proxy:
        return Proxy(self.unifier._size(self.dims[place]), GraphAppendingTracer(self.unifier.graph))


@dataclass(frozen=True)
class Formula:
    """A number made of sizes: `factor` times the product of those at the places `of`, plus `offset`, over
    `divisor`."""

    factor: int
    of: tuple[int, ...]
    offset: int
    divisor: int = 1

    def __call__(self, sizes: Sequence[Any]) -> Any:
        product = self.factor
        for place in self.of:
            product = product * sizes[place]
        total = product + self.offset
        return total if self.divisor == 1 else total // self.divisor


def formula(values: Sequence[int], sizes: Sequence[Sequence[int]]) -> Formula | None:
    """How a number that has these values is made of sizes that have these; None where it is not found.

    One that is a size comes first, then an affine function of one, a multiple of a product of two, and a part
    of one or of such a product.

    >>> formula((7, 11, 19), [(2, 3, 4), (3, 5, 9)])
    Formula(factor=2, of=(1,), offset=1, divisor=1)
    >>> formula((12, 30, 72), [(2, 3, 4), (3, 5, 9)])
    Formula(factor=2, of=(0, 1), offset=0, divisor=1)
    >>> formula((12, 24, 20), [(32, 64, 160), (96, 96, 32)])
    Formula(factor=1, of=(0, 1), offset=0, divisor=256)
    """
    if len(set(values)) == 1:
        return Formula(values[0], (), 0)
    places = range(len(sizes))
    for place in places:
        if tuple(sizes[place]) == tuple(values):
            return Formula(1, (place,), 0)
    for place in places:
        found = _affine(values, sizes[place])
        if found is not None:
            return Formula(found[0], (place,), found[1])
    for one, other in itertools.combinations_with_replacement(places, 2):
        found = _affine(values, [a * b for a, b in zip(sizes[one], sizes[other], strict=True)])
        if found is not None and found[1] == 0:
            return Formula(found[0], (one, other), 0)
    for of in (*((place,) for place in places), *itertools.combinations_with_replacement(places, 2)):
        products = [math.prod(each) for each in zip(*(sizes[place] for place in of), strict=True)]
        parts = {Fraction(value, product) for value, product in zip(values, products, strict=True)}
        if len(parts) == 1:
            (part,) = parts
            return Formula(part.numerator, of, 0, part.denominator)
    return None


def _affine(values: Sequence[int], sizes: Sequence[int]) -> tuple[int, int] | None:
    """Whole numbers a > 0 and c such that each value is a times its size, plus c; None if there are none."""
    at = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
    if at is None:
        return None
    factor, rest = divmod(values[at] - values[0], sizes[at] - sizes[0])
    offset = values[0] - factor * sizes[0]
    fits = all(value == factor * size + offset for value, size in zip(values, sizes, strict=True))
    return (factor, offset) if fits and not rest and factor > 0 else None


def quotient(values: Sequence[int], sizes: Sequence[Sequence[int]]) -> Formula | None:
    """The same, where a size may also be divided. At sizes that leave a rest this may not be what was meant.

    >>> quotient((4, 7, 10), [(10, 16, 22)])
    Formula(factor=1, of=(0,), offset=-2, divisor=2)
    """
    found = formula(values, sizes)
    for place, known in enumerate(sizes if found is None else ()):
        at = next((i for i, size in enumerate(known) if size != known[0]), None)
        if at is None:
            continue
        factor = Fraction(values[at] - values[0], known[at] - known[0])
        offset = (values[0] - factor * known[0]) * factor.denominator
        made = Formula(factor.numerator, (place,), int(offset), factor.denominator)
        if [made(each) for each in zip(*sizes, strict=True)] == list(values):
            return made
    return found


def broadcast_row(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """What several tensors are that differ in sizes alone: with a size of 1 along each dimension that varies.

    None where they differ in more than that.

    >>> broadcast_row([torch.tensor([[1, 2]] * 3), torch.tensor([[1, 2]] * 5)])
    tensor([[1, 2]])
    """
    if len({tensor.dim() for tensor in tensors}) != 1:
        return None
    row = tensors[0]
    for d, sizes in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
        if len(set(sizes)) > 1:
            row = row.narrow(d, 0, 1)
    if not all(torch.equal(tensor, row.expand(tensor.shape)) for tensor in tensors):
        return None
    return row.contiguous()


class SizesError(UnsupportedError):
    """That one program cannot be written for all sizes; `node` is the operator that is the reason."""

    def __init__(self, node: Node, found: str) -> None:
        super().__init__(f"{operator_name(node)} ({where(node)})", found, FIX)
        self.node = node


def _rows(graphs: Sequence[Graph]) -> list[tuple[Node, ...]]:
    """The nodes of each graph side by side."""
    rows = list(zip(*(graph.nodes for graph in graphs), strict=False))
    for row in rows:
        if len({(node.op, str(node.target), node.name) for node in row}) > 1:
            raise SizesError(
                row[0], f"{' or '.join(dict.fromkeys(str(n.target) for n in row))}, by the sizes"
            )
    if len({len(graph.nodes) for graph in graphs}) > 1:
        raise SizesError(rows[-1][0], "programs with other operators, by the sizes")
    return rows


def _varying_dims(row: Sequence[Node]) -> Iterator[_Dimension]:
    values = [node.meta.get("val") for node in row]
    if all(isinstance(value, torch.Tensor) for value in values):
        for d, sizes in enumerate(zip(*(value.shape for value in values), strict=False)):  # type: ignore[union-attr]
            if len(set(sizes)) > 1:
                yield _Dimension(row[0], d, tuple(sizes))


def _told(values: Iterable[Any]) -> str:
    return " or ".join(dict.fromkeys(map(str, values)))
