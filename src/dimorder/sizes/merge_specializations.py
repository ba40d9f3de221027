"""Merge the programs that one plan makes at several sizes into one program for all sizes.

The programs have the same nodes and differ only in numbers. Each number that varies is written by sizes that
explain it in all these programs: the size of a dimension of an operand, an affine function of one, or a
product of two. In a view's shape it may be the one entry that torch computes itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer
from torch.utils import _pytree as pytree

from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import VALUE, copy_meta, drop_meta, operator_at
from dimorder.sizes.affine import fit_formula

aten = torch.ops.aten

FIX = "fix the size, or lower one program for each size that is needed"
_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.view_copy.default)


@dataclass(frozen=True)
class _Varying:
    """A number with another value in each of several programs."""

    values: tuple[int, ...]


@dataclass(frozen=True)
class _Dimension:
    """A dimension of a value, with its size in each of several programs."""

    node: Node
    dim: int
    sizes: tuple[int, ...]


# From a number's value in each of several programs, and from sizes there, to a function that computes the
# number from the sizes; None if it is not known.
Formulas = Callable[[Sequence[int], Sequence[Sequence[int]]], "Callable[[Any], Any] | None"]


class GraphMerger:
    """A builder of one graph from several graphs that differ in sizes.

    Args:
        graphs: graphs with the same nodes. Each node's `meta["val"]` has its shape in its own program.
        formulas: knows numbers that are not affine functions of sizes.
    """

    def __init__(self, graphs: Sequence[Graph], formulas: Formulas = lambda values, sizes: None) -> None:
        self.rows = _rows(graphs)
        self.formulas = formulas
        self.graph = Graph()
        self.merged: dict[Node, Node] = {}  # by the node of the first graph
        self.first_node: dict[Node, Node] = {}  # each graph's node → that of the first graph
        self.sizes: dict[tuple[Node, int], Node] = {}
        self.input_dims: list[_Dimension] = []
        self.all_dims: list[_Dimension] = []  # of all values so far

    def merge(self, broadcast: Mapping[str, Sequence[torch.Tensor]] | None = None) -> Graph:
        """Return the one graph.

        Args:
            broadcast: the constants that differ only in size, by the names of their nodes. Each node then has
                a size of 1 wherever it varies, and is expanded from that.

        Raises:
            UnsupportedError: for the first node that differs in anything else.
        """
        inputs = [row for row in self.rows if row[0].op == "placeholder"]
        for row in inputs:
            self._keep(row, self.graph.node_copy(row[0]))
            self.input_dims += list(_varying_dims(row)) if row[0].name not in (broadcast or {}) else []
        for row in inputs:
            if broadcast and row[0].name in broadcast:
                self.merged[row[0]] = self._grown(row, broadcast[row[0].name])
        for row in self.rows[len(inputs) :]:
            if row[0].op == "get_attr" and broadcast and row[0].name in broadcast:
                self._keep(row, self.graph.node_copy(row[0]))
                self.merged[row[0]] = self._grown(row, broadcast[row[0].name])
            elif row[0].op == "output":
                self.graph.output(self._merge_values([node.args[0] for node in row], row))
            else:
                self._keep(row, self._call(row))
        return self.graph

    def _call(self, row: Sequence[Node]) -> Node:
        first = row[0]
        args, kwargs = self._merge_values([(node.args, node.kwargs) for node in row], row)
        if first.target in _VIEWS:
            args = (args[0], self._left_to_torch(args[1], row), *args[2:])
        args, kwargs = pytree.tree_map_only(_Varying, lambda v: self._size_node(v, row), (args, kwargs))
        return self.graph.create_node(first.op, first.target, args, kwargs, first.name)

    def _keep(self, row: Sequence[Node], made: Node) -> None:
        made.name = row[0].name
        drop_meta(copy_meta(made, row[0]), VALUE)
        self.merged[row[0]] = made
        self.first_node.update(dict.fromkeys(row, row[0]))
        self.all_dims += _varying_dims(row)

    def _merge_values(self, values: Sequence[Any], row: Sequence[Node]) -> Any:
        """Return what the values are in all programs; a `_Varying` if they are ints that differ."""
        first = values[0]
        if isinstance(first, Node):
            if {self.first_node.get(value) for value in values} == {self.first_node[first]}:
                return self.merged[self.first_node[first]]
        elif isinstance(first, (list, tuple)):
            if all(isinstance(value, (list, tuple)) and len(value) == len(first) for value in values):
                merged = [self._merge_values(each, row) for each in zip(*values, strict=True)]
                return tuple(merged) if isinstance(first, tuple) else merged
        elif isinstance(first, Mapping):
            if all(isinstance(value, Mapping) and list(value) == list(first) for value in values):
                return {key: self._merge_values([value[key] for value in values], row) for key in first}
        elif all(type(value) is type(first) and value == first for value in values):
            return first
        elif all(type(value) is int for value in values):
            return _Varying(tuple(values))
        raise SizesError(row[0], f"{_format_values(values)}, by the sizes")

    def _left_to_torch(self, shape: Sequence[Any], row: Sequence[Node]) -> list[Any]:
        """Return a view's shape with one varying entry left to torch.

        An entry that no size explains is preferred.
        """
        places = [i for i, size in enumerate(shape) if isinstance(size, _Varying)]
        if not places:
            return list(shape)
        unknown = [i for i in places if self._dimension(shape[i], row) is None]
        left = next(iter(unknown), places[0])
        return [-1 if i == left else size for i, size in enumerate(shape)]

    def _size_node(self, number: _Varying, row: Sequence[Node]) -> Node:
        """Return the node that computes a number from sizes.

        The sizes are those of the call's operands, of the program's inputs, or of another value.
        """
        dims = [*self._read(row), *self.input_dims]
        found = fit_formula(number.values, [dim.sizes for dim in dims])
        if found is not None:
            size, *others = (self._size(dims[i]) for i in found.of)
            for other in others:
                size = self._number(operator.mul, size, other)
            if found.factor != 1:
                size = self._number(operator.mul, size, found.factor)
            if found.offset:
                size = self._number(operator.add, size, found.offset)
            return size if found.divisor == 1 else self._number(operator.floordiv, size, found.divisor)
        alike = next((dim for dim in reversed(self.all_dims) if dim.sizes == number.values), None)
        if alike is not None:
            return self._size(alike)
        known = self.formulas(number.values, [dim.sizes for dim in dims])
        if known is not None:
            made: Proxy = known(_Read(self, dims))
            return made.node
        raise SizesError(row[0], f"the number {_format_values(number.values)}, by the sizes")

    def _dimension(self, number: _Varying, row: Sequence[Node]) -> _Dimension | None:
        """Return a dimension with this size, of the call's operands or of the program's inputs."""
        dims = [*self._read(row), *self.input_dims]
        return next((dim for dim in dims if dim.sizes == number.values), None)

    def _read(self, row: Sequence[Node]) -> Iterator[_Dimension]:
        for operands in zip(*(node.all_input_nodes for node in row), strict=True):
            yield from _varying_dims(operands)

    def _size(self, dim: _Dimension) -> Node:
        key = dim.node, dim.dim
        if key not in self.sizes:
            made = self.merged[self.first_node[dim.node]]
            self.sizes[key] = self._number(aten.sym_size.int, made, dim.dim)
        return self.sizes[key]

    def _number(self, target: Any, *args: Any) -> Node:
        return self.graph.create_node("call_function", target, args, name="size")

    def _grown(self, row: Sequence[Node], values: Sequence[torch.Tensor]) -> Node:
        """Return a constant, expanded along each dimension whose size varies."""
        shapes = zip(*(value.shape for value in values), strict=True)
        shape = [
            sizes[0] if len(set(sizes)) == 1 else self._size_node(_Varying(tuple(sizes)), row)
            for sizes in shapes
        ]
        args = (self.merged[row[0]], shape)
        return self.graph.create_node(
            "call_function", aten.expand.default, args, name=f"{row[0].name}_repeated"
        )


@dataclass(frozen=True)
class _Read:
    """Sizes of dimensions as a graph has them; each is written when it is read."""

    merger: GraphMerger
    dims: Sequence[_Dimension]

    def __getitem__(self, place: int) -> Proxy:
        return Proxy(self.merger._size(self.dims[place]), GraphAppendingTracer(self.merger.graph))


def broadcast_row(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the common content of tensors that differ only in sizes, with a size of 1 wherever they vary.

    None if they differ in anything else.

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
    """An operator for which one program cannot be written for all sizes; `node` is that operator."""

    def __init__(self, node: Node, found: str) -> None:
        super().__init__(operator_at(node), found, FIX)
        self.node = node


def _rows(graphs: Sequence[Graph]) -> list[tuple[Node, ...]]:
    """Return the nodes of each graph side by side."""
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


def _format_values(values: Iterable[Any]) -> str:
    return " or ".join(dict.fromkeys(map(str, values)))
