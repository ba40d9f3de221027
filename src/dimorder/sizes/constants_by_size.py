"""Replace constants that depend on a dynamic size, such as positions and masks, by slices of the largest one.

This works if each constant is the beginning, the end or the middle of the one for the largest sizes. If it is
none of these, as for a grid of anchors, a value that the network computes from it may be. Then that value is
sliced, and the rest is computed in each call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch
from torch.fx import Node

from dimorder.capture.captured import Captured, Slices
from dimorder.capture.passes import may_broadcast
from dimorder.clock import Progress, report_each
from dimorder.graph.nodes import EXPORTED, add_meta, bound, set_value, source_of
from dimorder.graph.prediction import without_data
from dimorder.graph.quantized import are_equal
from dimorder.ops.attention import ATTENTION
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.ops.masks import hidden_by
from dimorder.sizes.merge_specializations import broadcast_row, first_places

PointT = TypeVar("PointT")

_SHARES = (0, 1, 0.5)  # of what is left out, which lies before a window: see `Slices`


def capture_specializations(
    points: Sequence[PointT],
    largest: PointT,
    capture_at: Callable[[PointT, dict[str, Slices]], Captured],
    progress: Progress = lambda step: None,
) -> list[Captured]:
    """Capture a network at several sizes, with constants that are the same at all of them if possible.

    Args:
        points: the sizes.
        largest: the largest sizes; the network is captured there only if a constant differs.
        capture_at: captures the network at one point, with some of its constants as slices.
        progress: is told of each point.
    """
    first: list[Captured] = []

    def captured(slices: dict[str, Slices], point: PointT) -> Captured:
        program = capture_at(point, slices)
        if not first:
            first.append(program)
        program.share_constants(first[0])
        return program

    largest_program = cache(lambda: captured({}, largest))
    programs = [captured({}, point) for point in report_each(points, "capture", progress)]
    masks = [mask for program in programs for mask in _masks(program)]
    masks += _masks(largest_program()) if masks else []
    # Each call finds the rows that a slice hides: torch's attention gives zeros for them.
    hides = any(map(_may_hide_rows, masks))
    # An index that is a constant takes other pieces at other sizes.
    if _are_alike(programs) and not hides and _slice_constants(programs, largest_program):
        return programs
    slices = _computed_slices(programs, largest_program())
    programs = [captured(slices, point) for point in report_each(points, "capture", progress)]
    _slice_constants(programs, cache(lambda: captured(slices, largest)))
    return programs


def _are_alike(programs: Sequence[Captured]) -> bool:
    """Return whether programs call the same operators."""
    calls = (tuple(n.target for n in each.nodes if n.op == "call_function") for each in programs)
    return len(set(calls)) == 1


def _masks(program: Captured) -> list[torch.Tensor]:
    """Return the masks of attention that the network computes from sizes."""
    calls = program.exported.graph.find_nodes(op="call_function", target=ATTENTION)
    masks = [str(bound(call.target, call.args, call.kwargs)["attn_mask"]) for call in calls]
    return [program.size_constants[mask] for mask in masks if mask in program.size_constants]


def _may_hide_rows(mask: torch.Tensor) -> bool:
    """Return whether a mask may hide whole rows of attention where it is cut to another size.

    It does not if each row sees its own place, as in causal and local attention.
    """
    places = mask.shape[-2:] if mask.dim() > 1 else (1, len(mask))
    return len(set(places)) > 1 or bool(hidden_by(mask).diagonal(dim1=-2, dim2=-1).any())


def _slice_constants(programs: Sequence[Captured], largest: Callable[[], Captured]) -> bool:
    """Replace constants that differ between programs by slices of the largest.

    Returns whether all were replaced.

    A constant that is no part of the largest stays unchanged. So does a constant that is equal along each
    dimension whose size varies. The largest sizes count too: a window may hide nothing at the others.
    """
    rows = [row for row in zip(*map(_constants, programs), strict=False) if _may_differ(programs, row)]
    twins = {node.name: largest().constant(node) for node in _constants(largest())} if rows else {}
    found = True
    for row in rows:
        tensors, whole = _tensors(programs, row), twins.get(row[0].name)
        if whole is not None and (dims := _repeating_dims(row, [*tensors, whole])):
            tensors, whole = [first_places(tensor, dims) for tensor in tensors], first_places(whole, dims)
            for each, node, tensor in zip(programs, row, tensors, strict=True):
                _replace(each, node, tensor)
        if broadcast_row(tensors if whole is None else [*tensors, whole]) is not None:
            continue
        part = _slices(tensors, whole)
        found &= part is not None
        for each, node in zip(programs, row, strict=True):
            if part is not None:
                _slice(each, node, part)
    return found


def _repeating_dims(row: Sequence[Node], tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the dimensions of varying size along which constants repeat one place, if their users broadcast.

    XNNPACK and LiteRT have no constant of a dynamic size, and such a dimension merges with its neighbours.
    """
    if len({tensor.dim() for tensor in tensors}) != 1:
        return []
    if not all(may_broadcast(node, user) for node in row for user in node.users):
        return []
    dims = range(tensors[0].dim())
    varying = (d for d in dims if 0 not in (sizes := {each.shape[d] for each in tensors}) and len(sizes) > 1)
    return [d for d in varying if all(are_equal(t, first_places(t, [d]).expand(t.shape)) for t in tensors)]


