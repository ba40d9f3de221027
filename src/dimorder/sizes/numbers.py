"""Find the numbers that a network computes from its dynamic sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.capture.decompose_dynamic_resize import RESIZES
from dimorder.capture.tabulate_numbers import tabulate_numbers
from dimorder.graph.nodes import bound, is_number, tensors_in

aten = torch.ops.aten


def numbers_of(exported: ExportedProgram, limits: Mapping[Any, Any]) -> list[torch.SymInt]:
    """Return the numbers that a network computes from sizes for its tensors, each once.

    A number from which the network computes others alone is not among them: it may pass for one of these. Nor
    is a number that becomes an entry of a table.

    Args:
        exported: the network.
        limits: the ranges of torch's symbols.

    >>> class Last(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x[:, -2] * x.shape[1]
    >>> width = torch.export.Dim("W")
    >>> exported = torch.export.export(Last(), (torch.ones(2, 9),), dynamic_shapes=({1: width},))
    >>> len(numbers_of(exported, {}))
    2
    """
    nodes = tabulate_numbers(exported, limits).graph.nodes
    read = (node.meta.get("val") for node in nodes if not all(map(is_number, node.users)))
    found = [*read, *(number for node in nodes for number in _of_a_call(node))]
    dynamic = (each for each in found if isinstance(each, torch.SymInt) and each.node.expr.free_symbols)
    return list({str(number): number for number in dynamic}.values())


def sizes_in(exported: ExportedProgram) -> Iterator[Any]:
    """Yield the sizes of all values of a program, the dynamic ones in torch's symbols."""
    for node in exported.graph.nodes:
        for value in tensors_in(node.meta.get("val")):
            yield from value.shape


def _of_a_call(node: Node) -> Iterator[Any]:
    """Yield the numbers of a call that no node computes.

    They are places that it counts from the end of a dimension. They are also what a larger size has over a
    multiple of a smaller one. That multiple may pass for the larger size where a stride leaves nothing over.
    """
    shapes = [each.meta["val"].shape[2:] for each in (*node.all_input_nodes[:1], node) if _is_tensor(each)]
    for pair in zip(*shapes, strict=False) if len(shapes) == 2 else ():
        if all(isinstance(size, torch.SymInt) and size.node.has_hint() for size in pair):
            smaller, larger = sorted(pair, key=lambda size: size.node.hint)
            factor = round(larger.node.hint / max(smaller.node.hint, 1))
            if factor > 1:
                yield larger - factor * smaller
    if node.target in RESIZES:
        yield from (size - 1 for shape in shapes for size in shape)
    elif node.target in (aten.slice.Tensor, aten.select.int):
        read = bound(node.target, node.args, node.kwargs)
        size = read["self"].meta["val"].shape[read["dim"]]
        ends = (read.get(name) for name in ("index", "start", "end"))
        yield from (size + end for end in ends if isinstance(end, int) and end < 0)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
