"""Prepare the branches of `torch.cond` for torch, which cannot decompose all that it exports."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from dimorder.errors import UnsupportedError
from dimorder.graph.branches import COND, graphs_of
from dimorder.graph.construct import replace_parts
from dimorder.graph.nodes import call_after, is_getitem, operator_at

aten = torch.ops.aten


def prepare_branches(program: ExportedProgram) -> ExportedProgram:
    """Return a program whose branches take and return copies of views, and return copies of their operands.

    Raises:
        UnsupportedError: if a branch has a tensor of its own.

    >>> class Skips(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.cond(x.sum() > 0, torch.exp, lambda x: x, (x,))
    >>> with torch.no_grad():
    ...     program = prepare_branches(torch.export.export(Skips(), (torch.ones(3),)))
    >>> [str(node.target) for node in program.graph_module.false_graph_0.graph.nodes]
    ['x', 'aten.clone.default', 'output']
    """
    calls = program.graph.find_nodes(op="call_function", target=COND)
    for node in calls:
        if any(map(_own_tensors, graphs_of(node))):
            found = "a branch with a tensor of its own"
            fix = "register the tensor: self.register_buffer(name, tensor), or pass it to torch.cond"
            raise UnsupportedError(operator_at(node), found, fix)
    if not any(map(_shared_operands, calls)) and not any(map(_shared_results, _branches(calls))):
        return program
    module = copy.deepcopy(program.graph_module)
    calls = module.graph.find_nodes(op="call_function", target=COND)
    for node in calls:
        for operand in _shared_operands(node):
            node.replace_input_with(operand, call_after(operand, aten.clone.default, (operand,)))
    for branch in _branches(calls):
        for result in _shared_results(branch):
            cloned = call_after(result, aten.clone.default, (result,))
            branch.graph.output_node().replace_input_with(result, cloned)
        branch.recompile()
    return replace_parts(program, root=module, graph=module.graph)


def _branches(calls: Sequence[Node]) -> Iterator[GraphModule]:
    return (branch for node in calls for branch in graphs_of(node))


def _own_tensors(branch: GraphModule) -> list[Node]:
    reads = branch.graph.find_nodes(op="get_attr")
    return [node for node in reads if isinstance(getattr(branch, str(node.target)), torch.Tensor)]


def _shared_operands(node: Node) -> list[Node]:
    """Return the operands of a call that may be views of other operands."""
    return list(filter(_is_view, node.all_input_nodes))


def _shared_results(branch: GraphModule) -> list[Node]:
    """Return the results of a branch that are its operands, or may be views of these."""
    results = branch.graph.output_node().all_input_nodes
    return [node for node in results if node.op == "placeholder" or _is_view(node)]


def _is_view(node: Node) -> bool:
    node = node.all_input_nodes[0] if is_getitem(node) else node
    results = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(result.alias_info is not None for result in results)