def _replace(program: Captured, node: Node, constant: torch.Tensor) -> None:
    """Put a constant in place of the one that a node reads."""
    setattr(program.module, str(node.target), constant.clone(memory_format=torch.contiguous_format))
    set_value(node, without_data(constant))


def _computed_slices(programs: Sequence[Captured], largest: Captured) -> dict[str, Slices]:
    """Return the values that the network computes from sizes as slices, by the names of their nodes."""
    found = {}
    for name in programs[0].size_constants:
        values = [each.size_constants[name] for each in programs if name in each.size_constants]
        part = _slices(values, largest.size_constants.get(name)) if len(values) == len(programs) else None
        if part is not None and part.shares:
            found[name] = part
    return found


def _constants(program: Captured) -> Sequence[Node]:
    return program.module.graph.find_nodes(op="get_attr")


def _may_differ(programs: Sequence[Captured], row: Sequence[Node]) -> bool:
    """Return whether a constant of several programs differs between them, if only in its sizes."""
    tensors = _tensors(programs, row)
    is_one = len({node.name for node in row}) == 1
    return is_one and (len({each.shape for each in tensors}) > 1 or broadcast_row(tensors) is None)


def _tensors(programs: Sequence[Captured], row: Sequence[Node]) -> list[torch.Tensor]:
    return [each.constant(node) for each, node in zip(programs, row, strict=True)]


def _slices(tensors: Sequence[torch.Tensor], whole: torch.Tensor | None) -> Slices | None:
    """Return the constants as windows of a whole one, or None if one of them is no such part of it."""
    ranks = {tensor.dim() for tensor in tensors}
    if whole is None or ranks != {whole.dim()} or {tensor.dtype for tensor in tensors} != {whole.dtype}:
        return None
    sizes = zip(*(tensor.shape for tensor in tensors), strict=True)
    dims = [dim for dim, each in enumerate(sizes) if len(set(each)) > 1]
    for shares in itertools.product(_SHARES, repeat=len(dims)):
        found = Slices(whole, dict(zip(dims, shares, strict=True)))
        if all(_is_window(tensor, found) for tensor in tensors):
            return found
    return None


def _is_window(tensor: torch.Tensor, slices: Slices) -> bool:
    part = slices.whole
    if any(share * (part.shape[dim] - tensor.shape[dim]) % 1 for dim, share in slices.shares.items()):
        return False  # the middle of a row, if that lies between two places
    for dim, start, end in slices.windows(tensor.shape):
        part = part[(slice(None),) * dim + (slice(max(start, 0), end),)]
    return are_equal(part, tensor)


def _slice(program: Captured, node: Node, part: Slices) -> None:
    """Put the whole constant in place of one, and slices of it in place of what its readers read."""
    shape, users = program.constant(node).shape, list(node.users)
    _replace(program, node, part.whole)
    source = source_of(users[0], EXPORTED)
    sliced, value = node, part.whole
    first = next(each for each in program.nodes if each.op == "call_function")
    with program.module.graph.inserting_before(first):
        for dim, start, end in part.windows(shape):
            sliced = program.module.graph.call_function(SLICE_CONSTANT, (sliced, dim, start, end))
            value = value.narrow(dim, start, end - start)
            add_meta(sliced, source, without_data(value))
    for user in users:
        user.replace_input_with(node, sliced)
