"""Merge the programs that one plan makes at several sizes into one program for all sizes.

The programs have the same nodes and differ only in numbers. Each number that varies is computed from sizes
that explain it in all programs. One such number in a view's shape may be left to torch. Nothing is traced
with symbols: torch would fix a size wherever one of its operators compares it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node, map_arg
from torch.utils import _pytree as pytree

from dimorder.graph.construct import replace_parts
from dimorder.graph.dynamic_sizes import DynamicCall, DynamicSize, DynamicSizeError, dynamic_calls
from dimorder.graph.nodes import VALUE, copy_meta, drop_meta, set_value
from dimorder.graph.quantized import are_equal
from dimorder.sizes.size_table import SizeTable
from dimorder.sizes.size_writer import SizesError, SizeWriter

aten = torch.ops.aten


def merge_programs(programs: Sequence[ExportedProgram], table: SizeTable) -> ExportedProgram:
    """Return one program for all sizes, from the programs at the points of a table.

    Raises:
        UnsupportedError: for the first operator that cannot be written for all sizes.
    """
    first = programs[0]
    state, repeated = _constants(programs)
    merger = _Merger(table)
    calls = _calls([program.graph for program in programs])
    inputs = [node for node in calls if node.op == "placeholder"]
    for node in inputs:
        merger.keep(node, merger.graph.node_copy(node))
        if node.name in repeated:
            set_value(merger.merged[node], table.constant(repeated[node.name]))
        else:
            merger.add_value(node, calls[node])
    for node in inputs:
        if node.name in repeated:
            merger.expand(node, calls[node], repeated[node.name])
    for node, call in calls.items():
        if node.op == "output":
            merger.graph.output(map_arg(call.args[0], merger.merged.__getitem__))
        elif node not in inputs:
            merger.write(node, call)
    for node in merger.graph.nodes:
        if VALUE not in node.meta and node.op == "call_function":  # a number computed from sizes
            set_value(node, node.target(*map_arg(node.args, lambda read: read.meta[VALUE])))
    ranges = dict(table.ranges)
    root = torch.nn.Module()
    return replace_parts(first, root=root, graph=merger.graph, state_dict=state, range_constraints=ranges)


def _constants(programs: Sequence[ExportedProgram]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the constants, with a size of 1 wherever they vary, and by node name those that vary."""
    state: dict[str, Tensor] = {}
    repeated: dict[str, Tensor] = {}
    nodes = {node.name: node for node in programs[0].graph.nodes}
    for spec in programs[0].graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            continue
        tensors = [p.state_dict[str(spec.target)] for p in programs if str(spec.target) in p.state_dict]
        row = broadcast_row(tensors) if len(tensors) == len(programs) else None
        if row is None:
            user = next(iter(nodes[spec.arg.name].users))
            raise SizesError(user, f"the constant {spec.target}, whose values depend on a dynamic size")
        state[str(spec.target)] = row
        if len({tensor.shape for tensor in tensors}) > 1:
            repeated[spec.arg.name] = row
    return state, repeated


def _calls(graphs: Sequence[Graph]) -> dict[Node, DynamicCall]:
    try:
        return dynamic_calls(graphs)
    except DynamicSizeError as error:
        assert error.node is not None
        raise SizesError(error.node, f"{error}, which depends on a dynamic size") from error


class _Merger:
    """The one graph under construction, whose nodes have the names and places of the first program's."""

    def __init__(self, table: SizeTable) -> None:
        self.graph, self.table = Graph(), table
        self.sizes = SizeWriter(self.graph, table)
        self.merged: dict[Node, Node] = {}  # by the node of the first graph

    def keep(self, node: Node, written: Node) -> None:
        written.name = node.name
        drop_meta(copy_meta(written, node), VALUE)
        self.merged[node] = written

    def add_value(self, node: Node, call: DynamicCall, like: Tensor | None = None) -> None:
        """Write what a node returns, from its shapes. `like` has its strides, if its own value has not."""
        leaves, tree = pytree.tree_flatten(node.meta[VALUE] if like is None else like)
        values = [self.table.tensor(*each) for each in zip(leaves, call.shapes, strict=True)]
        if None in values:
            found = (
                f"the shape {call.shapes[0]}, which depends on a dynamic size in a way that we cannot express"
            )
            raise SizesError(node, found)
        set_value(self.merged[node], pytree.tree_unflatten(values, tree))
        if isinstance(node.meta[VALUE], Tensor):
            self.sizes.add(self.merged[node], call.shapes[0])

    def write(self, node: Node, call: DynamicCall) -> None:
        """Write a call."""
        args, kwargs = map_arg((call.args, call.kwargs), self.merged.__getitem__)
        operands = [self.merged[operand] for operand in node.all_input_nodes]
        if node.target is aten.view.default:
            args = (args[0], self._left_to_torch(args[1], operands))
        args, kwargs = pytree.tree_map_only(DynamicSize, self._number(node, operands), (args, kwargs))
        self.keep(node, self.graph.create_node(node.op, node.target, args, kwargs, node.name))
        self.add_value(node, call)

    def expand(self, node: Node, call: DynamicCall, row: Tensor) -> None:
        """Expand a constant along each dimension whose size varies."""
        shape = pytree.tree_map_only(DynamicSize, self._number(node, []), list(call.shapes[0]))
        target: Any = aten.expand.default
        name = f"{node.name}_repeated"
        self.merged[node] = self.graph.create_node(
            "call_function", target, (self.merged[node], shape), name=name
        )
        self.add_value(node, call, row.expand(node.meta[VALUE].shape))

    def _number(self, node: Node, operands: Sequence[Node]) -> Callable[[DynamicSize], Node]:
        return lambda number: self.sizes.number(number, node, operands)

    def _left_to_torch(self, shape: Sequence[Any], operands: Sequence[Node]) -> list[Any]:
        """Return a view's shape with one varying entry left to torch.

        An entry that no size explains is preferred.
        """
        places = [i for i, size in enumerate(shape) if isinstance(size, DynamicSize)]
        unknown = [i for i in places if not self.sizes.is_size(shape[i], operands)]
        left = next(iter([*unknown, *places]), None)
        return [-1 if i == left else size for i, size in enumerate(shape)]


def broadcast_row(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the common content of tensors that differ only in sizes, with a size of 1 wherever they vary.

    None if they differ in anything else.

    >>> broadcast_row([torch.tensor([[1, 2]] * 3), torch.tensor([[1, 2]] * 5)])
    tensor([[1, 2]])
    """
    if len({tensor.dim() for tensor in tensors}) != 1:
        return None
    sizes = zip(*(tensor.shape for tensor in tensors), strict=True)
    row = first_places(tensors[0], [d for d, each in enumerate(sizes) if len(set(each)) > 1])
    if not all(are_equal(tensor, row.expand(tensor.shape)) for tensor in tensors):
        return None
    return row.contiguous()


def first_places(tensor: Tensor, dims: Iterable[int]) -> Tensor:
    """Return the first place of a tensor along dimensions, which stay with a size of 1."""
    for dim in dims:
        tensor = tensor.narrow(dim, 0, 1)
    return tensor
