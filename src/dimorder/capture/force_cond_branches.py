"""Force both branches of each `torch.cond`, to compare each of them with the lowered program."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from dimorder.capture.captured import Captured
from dimorder.graph.branches import COND, Branches
from dimorder.graph.construct import replace_parts
from dimorder.graph.exported import add_constants, copy_graph
from dimorder.graph.nodes import EXPORTED, args_of, call_before, copy_meta, graph_module

Choices = Mapping[str, bool]  # by the name of a `torch.cond` in the exported program


def branch_choices(program: ExportedProgram) -> list[Choices]:
    """Return choices with which each branch of each `torch.cond` runs, and all four pairs of any two.

    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))
    >>> x = torch.ones(3)
    >>> program = torch.export.export(Net(), (-x,))
    >>> [force_exported(program, each).module()(x)[0].item() for each in branch_choices(program)]
    [2.0, 2.0]
    """
    names = [node.name for node in program.graph.find_nodes(op="call_function", target=COND)]
    return [dict(zip(names, choices, strict=True)) for choices in _choices(len(names))]


def force_exported(program: ExportedProgram, choices: Choices) -> ExportedProgram:
    """Return an exported network with forced choices, whose examples it keeps."""
    module = copy.deepcopy(program.graph_module)
    for node in module.graph.find_nodes(op="call_function", target=COND):
        choice, *rest = args_of(node)
        args = (choice, choices[node.name])
        node.args = (call_before(node, torch.ops.aten.full_like.default, args, like=choice), *rest)
    return replace_parts(program, root=module, graph=module.graph)


def force_captured(program: Captured, choices: Choices) -> Captured:
    """Return a captured network with forced choices, in its exported and its normal form."""
    graph = copy_graph(program.module.graph)
    module = graph_module(program.module, graph)

    def read(name: str, choice: torch.Tensor) -> Node:
        module.register_buffer(name, choice)
        return graph.get_attr(name)

    _force(graph, lambda node: choices[node.meta[EXPORTED]], read)
    return replace(program, module=module, exported=force_exported(program.exported, choices))


def force_physical(program: ExportedProgram, choices: Choices) -> ExportedProgram:
    """Return a physical program with forced choices, by its own names of calls, each one more constant."""
    graph, constants = copy_graph(program.graph), dict[Node, torch.Tensor]()

    def read(name: str, choice: torch.Tensor) -> Node:
        node = graph.placeholder(name)
        constants[node] = choice
        return node

    _force(graph, lambda node: choices[node.name], read)
    return add_constants(program, graph, constants)


def _force(
    graph: Graph, choice_of: Callable[[Node], bool], read: Callable[[str, torch.Tensor], Node]
) -> None:
    """Let each call of branches read its choice; `read` writes a node for a constant, before others."""
    first = next(iter(graph.nodes))
    for node in list(graph.nodes):
        if isinstance(node.target, Branches):
            choice, *operands = args_of(node)
            like = choice.meta["val"]
            value = torch.full(tuple(like.shape), choice_of(node), dtype=like.dtype)
            with graph.inserting_before(first):
                forced = copy_meta(read(f"forced_{node.name}", value), choice)
            node.args = (forced, *operands)


def _choices(count: int) -> list[list[bool]]:
    """Return the choices of each run: all equal, the binary digits of the positions, and their opposites.

    >>> _choices(2)
    [[True, True], [False, False], [False, True], [True, False]]
    """
    if count == 0:
        return []
    digits = [[bool(place >> i & 1) for place in range(count)] for i in range((count - 1).bit_length())]
    return [each for one in ([True] * count, *digits) for each in (one, [not choice for choice in one])]
