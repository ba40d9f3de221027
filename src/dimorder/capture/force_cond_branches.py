"""Force both branches of each `torch.cond`, whatever the inputs choose.

A network with forced choices is compared with its lowered program with the same choices. So each branch is
compared, and nothing is planned again.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.fx import Node

from dimorder.capture.captured import Captured
from dimorder.graph.branches import COND, Branches
from dimorder.graph.exported import keep_names, remade
from dimorder.graph.nodes import EXPORTED, call_before, copy_meta, graph_module

Choices = Mapping[str, bool]  # by the name of a `torch.cond` in the exported program


def branch_choices(program: ExportedProgram) -> list[Choices]:
    """Return choices with which each branch of each `torch.cond` runs once or more.

    With these choices, all four pairs of branches run for any two `torch.cond`. A program without branches
    has none.

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
        read: Any = node.args[0]
        args = (read, choices[node.name])
        chosen = call_before(node, torch.ops.aten.full_like.default, args, like=read)
        node.args = (chosen, *node.args[1:])
    return remade(program, root=module, graph=module.graph)


def force_captured(program: Captured, choices: Choices) -> Captured:
    """Return a captured network with forced choices, in its exported and its normal form."""
    graph = copy.deepcopy(program.module.graph)
    keep_names(graph, program.module.graph)
    module = graph_module(program.module, graph)
    for node in _calls(graph):
        choice, *operands = node.args
        assert isinstance(choice, Node)
        name = f"forced_{node.name}"
        module.register_buffer(name, _constant(choice, choices[node.meta[EXPORTED]]))
        with graph.inserting_before(next(iter(graph.nodes))):
            forced = graph.get_attr(name)
        copy_meta(forced, choice)
        node.args = (forced, *operands)
    return replace(program, module=module, exported=force_exported(program.exported, choices))


def force_physical(program: ExportedProgram, choices: Mapping[str, bool]) -> ExportedProgram:
    """Return a physical program with forced choices, each of them one more constant.

    Args:
        program: the physical program.
        choices: by the name of a call of branches in the physical program.
    """
    graph, state = copy.deepcopy(program.graph), dict(program.state_dict)
    keep_names(graph, program.graph)
    first, specs = next(iter(graph.nodes)), []
    for node in _calls(graph):
        choice, *operands = node.args
        assert isinstance(choice, Node)
        name = f"forced_{node.name}"
        with graph.inserting_before(first):
            forced = graph.placeholder(name)
        state[name] = _constant(choice, choices[node.name])
        specs.append(InputSpec(InputKind.BUFFER, TensorArgument(forced.name), name, persistent=True))
        copy_meta(forced, choice)
        node.args = (forced, *operands)
    old = program.graph_signature
    signature = ExportGraphSignature([*specs, *old.input_specs], old.output_specs)
    return remade(program, graph=graph, graph_signature=signature, state_dict=state)


def _calls(graph: torch.fx.Graph) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.target, Branches)]


def _constant(choice: Node, value: bool) -> torch.Tensor:
    return torch.full(tuple(choice.meta["val"].shape), value, dtype=choice.meta["val"].dtype)


def _choices(count: int) -> list[list[bool]]:
    """Return the choices of each run: all equal, the binary digits of the positions, and their opposites.

    >>> _choices(2)
    [[True, True], [False, False], [False, True], [True, False]]
    """
    if count == 0:
        return []
    digits = [[bool(place >> i & 1) for place in range(count)] for i in range((count - 1).bit_length())]
    return [each for one in ([True] * count, *digits) for each in (one, [not choice for choice in one])]
