"""Decides how constants that are another one for each size, such as positions and masks, become one for all:
where each is the beginning of that of the largest sizes, it is a slice of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx import Node

from dimorder.lowering.capture.captured import Captured
from dimorder.lowering.capture.tracing import EXPORTED, SOURCE, without_data
from dimorder.lowering.operators.dialect import SLICE_CONSTANT
from dimorder.lowering.unify import broadcast_row


def slice_constants(programs: Sequence[Captured], largest: Callable[[], Captured]) -> None:
    """Makes the constants that differ between programs of one network at several sizes slices of the same.

    `largest` gives the program at the largest sizes; it is not asked where no constant needs it. What is not
    the beginning of its twin there stays as it is, and so do those that are the same all along.
    """
    rows = [row for row in zip(*map(_constants, programs), strict=False) if _differ(programs, row)]
    if not rows:
        return
    program = largest()
    twins = {node.name: program.constant(node) for node in _constants(program)}
    for row in rows:
        whole = twins.get(row[0].name)
        held = _held(programs, row)
        dims = [
            d
            for d, sizes in enumerate(zip(*(tensor.shape for tensor in held), strict=True))
            if len(set(sizes)) > 1
        ]
        if whole is not None and all(_begins(tensor, whole) for tensor in held):
            for each, node in zip(programs, row, strict=True):
                _slice(each, node, whole, dims)


def _constants(program: Captured) -> Sequence[Node]:
    return program.module.graph.find_nodes(op="get_attr")


def _differ(programs: Sequence[Captured], row: Sequence[Node]) -> bool:
    return len({node.name for node in row}) == 1 and broadcast_row(_held(programs, row)) is None


def _held(programs: Sequence[Captured], row: Sequence[Node]) -> list[torch.Tensor]:
    return [each.constant(node) for each, node in zip(programs, row, strict=True)]


def _begins(tensor: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a tensor is what a longer one begins with along each dimension."""
    if tensor.dim() != whole.dim() or tensor.dtype != whole.dtype:
        return False
    return torch.equal(tensor, whole[tuple(map(slice, tensor.shape))])


def _slice(program: Captured, node: Node, whole: torch.Tensor, dims: Sequence[int]) -> None:
    """Puts the whole constant in place of one, and slices of it along `dims` in place of what read that."""
    shape, users = program.constant(node).shape, list(node.users)
    setattr(program.module, str(node.target), whole.clone(memory_format=torch.contiguous_format))
    node.meta["val"] = without_data(whole)
    source = {key: users[0].meta[key] for key in (*SOURCE, EXPORTED) if key in users[0].meta}
    made, value = node, whole
    first = next(each for each in program.nodes if each.op == "call_function")
    with program.module.graph.inserting_before(first):
        for dim in dims:
            made = program.module.graph.call_function(SLICE_CONSTANT, (made, dim, 0, shape[dim]))
            value = value.narrow(dim, 0, shape[dim])
            made.meta.update(source, val=without_data(value))
    for user in users:
        user.replace_input_with(node, made)
