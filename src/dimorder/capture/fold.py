"""Fold every operator that reads only constants."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import attrgetter

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from dimorder.graph.exported import own_module, state_of
from dimorder.graph.interpreter import arguments
from dimorder.graph.quantized import evaluate
from dimorder.graph.tracing import is_random
from dimorder.ops.dialect import SLICE_CONSTANT


def fold_constants(program: ExportedProgram, kept: Collection[object] = ()) -> ExportedProgram:
    """Replace operators that read only constants, but those `kept`, by dense constants in row-major order.

    A partitioner takes a convolution whose weight is a constant, but not one whose weight is computed.

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
    module = own_module(program)
    written = state_of(program).values()
    read = (node for node in module.graph.nodes if node.op == "get_attr" and node.target not in written)
    constants = {node: attrgetter(node.target)(module) for node in read}
    for node, value in evaluated(module.graph, constants, kept).items():
        name = f"folded_{node.name}"
        module.register_buffer(name, value.detach().contiguous())
        with module.graph.inserting_before(node):
            constant = module.graph.get_attr(name)
        node.replace_all_uses_with(constant)
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    args, kwargs = program.example_inputs
    with torch.no_grad():
        return torch.export.export(module, args, kwargs)


def evaluated(
    graph: Graph, constants: Mapping[Node, torch.Tensor], kept: Collection[object] = ()
) -> dict[Node, torch.Tensor]:
    """Return the value of every call that reads only `constants`, but for the operators of `kept`.

    A slice with a dynamic end has none: it is another constant for each size.
    """
    found: dict[Node, torch.Tensor] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target in kept or node.target is SLICE_CONSTANT:
            continue
        known = {n: found[n] if n in found else constants.get(n) for n in node.all_input_nodes}
        if any(value is None for value in known.values()) or is_random(node.target, node.args, node.kwargs):
            continue
        value = evaluate(node.target, *arguments(node, known))
        if isinstance(value, torch.Tensor):
            found[node] = value
    return found
