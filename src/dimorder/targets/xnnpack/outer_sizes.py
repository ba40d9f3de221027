"""Write the numbers of the outer program that depend on dynamic sizes, and the shapes of its delegates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from dimorder.contract import Contract
from dimorder.errors import UnsupportedError
from dimorder.sizes.affine import fit_formula, fit_quotient
from dimorder.sizes.merge_specializations import FIX, SizesError
from dimorder.sizes.specialization import DynamicSize, Specialization
from dimorder.sizes.symbolic_program import dims_of
from dimorder.targets.delegate import SizeFormula

aten = torch.ops.aten

SizedShape = tuple[int, ...]


@dataclass(frozen=True)
class _Dim:
    """A dimension of a value of a graph, with its size at each point."""

    node: Node
    dim: int
    values: tuple[int, ...]


@dataclass
class SizeWriter:
    """Writes numbers that depend on dynamic sizes into a graph, from the sizes of its values."""

    graph: Graph
    specialization: Specialization
    inputs: list[_Dim] = field(default_factory=list)
    seen: list[_Dim] = field(default_factory=list)  # of all values so far
    sizes: dict[tuple[Node, int], Node] = field(default_factory=dict)

    def add(self, node: Node, shape: SizedShape) -> None:
        """Add a value of the graph."""
        dims = [_Dim(node, d, size.values) for d, size in enumerate(shape) if isinstance(size, DynamicSize)]
        self.seen += dims
        self.inputs += dims if node.op == "placeholder" else []

    def number(self, size: DynamicSize, origin: Node, operands: Sequence[Node]) -> Node:
        """Return the node of a number.

        It is computed from the sizes of a call's operands, of the inputs, or of any other value.
        """
        dims = [*(dim for dim in self.seen if dim.node in operands), *self.inputs]
        found = fit_formula(size.values, [dim.values for dim in dims])
        if found is not None:
            return self._computed(found, dims)
        same = next((dim for dim in reversed(self.seen) if dim.values == size.values), None)
        if same is not None:
            return self.size(same)
        known = self.specialization.table.formula(size.values, [dim.values for dim in dims])
        if known is None:
            raise SizesError(origin, f"the number {size}, by the sizes")
        return self._computed(known, dims)

    def _computed(self, function: Callable[[Any], Any], dims: Sequence[_Dim]) -> Node:
        result: Proxy = function(_Reads(self, dims))
        return result.node

    def size(self, dim: _Dim) -> Node:
        key = dim.node, dim.dim
        if key not in self.sizes:
            target: Any = aten.sym_size.int
            self.sizes[key] = self.graph.call_function(target, key)
        return self.sizes[key]


@dataclass(frozen=True)
class _Reads:
    """Sizes of dimensions as a graph has them; each is written when it is read."""

    writer: SizeWriter
    dims: Sequence[_Dim]

    def __getitem__(self, place: int) -> Proxy:
        return Proxy(self.writer.size(self.dims[place]), GraphAppendingTracer(self.writer.graph))


def result_shapes(
    name: str, reads: Sequence[SizedShape], results: Sequence[SizedShape], specialization: Specialization
) -> list[list[int | SizeFormula]]:
    """Return the shapes of a delegate's results, by formulas of the sizes of its operands."""
    columns = list(_values([size for shape in reads for size in shape], specialization.count))
    shapes = []
    for shape in results:
        sizes: list[int | SizeFormula] = []
        for size in shape:
            if not isinstance(size, DynamicSize):
                sizes.append(size)
                continue
            found = specialization.table.formula(size.values, columns) or fit_quotient(size.values, columns)
            if found is None:
                made = f"results of {shape}, which are made of no sizes of its operands"
                raise UnsupportedError(name.replace("_", " "), made, FIX)
            sizes.append(found)
        shapes.append(sizes)
    return shapes


def _values(sizes: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    for size in sizes:
        yield size.values if isinstance(size, DynamicSize) else (size,) * count


def dynamic_dims(shapes: Sequence[SizedShape]) -> list[list[int]]:
    """Return the dimensions of each shape whose size is dynamic."""
    return [[d for d, size in enumerate(shape) if isinstance(size, DynamicSize)] for shape in shapes]


def symbols_of(contract: Contract) -> Any:
    """Return the dynamic sizes of a program's inputs, as torch.export wants them."""
    dims = dims_of(contract.symbols)
    return tuple(
        {d: dims[size] for d, size in enumerate(spec.boundary_shape) if isinstance(size, str)}
        for spec in contract.inputs
    )
