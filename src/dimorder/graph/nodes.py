"""Insert, replace and annotate nodes of fx graphs.

A node's `meta` holds what the keys below say, and keys of other tools. Only this module writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

VALUE = "val"  # the results of a call, as tensors without data; torch.export's key
SOURCE = ("stack_trace", "nn_module_stack")  # where in the user's source a node is; torch.export's keys
EXPORTED = "exported"  # the name of the exported program's node that a node was written for
MAX_SHAPE = "max_shape"  # the shape of a value at the largest dynamic sizes
CUSTOM = "custom"  # what torch.export keeps: by the name of a tool, what that tool notes
_ORIGIN = "dimorder"  # in CUSTOM: see `origin_of`


def source_of(node: Node, *others: str) -> dict[str, Any]:
    """Return the metadata that says where in the user's source a node is, and that of other keys."""
    return {key: node.meta[key] for key in (*SOURCE, *others) if key in node.meta}


def origin_of(node: Node) -> dict[str, Any]:
    """Return which operator wrote a node of a physical program.

    An origin has the `site` of the layout problem, or `converts: True` for a conversion. The first node with
    a buffer in an order also has `buffer` and `order`.
    """
    return dict(node.meta.get(CUSTOM, {}).get(_ORIGIN, {}))


def with_origin(source: Mapping[str, Any], **origin: Any) -> dict[str, Any]:
    """Return metadata with an origin."""
    return {**source, CUSTOM: {_ORIGIN: origin}}


def add_origin(node: Node, **origin: Any) -> None:
    """Add facts to the origin of a node."""
    set_meta(node, CUSTOM, {_ORIGIN: {**origin_of(node), **origin}})


def set_meta(node: Node, key: str, value: Any) -> None:
    """Write one key, of this module or of another tool."""
    node.meta[key] = value


def drop_meta(node: Node, key: str) -> None:
    """Remove one key, if it is there."""
    node.meta.pop(key, None)


def set_value(node: Node, value: Any) -> Node:
    """Write the results of a node, and return the node."""
    set_meta(node, VALUE, value)
    return node


def add_meta(node: Node, meta: Mapping[str, Any], value: Any = None) -> Node:
    """Add metadata to a node, with other results if `value` is given, and return the node."""
    node.meta.update(meta)
    return node if value is None else set_value(node, value)


def copy_meta(node: Node, like: Node, value: Any = None) -> Node:
    """Give a node the metadata of another, with other results if `value` is given, and return it."""
    node.meta = dict(like.meta)
    return node if value is None else set_value(node, value)


def add_call(
    graph: Graph,
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    like: Node,
    value: Any = None,
) -> Node:
    """Write a call where a graph inserts.

    Args:
        graph: The graph.
        target: The operator.
        args: Its positional arguments.
        kwargs: Its arguments by name.
        like: The node whose metadata the call gets.
        value: The results of the call; by default those of `like`.
    """
    return copy_meta(graph.call_function(target, tuple(args), dict(kwargs or {})), like, value)


def call_before(
    place: Node,
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    like: Node | None = None,
    value: Any = None,
) -> Node:
    """Write a call before a node, with that node's metadata by default; see `add_call`.

    >>> graph = Graph()
    >>> x = set_value(graph.placeholder("x"), torch.ones(3))
    >>> relu = call_after(x, torch.relu, (x,))
    >>> absolute = call_before(relu, torch.abs, (x,))
    >>> [node.name for node in graph.nodes], relu.meta["val"].shape
    (['x', 'abs_1', 'relu'], torch.Size([3]))
    """
    with place.graph.inserting_before(place):
        return add_call(place.graph, target, args, kwargs, like=like or place, value=value)


def call_after(
    place: Node,
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    like: Node | None = None,
    value: Any = None,
) -> Node:
    """Write a call after a node, with that node's metadata by default; see `add_call`."""
    with place.graph.inserting_after(place):
        return add_call(place.graph, target, args, kwargs, like=like or place, value=value)


def add_constant(graph: Graph, name: str, tensor: torch.Tensor) -> Node:
    """Write a read of a module's constant where a graph inserts; `tensor` is the constant."""
    value = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")
    return set_value(graph.get_attr(name), value)


def replace_node(node: Node, other: Node) -> None:
    """Let all readers of a node read another one, and erase the node."""
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)
