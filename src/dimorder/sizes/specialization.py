"""Fix the sizes of a program with dynamic sizes, and record which of its numbers depend on them.

An emitter that can only write graphs of fixed sizes then writes one of them. It sees which numbers are the
same at all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import SymInt, Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node, map_arg
from torch.utils import _pytree as pytree

from dimorder.contract import Symbol
from dimorder.graph.construct import replace_parts
from dimorder.graph.dynamic_sizes import DynamicCall, DynamicSize
from dimorder.graph.exported import keep_names
from dimorder.graph.nodes import set_value, tensors_in
from dimorder.sizes.choose_points import specialization_points
from dimorder.sizes.size_table import SizeTable
from dimorder.sizes.symbolic_program import Point, SymbolicProgram


@dataclass(frozen=True)
class Specialization:
    """A program with dynamic sizes at one point of their ranges.

    Attributes:
        program: The program with fixed sizes and the names of the original.
        calls: The numbers of each node at all sizes.
        table: The sizes of the program by their values at the points.
    """

    program: ExportedProgram
    calls: Mapping[Node, DynamicCall]
    table: SizeTable


def specialize(program: ExportedProgram, symbols: Sequence[Symbol]) -> Specialization:
    """Return a program with dynamic sizes at one point, chosen so that few sizes are equal by chance.

    `symbols` are the program's dynamic sizes in its contract.
    """
    symbolic = _symbolic(program, symbols)
    points = specialization_points(symbolic)
    fixed, calls = _fix_sizes(program, _SizesAtPoints(symbolic, points))
    return Specialization(fixed, calls, symbolic.table(points))


def specialize_each(
    program: ExportedProgram, symbols: Sequence[Symbol]
) -> tuple[list[ExportedProgram], SizeTable]:
    """Return a program with dynamic sizes at each of a few points, and its sizes there; see `specialize`."""
    symbolic = _symbolic(program, symbols)
    points = specialization_points(symbolic)
    programs = [_fix_sizes(program, _SizesAtPoints(symbolic, [point]))[0] for point in points]
    return programs, symbolic.table(points)


def _symbolic(program: ExportedProgram, symbols: Sequence[Symbol]) -> SymbolicProgram:
    roots = zip(symbols, program.range_constraints, strict=True)  # `merge_programs` keeps their sequence
    return SymbolicProgram(program, (), tuple(symbols), {symbol.name: root for symbol, root in roots})


def _fix_sizes(
    program: ExportedProgram, sizes: _SizesAtPoints
) -> tuple[ExportedProgram, Mapping[Node, DynamicCall]]:
    """Return a program with the sizes of the first point, and the numbers of its nodes at all points."""
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
    fixed = replace_parts(program, root=torch.nn.Module(), graph=graph, range_constraints={})
    return fixed, calls


@dataclass(frozen=True)
class _SizesAtPoints:
    """The sizes of a program at several points."""

    program: SymbolicProgram
    points: Sequence[Point]

    def of(self, size: Any) -> int:
        return DynamicSize.of(self.program.size_at(size, point) for point in self.points)

    def tensor(self, value: Tensor) -> Tensor:
        """Return a tensor without data that has the sizes and strides of the first point."""
        sizes, strides = ([int.__int__(self.of(n)) for n in each] for each in (value.shape, value.stride()))
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
