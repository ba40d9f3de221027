"""Find what a network computes of its parameters alone."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from dimorder.graph.elements import function_copies


def constant_nodes(model: GraphModule) -> frozenset[Node]:
    """Return parameters, buffers and the calls of these alone; a buffer that the network writes is none.

    >>> import torch
    >>> class Scaled(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.scale = torch.nn.Parameter(torch.ones(3))
    ...     def forward(self, x):
    ...         return x * self.scale.exp()
    >>> model = torch.export.export(Scaled(), (torch.ones(2, 3),)).module(check_guards=False)
    >>> sorted(node.name for node in constant_nodes(model))
    ['exp', 'scale']
    """
    written = {_root(node).target for node in model.graph.nodes if _writes(node)}
    constant = {node for node in model.graph.find_nodes(op="get_attr") if node.target not in written}
    for node in model.graph.nodes:
        if node.op == "call_function" and constant.issuperset(node.all_input_nodes) and not _writes(node):
            constant.add(node)
    return frozenset(constant)


def _root(node: Node) -> Node:
    """Return the value that a call writes to, or of which it is a view."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and not function_copies(node.target)
