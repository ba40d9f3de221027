"""Make one exported program with dynamic sizes from the programs at several sizes.

Nothing is traced with symbols: torch would fix a size wherever one of its operators compares it. The shape of
each value follows from its shapes in the programs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import SymInt, Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node, map_arg
from torch.utils import _pytree as pytree
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from dimorder.graph.exported import remade
from dimorder.graph.nodes import MAX_SHAPE, set_meta, set_value
from dimorder.graph.tracing import at_most, shape_of
from dimorder.sizes.affine import fit_formula
from dimorder.sizes.merge_specializations import GraphMerger, SizesError, broadcast_row


@dataclass(frozen=True)
class SizeTable:
    """The sizes of a network in torch's symbols, by their values at several points.

    Attributes:
        known: the sizes, by their values at the points.
        mode: makes tensors of such sizes.
        ranges: the ranges of the symbols, as an exported program has them.
    """

    known: Mapping[tuple[int, ...], SymInt]
    mode: FakeTensorMode
    ranges: Mapping[Any, Any]

    def size(self, values: Sequence[int]) -> int | SymInt | None:
        """Return the size with these values at the points; None if no size of the network explains it."""
        if len(set(values)) == 1:
            return values[0]
        if tuple(values) in self.known:
            return self.known[tuple(values)]
        found = fit_formula(values, list(self.known))
        return None if found is None else found(list(self.known.values()))

    def most(self, values: Sequence[int]) -> int:
        """Return the maximum of the size with these values at the points; `sys.maxsize` if it is unknown."""
        size = self.size(values)
        return sys.maxsize if size is None else at_most(size)

    def formula(
        self, values: Sequence[int], others: Sequence[Sequence[int]]
    ) -> Callable[[Sequence[Any]], Any] | None:
        """Return a function that computes a size from other sizes, as torch does: with floors.

        None if the size depends on anything else.

        Args:
            values: the size's values at the points.
            others: the values of each of the other sizes.
        """
        size, roots = self.size(values), dict[Any, tuple[int, int]]()
        for place, each in enumerate(others):
            step, root = (
                self.known[tuple(each)].node.expr.as_coeff_Mul() if tuple(each) in self.known else (1, None)
            )
            roots.setdefault(root, (place, int(step)))
        if not isinstance(size, SymInt) or not size.node.expr.free_symbols <= roots.keys():
            return None
        expression = size.node.expr
        needed = {root: roots[root] for root in expression.free_symbols}

        def compute(sizes: Sequence[Any]) -> Any:
            given = {
                root: sizes[place] if step == 1 else sizes[place] // step
                for root, (place, step) in needed.items()
            }
            return sympy_interp(PythonReferenceAnalysis, given, expression)

        return compute

    def tensor(self, values: Sequence[Tensor]) -> Tensor | None:
        """Return a tensor without data that has these shapes at the points; None if a size is not known."""
        shape = [self.size(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
        if None in shape:
            return None
        first, sizes = values[0], [size for size in shape if size is not None]
        with self.mode:
            return torch.empty_strided(sizes, _strides(first, sizes), dtype=first.dtype, device=first.device)


def record_max_shapes(programs: Sequence[Graph], sizes: SizeTable) -> None:
    """Note on each convolution of a network at several sizes, and on its operand, how large it is at most.

    `tracing.max_shape_of` reads the note.
    """
    convolutions = (
        graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default) for graph in programs
    )
    for row in zip(*convolutions, strict=False):
        for nodes in (row, [node.all_input_nodes[0] for node in row]):
            most = tuple(map(sizes.most, zip(*map(shape_of, nodes), strict=False)))
            for node in nodes:
                set_meta(node, MAX_SHAPE, most)


def merge_programs(programs: Sequence[ExportedProgram], sizes: SizeTable) -> ExportedProgram:
    """Return one program for all sizes, from the programs at the points of a table.

    Raises:
        UnsupportedError: for the first operator that cannot be written for all sizes.
    """
    first = programs[0]
    state, broadcast = _constants(programs)
    merger = GraphMerger([program.graph for program in programs])
    graph = merger.merge(broadcast)
    targets = {
        s.arg.name: s.target for s in first.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT
    }
    rows = {merger.merged[row[0]]: row for row in merger.rows if row[0] in merger.merged}
    for node in graph.nodes:
        if node.name in targets:
            set_value(node, sizes.mode.from_tensor(state[str(targets[node.name])], static_shapes=True))
        elif node in rows:
            set_value(node, _value(rows[node], sizes, broadcast.get(rows[node][0].name)))
        elif node.op == "call_function":  # a number computed from sizes
            args = map_arg(node.args, lambda read: read.meta["val"])
            set_value(node, node.target(*args))
    ranges = dict(sizes.ranges)
    return remade(first, root=torch.nn.Module(), graph=graph, state_dict=state, range_constraints=ranges)


def _constants(programs: Sequence[ExportedProgram]) -> tuple[dict[str, Tensor], dict[str, list[Tensor]]]:
    """Return the constants, with a size of 1 wherever they vary, and by node name those that vary."""
    state: dict[str, Tensor] = {}
    broadcast: dict[str, list[Tensor]] = {}
    nodes = {node.name: node for node in programs[0].graph.nodes}
    for spec in programs[0].graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            continue
        held = [p.state_dict[str(spec.target)] for p in programs if str(spec.target) in p.state_dict]
        row = broadcast_row(held) if len(held) == len(programs) else None
        if row is None:
            user = next(iter(nodes[spec.arg.name].users))
            raise SizesError(user, f"the constant {spec.target}, which is another one for each size")
        state[str(spec.target)] = row
        if len({tensor.shape for tensor in held}) > 1:
            broadcast[spec.arg.name] = held
    return state, broadcast


def _value(row: Sequence[Node], sizes: SizeTable, repeated: Sequence[Tensor] | None) -> Any:
    """Return a node's value, from its values in all programs, or from a constant that is expanded."""
    columns = [pytree.tree_leaves(node.meta["val"]) for node in row]
    if repeated is not None:
        one = broadcast_row(repeated)
        columns = [[one.expand(each.shape)] for each in repeated if one is not None]
    made = [sizes.tensor(each) for each in zip(*columns, strict=True)]
    if None in made:
        shapes = " or ".join(str(tuple(shape)) for shape in map(_shape, columns))
        raise SizesError(row[0], f"the shape {shapes}, which is made of no sizes of the network")
    return pytree.tree_unflatten(made, pytree.tree_structure(row[0].meta["val"]))


def _shape(leaves: Sequence[Tensor]) -> Sequence[int]:
    return leaves[0].shape


def _strides(like: Tensor, shape: Sequence[Any]) -> list[Any]:
    """Return the strides of a dense tensor with that shape, in the order of `like`.

    A dimension that is expanded keeps its stride of 0.
    """
    strides: list[Any] = [0] * len(shape)
    step: Any = 1
    for d in sorted(_moving(like), key=lambda d: (like.stride(d), -d)):
        strides[d] = step
        step = step * shape[d]
    return strides


def _moving(like: Tensor) -> Iterator[int]:
    return (d for d in range(like.dim()) if like.stride(d) or like.shape[d] == 1)
