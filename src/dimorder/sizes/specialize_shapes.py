"""Specialize a program with dynamic sizes for fixed sizes.

Each number that is computed from sizes becomes a constant, and so does every shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node, map_arg
from torch.utils import _pytree as pytree

from dimorder.errors import UnsupportedError
from dimorder.graph.exported import copy_graph, remade
from dimorder.graph.nodes import VALUE, drop_meta, operator_at, operator_name, set_value


def specialize_shapes(exported: ExportedProgram, leaves: Sequence[Any], sizes: str) -> ExportedProgram:
    """Return the program for the sizes that the leaves of a call have.

    Names, source lines and parameters stay unchanged.

    Args:
        exported: a program with dynamic sizes.
        leaves: the flat arguments of a call.
        sizes: the sizes in words, for errors.

    Raises:
        UnsupportedError: if an operator does not accept these sizes, or if the network returns a size.

    >>> class Rows(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.reshape(x.shape[0] * 3, -1)
    >>> batch = torch.export.Dim("N", min=1, max=16)
    >>> program = torch.export.export(Rows(), (torch.ones(2, 3, 5),), dynamic_shapes=({0: batch},))
    >>> fixed = specialize_shapes(program, (torch.ones(7, 3, 5),), "N = 7")
    >>> [node.args[1] for node in fixed.graph.nodes if node.op == "call_function"]
    [[21, -1]]
    """
    graph = copy_graph(exported.graph)
    held = {**exported.state_dict, **exported.constants}
    feed = iter(leaves)
    placed = {
        spec.arg.name: next(feed) if spec.kind == InputKind.USER_INPUT else held[str(spec.target)]
        for spec in exported.graph_signature.input_specs
    }
    known: dict[Node, Any] = {}
    with FakeTensorMode() as mode, torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                value = placed[node.name]
                value = (
                    mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value
                )
            elif node.op == "call_function":
                value = _value(node, known, sizes)
            elif node.op == "get_attr":
                place = " and ".join(operator_at(user) for user in node.users)
                found, fix = "control flow with symbolic sizes", "decide it before export, or fix the sizes"
                raise UnsupportedError(place or operator_name(node), found, fix)
            else:
                drop_meta(node, VALUE)  # a loaded program has symbolic values here
                continue
            known[set_value(node, value)] = value
    for node in reversed(graph.nodes):
        node.args, node.kwargs = (
            map_arg(each, lambda n: known[n] if _is_number(n, known) else n)
            for each in (node.args, node.kwargs)
        )
        if _is_number(node, known) or (node.op == "call_function" and known[node] is None):
            graph.erase_node(node)
    if any(isinstance(result, (int, float)) for result in pytree.tree_leaves(graph.output_node().args)):
        found = "a size among what the network returns"
        raise UnsupportedError("output", found, "return tensors: their shapes tell their sizes")
    args, kwargs = pytree.tree_unflatten(list(leaves), exported.call_spec.in_spec)
    call = (tuple(args), dict(kwargs))
    return remade(exported, root=torch.nn.Module(), graph=graph, range_constraints={}, example_inputs=call)


def resize_tensor(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor with another shape: its elements, repeated or cut off along each dimension.

    >>> resize_tensor(torch.tensor([[1, 2], [3, 4]]), (3, 1))
    tensor([[1],
            [3],
            [1]])
    """
    for d, size in enumerate(shape):
        if tensor.shape[d] != size:
            tensor = tensor.index_select(d, torch.arange(size, device=tensor.device) % tensor.shape[d])
    return tensor


def _value(node: Node, known: dict[Node, Any], sizes: str) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    target: Any = node.target
    try:
        return target(*args, **kwargs)
    except Exception as error:  # whatever an operator says about sizes that it does not accept
        told = next(iter(str(error).strip().splitlines()), "")
        raise UnsupportedError(
            f"{operator_at(node)}, at {sizes}",
            f"{type(error).__name__}: {told}",
            "narrow the range of sizes, or make the network take them all",
        ) from error


def _is_number(node: Node, known: dict[Node, Any]) -> bool:
    """Return whether a node computes a size, or a number from sizes."""
    return node.op == "call_function" and isinstance(known[node], (int, float))
