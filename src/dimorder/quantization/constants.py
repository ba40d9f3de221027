"""Find what a network computes of its parameters alone, and what it changes in place; add constants."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from dimorder.graph.elements import function_copies
from dimorder.graph.nodes import set_value, tensor_of

aten = torch.ops.aten

# Operators that need nothing but the shape and the type of their operand.
SHAPED = (
    *(aten.zeros_like.default, aten.ones_like.default, aten.full_like.default),
    *(aten.new_zeros.default, aten.new_ones.default, aten.new_full.default),
)


def constant_nodes(model: GraphModule, with_state: bool = False) -> frozenset[Node]:
    """Return parameters, buffers and the calls of these alone.

    A buffer that the network writes is one only `with_state`.

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
    written = set[Node]() if with_state else _written(model)
    names = _buffers(written)
    constant = set[Node]()
    for node in model.graph.nodes:
        is_read = node.op == "get_attr" and node.target not in names
        is_computed = node.op == "call_function" and constant.issuperset(node.all_input_nodes)
        is_computed |= node.target in SHAPED and all(isinstance(size, int) for size in tensor_of(node).shape)
        if is_read or (is_computed and node not in written and (with_state or not writes(node))):
            constant.add(node)
    return frozenset(constant)


def written_buffers(model: GraphModule) -> frozenset[str]:
    """Return the names of the buffers that a network writes: its state."""
    return _buffers(_written(model))


def _written(model: GraphModule) -> set[Node]:
    return {root_of(node) for node in model.graph.nodes if writes(node)}


def _buffers(roots: set[Node]) -> frozenset[str]:
    return frozenset(str(root.target) for root in roots if root.op == "get_attr")


def insert_constant(model: GraphModule, name: str, tensor: Tensor, place: Node) -> Node:
    """Return a new constant of a graph, read before `place`; its value is a tensor of torch's fake mode.

    If the network has something of this name, the constant's name gets a number.
    """
    free = next(
        each for number in count() if not hasattr(model, each := f"{name}_{number}" if number else name)
    )
    model.register_buffer(free, tensor, persistent=False)
    with place.graph.inserting_before(place):
        value = tensor_of(place).new_empty(tensor.shape, dtype=tensor.dtype)
        return set_value(place.graph.get_attr(free), value)


def without_writes_to_parts(exported: ExportedProgram) -> ExportedProgram:
    """Return a program that writes to no view of what it computes.

    A quantizer quantises the view, and so a copy would be written. A buffer that is state is still written.
    """
    for node in exported.graph.nodes:
        written: Any = node.args[0] if writes(node) else None
        if isinstance(written, Node) and not writes(written):
            root = root_of(written)
            if root is not written and root.op == "call_function":
                functional: ExportedProgram = exported.run_decompositions({})
                return functional
    return exported


def root_of(node: Node) -> Node:
    """Return the value of which a call gives a view, or which it writes, through all such calls."""
    while node.op == "call_function" and shares_elements(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def shares_elements(node: Node) -> bool:
    """Return whether a call gives a view of an operand, or the operand that it writes."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(each.alias_info is not None for each in schema.returns)


def writes(node: Node) -> bool:
    """Return whether a call changes an operand."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and not function_copies(node.target)
