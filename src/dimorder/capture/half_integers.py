"""Give quantize and dequantize the type float32, beside which half precision is a cast.

1. A dequantize to another type is one to float32 and a cast. A quantize of half precision is a cast and one
   of float32. So is dynamic quantization.
2. Operators between such a dequantize and such a quantize compute in float32, as integer kernels do. So do
   operators of dequantized values with integer weights. Half precision that the network casts to stays.
3. Other dequantized constants of half precision are floats without integers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from dimorder.graph.half_numbers import HALVES
from dimorder.graph.nodes import add_constant, bound, call_after, call_before, replace_node, set_value
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE, Scaled
from dimorder.graph.tracing import is_half
from dimorder.ops.quantization import FAKE_QUANTIZE_DYNAMIC

_CAST = torch.ops.aten._to_copy.default
_QUANTIZES = (QUANTIZE, FAKE_QUANTIZE_DYNAMIC)


def widen_between_integers(module: GraphModule) -> None:
    """Write half precision beside quantize and dequantize as casts, and compute in float32 between them."""
    ends, starts = _casts_before(module), _casts_after(module)
    inside = _between(module, starts, ends)
    for node in inside:
        for read in node.all_input_nodes:
            if read in starts:
                node.replace_input_with(read, read.all_input_nodes[0])
            elif _is_constant(read) and is_half(read):
                node.replace_input_with(read, _widened(module, read))
    for cast in ends:
        (read,) = cast.all_input_nodes
        if read in inside or read in starts:
            replace_node(cast, read if read in inside else read.all_input_nodes[0])
    for node in inside:
        _give_float32(node, inside)
    for node in filter(_is_constant, module.graph.nodes):
        constant = _constant(module, node)
        if isinstance(constant, Scaled) and constant.dtype in HALVES:
            module.register_buffer(str(node.target), constant.as_subclass(Tensor))
    module.graph.eliminate_dead_code()


def _casts_before(module: GraphModule) -> list[Node]:
    """Let each quantize read float32, and return the casts before those that read half precision."""
    found = list[Node]()
    for node in _calls(module, *_QUANTIZES):
        (read,) = node.all_input_nodes
        if is_half(read):
            value = read.meta["val"].float()
            found.append(call_before(node, _CAST, (read,), {"dtype": torch.float32}, like=read, value=value))
            node.replace_input_with(read, found[-1])
    return found


def _casts_after(module: GraphModule) -> list[Node]:
    """Let each dequantize give float32, and return the casts after those that gave half precision."""
    found = list[Node]()
    for node in _calls(module, DEQUANTIZE, FAKE_QUANTIZE_DYNAMIC):
        node.kwargs = {}
        if node.meta["val"].dtype != torch.float32:
            found += _give_float32(node, ())
    return [cast for cast in found if is_half(cast)]


def _give_float32(node: Node, inside: Collection[Node]) -> list[Node]:
    """Let a call give float32, and return the cast for its readers of another type, if it has any."""
    value = node.meta["val"]
    set_value(node, value.float())
    others = [user for user in node.users if user.target not in _QUANTIZES and user not in inside]
    if not others:
        return []
    cast = call_after(node, _CAST, (node,), {"dtype": value.dtype}, value=value)
    node.replace_all_uses_with(cast, delete_user_cb=lambda user: user in others)
    return [cast]


def _calls(module: GraphModule, *targets: Any) -> list[Node]:
    return [node for node in module.graph.nodes if node.target in targets]


def _between(module: GraphModule, starts: Collection[Node], ends: Collection[Node]) -> Collection[Node]:
    """Return the operators of half precision that compute in float32, in the sequence of the graph."""
    calls = (node for node in module.graph.nodes if is_half(node) and not _names_a_type(node))
    found, starts, ends = dict.fromkeys(calls), {*starts}, {*ends}

    def is_between(node: Node) -> bool:
        operands = [read for read in node.all_input_nodes if is_half(read) and not _is_constant(read)]
        has_integers = any(
            isinstance(_constant(module, read), Scaled) for read in filter(_is_constant, node.all_input_nodes)
        )
        return all(read in starts or read in found for read in operands) and (
            has_integers or all(user in ends or user in found for user in node.users)
        )

    while found != (kept := dict.fromkeys(filter(is_between, found))):
        found = kept
    return found.keys()


def _is_constant(node: Node) -> bool:
    return node.op == "get_attr"


def _constant(module: GraphModule, node: Node) -> Any:
    return getattr(module, str(node.target))


def _names_a_type(node: Node) -> bool:
    """Return whether a call has an argument that is a type, such as a cast, or branches with such calls."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    given = bound(node.target, node.args, node.kwargs)
    return any(isinstance(each, torch.dtype) for each in given.values())


def _widened(module: GraphModule, constant: Node) -> Node:
    """Return a constant in float32, with its integers if it has some."""
    name = f"{constant.target}_in_float32"
    if not hasattr(module, name):
        held = _constant(module, constant)
        own = held.integers if isinstance(held, Scaled) else None
        wide = held.float() if own is None else Scaled.of(own.values, own.scales, own.zero_point)
        module.register_buffer(name, wide)
    with module.graph.inserting_before(constant):
        return add_constant(module.graph, name, getattr(module, name))
