"""Leave out what a program asserts about the elements of its tensors: no result depends on it."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from dimorder.graph.construct import replace_parts
from dimorder.graph.exported import copy_graph


def drop_assertions(program: ExportedProgram) -> ExportedProgram:
    """Return a program without its assertions about numbers that it reads out of tensors.

    >>> class Small(torch.nn.Module):
    ...     def forward(self, x):
    ...         assert x.max().item() < 9
    ...         return x + 1
    >>> program = drop_assertions(torch.export.export(Small(), (torch.ones(2, 3),)))
    >>> [node.name for node in program.graph.nodes]
    ['x', 'add', 'output']
    """
    graph = copy_graph(program.graph)
    asserted = graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    read = [node for node in asserted if _is_read(node.args[0])]
    if not read:
        return program
    for node in read:
        graph.erase_node(node)
    graph.eliminate_dead_code()
    return replace_parts(program, graph=graph)


def _is_read(condition: Any) -> bool:
    """Return whether a condition is about a number that the program reads out of a tensor."""
    return isinstance(condition, Node) and bool(free_unbacked_symbols(condition.meta["val"]))
