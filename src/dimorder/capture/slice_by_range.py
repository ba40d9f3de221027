"""Write a selection by a range of places as a slice: the places differ between sizes, a slice does not."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.graph.construct import replace_parts
from dimorder.graph.exported import copy_graph
from dimorder.graph.nodes import args_of, bound, call_before, replace_named

aten = torch.ops.aten

_RANGES = (aten.arange.default, aten.arange.start, aten.arange.start_step)


def slice_by_range(exported: ExportedProgram) -> ExportedProgram:
    """Write each `index_select` by an `arange` whose end depends on a dynamic size as a slice.

    >>> class Odd(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.index_select(1, torch.arange(1, x.shape[1], 2))
    >>> width = torch.export.Dim("W", min=4, max=40)
    >>> exported = torch.export.export(Odd(), (torch.ones(2, 9),), dynamic_shapes=({1: width},))
    >>> program = slice_by_range(exported)
    >>> [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    ['aten.sym_size.int', 'aten.slice.Tensor']
    """
    if not any(_cut(node) for node in exported.graph.nodes):
        return exported
    graph = copy_graph(exported.graph)
    for node in list(graph.nodes):
        cut = _cut(node)
        if cut is not None:
            x, dim, _ = args_of(node)
            replace_named(node, call_before(node, aten.slice.Tensor, (x, dim, *cut)))
    graph.eliminate_dead_code()
    return replace_parts(exported, graph=graph)


def _cut(node: Node) -> tuple[Any, ...] | None:
    """Return start, end and step of the slice that a selection is, or None."""
    if node.target is not aten.index_select.default:
        return None
    places = args_of(node)[2]
    if places.target not in _RANGES:
        return None
    read = bound(places.target, places.args, places.kwargs)
    start, end, step = read.get("start", 0), read["end"], read.get("step", 1)
    is_slice = isinstance(start, int) and isinstance(step, int) and start >= 0 and step > 0
    return (start, end, step) if is_slice and isinstance(end, Node) else None
