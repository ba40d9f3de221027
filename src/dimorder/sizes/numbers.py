"""Find the numbers that a network computes from its dynamic sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.capture.decompose_dynamic_resize import RESIZES
from dimorder.capture.tabulate_numbers import tabulate_numbers
from dimorder.graph.nodes import bound

aten = torch.ops.aten


def numbers_of(exported: ExportedProgram, limits: Mapping[Any, Any]) -> list[torch.SymInt]:
    """Return the numbers that a network computes from sizes for its tensors, each once.

    They include places that are counted from the end of a dynamic dimension. A number from which the network
    computes others alone is not among them: it may pass for one of these. Nor is a number that becomes an
    entry of a table.

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
    read = (node.meta.get("val") for node in nodes if any(map(_is_of_tensors, node.users)))
    numbers = [value for value in read if isinstance(value, torch.SymInt)]
    numbers += [place for node in nodes for place in _from_the_end(node)]
    return list({str(number): number for number in numbers}.values())


def _from_the_end(node: Node) -> Iterator[torch.SymInt]:
    """Yield the places that a call counts from the end of a dynamic dimension, as resizes do."""
    if node.target in RESIZES:
        ends = [(size, -1) for each in (node, node.all_input_nodes[0]) for size in each.meta["val"].shape]
    elif node.target in (aten.slice.Tensor, aten.select.int):
        read = bound(node.target, node.args, node.kwargs)
        size = read["self"].meta["val"].shape[read["dim"]]
        ends = [(size, read.get(name)) for name in ("index", "start", "end")]
    else:
        return
    for size, place in ends:
        if isinstance(size, torch.SymInt) and isinstance(place, int) and place < 0:
            yield size + place


def _is_of_tensors(node: Node) -> bool:
    """Return whether a call computes something else than a number."""
    return not isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))
