"""Write numbers that depend on dynamic sizes into a graph, computed from the sizes of the graph's values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from dimorder.errors import UnsupportedError
from dimorder.graph.dynamic_sizes import FIX, DynamicSize
from dimorder.graph.nodes import operator_at
from dimorder.sizes.size_table import SizeTable

aten = torch.ops.aten


class SizesError(UnsupportedError):
    """An operator for which one program cannot be written for all sizes; `node` is that operator."""

    def __init__(self, node: Node, found: str) -> None:
        super().__init__(operator_at(node), found, FIX)
        self.node = node


@dataclass(frozen=True)
class _Dim:
    """A dimension of a value of a graph, with its size at each point."""

    node: Node
    dim: int
    values: tuple[int, ...]


class SizeWriter:
    """Writes numbers into a graph; each size that they are computed from is read once.

    Args:
        graph: the graph under construction.
        table: the sizes of the network.
    """

    def __init__(self, graph: Graph, table: SizeTable) -> None:
        self.graph, self.table = graph, table
        self.tracer = _SizeTracer(graph)
        self.dims: dict[Node, list[_Dim]] = {}  # by value: its dynamic dimensions
        self.inputs: list[_Dim] = []
        self.sizes: dict[_Dim, Node] = {}

    def add(self, node: Node, shape: Sequence[int]) -> None:
        """Add a value of the graph, from whose sizes numbers may be computed."""
        sizes = enumerate(shape)
        self.dims[node] = [_Dim(node, d, size.values) for d, size in sizes if isinstance(size, DynamicSize)]
        self.inputs += self.dims[node] if node.op == "placeholder" else []

    def is_size(self, number: DynamicSize, operands: Sequence[Node]) -> bool:
        """Return whether a number is a size of a call's operands or of the inputs."""
        return any(dim.values == number.values for dim in self._near(operands))

    def number(self, number: DynamicSize, origin: Node, operands: Sequence[Node]) -> Node:
        """Return the node of a number.

        It is computed from the sizes of a call's operands, of the inputs, or of any other value. `origin` is
        the call, for errors.
        """
        near = self._near(operands)
        found = self.table.fit(number.values, [dim.values for dim in near])
        if found is not None:
            return self._computed(found, near)
        for dim in (dim for dims in reversed(self.dims.values()) for dim in dims):
            if dim.values == number.values:
                return self._size(dim)
        known = self.table.formula(number.values, [dim.values for dim in near])
        if known is None:
            found_ = f"the number {number}, which depends on a dynamic size in a way that we cannot express"
            raise SizesError(origin, found_)
        return self._computed(known, near)

    def _near(self, operands: Sequence[Node]) -> list[_Dim]:
        return [*(dim for operand in operands for dim in self.dims.get(operand, ())), *self.inputs]

    def _computed(self, function: Callable[[Any], Any], dims: Sequence[_Dim]) -> Node:
        result: Proxy = function(_Reads(self, dims))
        return result.node

    def _size(self, dim: _Dim) -> Node:
        if dim not in self.sizes:
            target: Any = aten.sym_size.int
            self.sizes[dim] = self.graph.create_node(
                "call_function", target, (dim.node, dim.dim), name="size"
            )
        return self.sizes[dim]


class _SizeTracer(GraphAppendingTracer):
    """Names the nodes that arithmetic writes."""

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *_: Any) -> Node:
        return self.graph.create_node(kind, target, args, kwargs, name="size")


@dataclass(frozen=True)
class _Reads:
    """Sizes of dimensions as a graph has them; each is written when it is read."""

    writer: SizeWriter
    dims: Sequence[_Dim]

    def __getitem__(self, place: int) -> Proxy:
        return Proxy(self.writer._size(self.dims[place]), self.writer.tracer)
