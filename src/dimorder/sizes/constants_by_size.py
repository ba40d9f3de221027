"""Decides how constants that are another one for each size, such as positions and masks, become one for all:
where each is the beginning of that of the largest sizes, it is a slice of it.

Where it is not, as a grid of anchors, what the network makes it of may be: then that is sliced, and the rest
is computed in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch
from torch.fx import Node

from dimorder.capture.captured import Captured, Slices
from dimorder.graph.tracing import EXPORTED, SOURCE, without_data
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.sizes.merge_specializations import broadcast_row

PointT = TypeVar("PointT")


def captured_at(
    points: Sequence[PointT], largest: PointT, capture_at: Callable[[PointT, dict[str, Slices]], Captured]
) -> list[Captured]:
    """A network at several sizes, its constants the same at all of them as far as that can be.

    `capture_at` captures it at one, with some of its constants as slices. It is asked for the largest sizes
    only where a constant differs.
    """
    largest_program = cache(lambda: capture_at(largest, {}))
    programs = [capture_at(point, {}) for point in points]
    if _slice_constants(programs, largest_program):
        return programs
    slices = _of_made(programs, largest_program())
    programs = [capture_at(point, slices) for point in points]
    _slice_constants(programs, cache(lambda: capture_at(largest, slices)))
    return programs


def _slice_constants(programs: Sequence[Captured], largest: Callable[[], Captured]) -> bool:
    """Makes the constants that differ between programs slices of those of the largest; whether that was all.

    What is not the beginning of its twin there stays as it is, and so does what is the same all along.
    """
    rows = [row for row in zip(*map(_constants, programs), strict=False) if _differ(programs, row)]
    twins = {node.name: largest().constant(node) for node in _constants(largest())} if rows else {}
    found = True
    for row in rows:
        whole = twins.get(row[0].name)
        part = _slices([each.constant(node) for each, node in zip(programs, row, strict=True)], whole)
        found &= part is not None
        for each, node in zip(programs, row, strict=True):
            if part is not None:
                _slice(each, node, part)
    return found


def _of_made(programs: Sequence[Captured], largest: Captured) -> dict[str, Slices]:
    """What the network makes of sizes, as slices, by the names of the nodes that do."""
    found = {}
    for name in programs[0].made:
        held = [each.made[name] for each in programs if name in each.made]
        part = _slices(held, largest.made.get(name)) if len(held) == len(programs) else None
        if part is not None and part.dims:
            found[name] = part
    return found


def _constants(program: Captured) -> Sequence[Node]:
    return program.module.graph.find_nodes(op="get_attr")


def _differ(programs: Sequence[Captured], row: Sequence[Node]) -> bool:
    held = [each.constant(node) for each, node in zip(programs, row, strict=True)]
    return len({node.name for node in row}) == 1 and broadcast_row(held) is None


def _slices(held: Sequence[torch.Tensor], whole: torch.Tensor | None) -> Slices | None:
    """The constants as slices of a whole one; None where one is not what that begins with."""
    for tensor in held:
        if whole is None or tensor.dim() != whole.dim() or tensor.dtype != whole.dtype:
            return None
        if not torch.equal(tensor, whole[tuple(map(slice, tensor.shape))]):
            return None
    assert whole is not None
    sizes = zip(*(tensor.shape for tensor in held), strict=True)
    return Slices(whole, tuple(d for d, each in enumerate(sizes) if len(set(each)) > 1))


def _slice(program: Captured, node: Node, part: Slices) -> None:
    """Puts the whole constant in place of one, and slices of it in place of what read that."""
    shape, users = program.constant(node).shape, list(node.users)
    setattr(program.module, str(node.target), part.whole.clone(memory_format=torch.contiguous_format))
    node.meta["val"] = without_data(part.whole)
    source = {key: users[0].meta[key] for key in (*SOURCE, EXPORTED) if key in users[0].meta}
    made, value = node, part.whole
    first = next(each for each in program.nodes if each.op == "call_function")
    with program.module.graph.inserting_before(first):
        for dim in part.dims:
            made = program.module.graph.call_function(SLICE_CONSTANT, (made, dim, 0, shape[dim]))
            value = value.narrow(dim, 0, shape[dim])
            made.meta.update(source, val=without_data(value))
    for user in users:
        user.replace_input_with(node, made)
