"""Write what a network computes under torch.set_grad_enabled among its other calls.

torch.export keeps it as a call of a graph. A program with gradients is decomposed into one with a backward
pass, for which torch raises an IndexError.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from dimorder.graph.construct import replace_parts
from dimorder.graph.nodes import copy_meta

_WRAP = torch.ops.higher_order.wrap_with_set_grad_enabled


def inline_grad_modes(program: ExportedProgram) -> ExportedProgram:
    """Return the program without calls of graphs that run with or without gradients.

    >>> class Enabled(torch.nn.Module):
    ...     def forward(self, x):
    ...         with torch.enable_grad():
    ...             return x.exp()
    >>> with torch.no_grad():
    ...     program = torch.export.export(Enabled(), (torch.ones(2, 3),))
    >>> [str(node.target) for node in inline_grad_modes(program).graph.nodes if node.op == "call_function"]
    ['aten.exp.default', 'aten.alias.default']
    """
    if not _calls(program.graph):
        return program
    module = copy.deepcopy(program.graph_module)
    while calls := _calls(module.graph):  # a graph may call others
        for node in calls:
            _inline(module, node)
    return replace_parts(program, root=module, graph=module.graph)


def _calls(graph: Graph) -> list[Node]:
    return list(graph.find_nodes(op="call_function", target=_WRAP))


def _inline(module: GraphModule, node: Node) -> None:
    """Replace a call of a graph by the graph's calls. Its results keep the names of the signature."""
    _, body, *operands = node.args
    assert isinstance(body, Node)
    called = getattr(module, str(body.target))
    values = dict(zip(called.graph.find_nodes(op="placeholder"), operands, strict=True))
    with module.graph.inserting_before(node):
        for each in called.graph.nodes:
            if each.op == "get_attr":
                values[each] = _copy_attribute(module, called, each)
            elif each.op == "call_function":
                values[each] = module.graph.node_copy(each, values.__getitem__)
    (returned,) = called.graph.output_node().args
    results: Sequence[Node] = map_arg(returned, values.__getitem__)
    for getitem in list(node.users):
        index = getitem.args[1]
        assert isinstance(index, int)
        result = results[index]
        if isinstance(getitem.meta["val"], torch.Tensor):
            getitem.target, getitem.args = torch.ops.aten.alias.default, (result,)
        else:  # a size
            name = getitem.name
            getitem.replace_all_uses_with(result)
            module.graph.erase_node(getitem)
            result.name = name
    module.graph.erase_node(node)
    if not body.users:
        module.graph.erase_node(body)


def _copy_attribute(module: GraphModule, called: GraphModule, node: Node) -> Node:
    """Return a node for a graph or a tensor of the called graph, which the module gets under a new name."""
    name = f"{node.target}_of_grad_mode"
    while hasattr(module, name):
        name += "_"
    setattr(module, name, getattr(called, str(node.target)))
    return copy_meta(module.graph.get_attr(name), node)
