"""Write rows of a state in place.

ExecuTorch would copy the whole buffer, write the rows into the copy, and copy it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from dimorder.capture.state import left_in_state
from dimorder.graph.exported import state_of
from dimorder.graph.nodes import are_equal_shapes
from dimorder.graph.prediction import computed_before

aten = ops.edge.aten


def write_in_place(program: ExportedProgram) -> ExportedProgram:
    """Turn each `index_put` into `index_put_` if it computes the new value of the buffer that it reads.

    Nothing else may read the buffer, and no other buffer or output may get that value. ExecuTorch's own pass
    (exir.passes.reinplace) asks less: it overwrites what a view of the buffer still reads.
    """
    left, buffers = left_in_state(program), state_of(program)
    results: Any = program.graph.output_node().args[0]
    counted = dict[tuple[Node, int], Node]()
    for node in program.graph.find_nodes(op="call_function", target=aten.index_put.default):
        (buffer, indices, values, *_), dim = node.args, _dimension_of_rows(node)
        is_own = left.get(buffers.get(buffer.name, "")) is node and results.count(node) == 1
        reads = sum(pytree.tree_leaves(user.args).count(buffer) for user in buffer.users)
        if dim is None or not is_own or reads != 1 or _has_view(node):
            continue
        place = indices[dim], buffer.meta["val"].shape[dim]
        if place not in counted:
            counted[place] = _counted_from_first(node, *place)
        node.args = (buffer, [*indices[:dim], counted[place]], values)
        node.target = aten.index_put_.default
    return program


def _has_view(node: Node) -> bool:
    """Return whether a view reads the new value: ExecuTorch would read it from a copy that is not written."""
    views = [user for user in node.users if user.target is aten.view_copy.default]
    return any(all(user.op != "output" for user in view.users) or _has_view(view) for view in views)


def _dimension_of_rows(node: Node) -> int | None:
    """Return the dimension along which a call writes whole rows, or None.

    The runtime's kernel writes nothing else in place: it adds nothing, and repeats no value.
    """
    operands: Sequence[Any] = node.args
    buffer, indices, values, *add = operands
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if any(add) or node.kwargs or len(given) != 1:
        return None
    ((dim, index),) = given
    places, written, shape = index.meta["val"], values.meta["val"], [*buffer.meta["val"].shape]
    if places.dim() != 1 or places.dtype not in (torch.int32, torch.int64):
        return None
    shape[dim] = places.shape[0]
    return dim if are_equal_shapes(written.shape, shape) else None


def _counted_from_first(node: Node, index: Node, size: int) -> Node:
    """Return positions, those below 0 counted from the first row too: `index_put_` refuses negative ones."""
    below = computed_before(node, aten.lt.Scalar, index, 0)
    moved = computed_before(node, aten.add.Scalar, index, size)
    return computed_before(node, aten.where.self, below, moved, index)
