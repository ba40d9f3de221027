"""Note on the nodes of a network at several points what a node at one point does not show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.fx import Graph, Node

from dimorder.graph.nodes import DYNAMIC, MAX_SHAPE, UNEVEN, args_of, set_meta
from dimorder.graph.tracing import shape_of
from dimorder.ops.table import relate
from dimorder.sizes.size_table import SizeTable

aten = torch.ops.aten

_CUTS = (aten.slice.Tensor, aten.cat.default, aten.constant_pad_nd.default)


def record_max_shapes(programs: Sequence[Graph], sizes: SizeTable) -> None:
    """Note on each convolution of a network at several sizes, and on its operand, how large it is at most.

    `tracing.max_shape_of` reads the note.
    """
    convolutions = (
        graph.find_nodes(op="call_function", target=aten.convolution.default) for graph in programs
    )
    for row in zip(*convolutions, strict=False):
        for nodes in (row, [node.all_input_nodes[0] for node in row]):
            most = tuple(map(sizes.most, zip(*map(shape_of, nodes), strict=False)))
            for node in nodes:
                set_meta(node, MAX_SHAPE, most)


def record_dynamic_dims(programs: Sequence[Graph]) -> None:
    """Note on each value of a network at several points which of its dimensions have several sizes.

    `nodes.dynamic_dims` reads the note.
    """
    for row in zip(*(graph.nodes for graph in programs), strict=False):
        if not all(isinstance(node.meta.get("val"), torch.Tensor) for node in row):
            continue
        sizes = zip(*map(shape_of, row), strict=False)
        dims = tuple(dim for dim, each in enumerate(sizes) if len(set(each)) > 1)
        for node in row:
            set_meta(node, DYNAMIC, dims)


def record_uneven_cuts(programs: Sequence[Graph], sizes: SizeTable) -> None:
    """Note on each call that cuts a dimension into even pieces at some sizes alone that it cuts it anywhere.

    n // 2 divides n only if n is even. `nodes.piece_of` reads the note.
    """
    for row in zip(*(graph.nodes for graph in programs), strict=False):
        if all(node.target in _CUTS for node in row) and _is_uneven(row, sizes):
            for node in row:
                set_meta(node, UNEVEN, True)


def _is_uneven(row: Sequence[Node], sizes: SizeTable) -> bool:
    """Return whether the pieces of a call differ between sizes, at the points or anywhere in the ranges."""
    if any(_labels(node) != _labels(row[0]) for node in row):
        return True
    if row[0].target is aten.slice.Tensor:
        _, dim, *_, step = args_of(row[0])
        length = [shape_of(node.all_input_nodes[0])[dim] for node in row]
        if not sizes.has_one_remainder(length, step):
            return True
    for dims in zip(*map(_pieces, row), strict=True):
        columns = list(zip(*dims, strict=True))
        if any(1 in each and len(set(each)) > 1 for each in columns[1:]):
            return True  # the piece of n and min(n, m) is n where n is less, else it may be 1
        whole = list(map(math.prod, dims))
        if not all(sizes.divides(each, whole) for each in columns[1:]):
            return True  # the piece of 3n and 3m is 9 if 3 divides both
        fixed = math.prod(each[0] for each in columns if len(set(each)) == 1)
        if not sizes.has_one_remainder(whole, fixed):
            return True
    return False


def _pieces(node: Node) -> list[list[int]]:
    """Return the sizes of the pieces of each dimension that a call reads or writes."""
    relation = relate(node)
    return [[size for _, size in dim] for dims in (*relation.reads, *relation.writes) for dim in dims]


def _labels(node: Node) -> object:
    """Return the names of the pieces of each dimension that a call reads or writes."""
    relation = relate(node)
    return [[[name for name, _ in dim] for dim in dims] for dims in (*relation.reads, *relation.writes)]
