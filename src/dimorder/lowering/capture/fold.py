"""Decides what a program computes ahead of time: every operator that reads constants alone."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node, map_arg

from dimorder.lowering.capture.tracing import is_random


def fold_constants(program: ExportedProgram) -> ExportedProgram:
    """The same program, in which what reads constants alone is a constant: dense, in its own order.

    A partitioner takes a convolution whose weight is a constant, and not one whose weight is computed.

    >>> class Turned(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(torch.randn(2, 3, 5, 4))
    ...     def forward(self, x):
    ...         return torch.conv2d(x, self.weight.permute(0, 3, 1, 2))
    >>> program = fold_constants(torch.export.export(Turned(), (torch.randn(1, 4, 6, 7),)))
    >>> [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    ['aten.conv2d.default']
    """
    module = program.module(check_guards=False)
    assert isinstance(module, GraphModule)
    for node in module.graph.nodes:
        if node.op == "call_function" and _is_constant(node):
            _replace(module, node)
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    args, kwargs = program.example_inputs
    with torch.no_grad():
        return torch.export.export(module, args, kwargs)


def _is_constant(node: Node) -> bool:
    """Whether each call gives the same, and each operand is a constant by now."""
    operands = node.all_input_nodes
    random = is_random(node.target, node.args, node.kwargs)
    return bool(operands) and not random and all(operand.op == "get_attr" for operand in operands)


def _replace(module: GraphModule, node: Node) -> None:
    values = map_arg((node.args, node.kwargs), lambda operand: _held(module, operand))
    with torch.no_grad():
        value = node.target(*values[0], **values[1])  # type: ignore[operator]
    name = f"folded_{node.name}"
    module.register_buffer(name, value.detach().contiguous())
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(name)
    node.replace_all_uses_with(constant)
    module.graph.erase_node(node)


def _held(module: GraphModule, node: Node) -> torch.Tensor:
    owner, _, name = str(node.target).rpartition(".")
    value: torch.Tensor = getattr(module.get_submodule(owner), name)
    return value
