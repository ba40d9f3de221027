"""Read, insert, replace and annotate nodes of fx graphs.

A node's `meta` has the keys that are listed below, and keys of other tools. Only this module writes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

VALUE = "val"  # the results of a call, as tensors without data; torch.export's key
SOURCE = ("stack_trace", "nn_module_stack")  # where in the user's source a node is; torch.export's keys
EXPORTED = "exported"  # the name of the exported program's node that a node was written for
RESULT = (
    "result"  # (name of an exported call, number of its result): which result a node is; None is the only
)
CUTS = "cuts"  # (dimension, first, end), one after the other: what a value keeps of that node's value
MAX_SHAPE = "max_shape"  # the shape of a value at the largest dynamic sizes
DYNAMIC = "dynamic"  # the dimensions of a value with dynamic sizes: see `dynamic_dims`
RESIZES = "resizes"  # whether a call that leaves its operand as it is may change it at other sizes
UNEVEN = "uneven"  # whether a call cuts its dimensions into even pieces at some dynamic sizes alone
CUSTOM = "custom"  # what torch.export keeps: by the name of a tool, what that tool notes
_ORIGIN = "dimorder"  # in CUSTOM: see `origin_of`


# -- reading


def only_reader(node: Node) -> Node | None:
    """Return the call that alone reads a value, or None."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def args_of(node: Node) -> Any:
    """Return a node's arguments as `Any`; torch types them as everything that an argument could be."""
    return node.args


def bound(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names in the operator's schema, defaults included.

    >>> bound(torch.ops.aten.softmax.int, ("x", 1), {})
    {'self': 'x', 'dim': 1, 'dtype': None}
    """
    names = [argument.name for argument in target._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in target._schema.arguments}
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def results(node: Node) -> list[torch.Tensor]:
    """Return the results of a call, without data."""
    value = node.meta[VALUE]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def tensor_of(value: Node | torch.Tensor) -> torch.Tensor:
    """Return the one result of a node, without data, or the constant itself."""
    tensor: torch.Tensor = value.meta[VALUE] if isinstance(value, Node) else value
    return tensor


def is_getitem(node: Node) -> bool:
    """Return whether a node only picks one result of a call with several."""
    return getattr(node.target, "__name__", "") == "getitem"


def tensor_arguments(node: Node) -> list[Node]:
    """Return every node that a call takes, in argument order."""
    return [leaf for leaf in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, Node)]


def is_number(node: Node) -> bool:
    """Return whether a call computes a number from dynamic sizes."""
    return isinstance(node.meta.get(VALUE), (torch.SymInt, torch.SymFloat, torch.SymBool))


def may_resize(node: Node) -> bool:
    """Return whether a call that leaves its operand as it is may change it at other dynamic sizes."""
    return RESIZES in node.meta


def is_uneven(node: Node) -> bool:
    """Return whether a call cuts its dimensions into even pieces at some dynamic sizes alone."""
    return bool(node.meta.get(UNEVEN))


def dynamic_dims(node: Node) -> tuple[int, ...]:
    """Return which dimensions of a value have dynamic sizes."""
    dims: tuple[int, ...] = node.meta.get(DYNAMIC, ())
    return dims


def piece_of(node: Node, *sizes: int) -> int:
    """Return the largest piece that all these sizes of a call consist of, at all dynamic sizes."""
    return 1 if is_uneven(node) else math.gcd(*sizes)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors among the leaves of a tree, such as the result of a network."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def are_equal_shapes(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two shapes are known to be the same, at all dynamic sizes."""
    same = (statically_known_true(a == b) for a, b in zip(shape, other, strict=False))
    return len(shape) == len(other) and all(same)


def clone_repeated_tensors(*call: Any) -> Any:
    """Clone a tensor that a call has twice: torch 2.13 exports two such arguments as one, or refuses them."""
    seen: set[int] = set()

    def another(leaf: torch.Tensor) -> torch.Tensor:
        again = id(leaf) in seen
        seen.add(id(leaf))
        return leaf.clone() if again else leaf

    return pytree.tree_map_only(torch.Tensor, another, call)


def module_of(node: Node) -> str:
    """Return the path of the user's module that calls an operator, such as `features.0`, or nothing."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def where(node: Node) -> str:
    """Return where in the user's source an operator comes from: `file.py:12, in features.0`."""
    module = module_of(node)
    for path, number in reversed(source_frames(node)):
        if not path.startswith("<") and "/torch/nn/modules/" not in path:  # torch's code has no file
            return f"{Path(path).name}:{number}" + (f", in {module}" if module else "")
    return module or node.name


def source_frames(node: Node) -> list[tuple[str, str]]:
    """Return the file and the line of each call in a node's stack trace, the innermost last."""
    return re.findall(r'^\s*File "(.*)", line (\d+)', str(node.meta.get("stack_trace") or ""), re.MULTILINE)


def operator_name(node: Node) -> str:
    """Return an operator's name for readers: `aten.convolution`, `placeholder x`, `output output`."""
    if node.op != "call_function":
        return f"{node.op} {node.name}"
    if isinstance(node.target, BuiltinFunctionType):  # such as getitem
        return node.target.__name__
    return str(node.target).removesuffix(".default")


def operator_at(node: Node) -> str:
    """Return an operator's name and source line for errors: `aten.relu (net.py:12, in layer1)`."""
    return f"{operator_name(node)} ({where(node)})"


def node_title(node: Node) -> str:
    """Return a node's name and operator for errors: `relu_1 (aten.relu)`."""
    return f"{node} ({operator_name(node)})"


def source_of(node: Node, *others: str) -> dict[str, Any]:
    """Return the metadata that says where in the user's source a node is, and that of other keys."""
    return {key: node.meta[key] for key in (*SOURCE, *others) if key in node.meta}


def origin_of(node: Node) -> dict[str, Any]:
    """Return which operator wrote a node of a physical program.

    An origin has the `site` of the layout problem, with `outside: True` if the target does not compute it, or
    `converts: True` for a conversion. The first node with a buffer in an order also has `buffer` and `order`.
    """
    return dict(node.meta.get(CUSTOM, {}).get(_ORIGIN, {}))


# -- writing


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
    """Write a call where a graph inserts, with the metadata of `like` and the results `value`, or its own."""
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
    """Write a call before a node, with that node's metadata unless there is a `like`; see `add_call`.

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
    """Write a call after a node, with that node's metadata unless there is a `like`; see `add_call`."""
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


def equal_calls(graph: Graph) -> dict[str, str]:
    """Return for each node of a graph that writes nothing the first one that computes the same, by name."""
    equal: dict[str, str] = {}
    firsts: dict[str, str] = {}
    for node in graph.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), lambda each: equal[each.name])
        key = node.name if node.op != "call_function" else f"{node.target} {args} {kwargs}"
        equal[node.name] = firsts.setdefault(key, node.name)
    return equal


@contextmanager
def shown_as(graph: Graph, others: Mapping[Any, Any]) -> Iterator[None]:
    """Show calls of operators as calls of others, with the same arguments."""
    calls = {node: node.target for node in graph.nodes if node.target in others}
    for node, target in calls.items():
        node.target = others[target]
    try:
        yield
    finally:
        for node, target in calls.items():
            node.target = target


def replace_named(node: Node, other: Node) -> None:
    """Replace a node by another one, which gets its name: an exported program knows its results by name."""
    name = node.name
    replace_node(node, other)
    other.name = name


def graph_module(root: torch.nn.Module, graph: Graph) -> GraphModule:
    """Return a module of a graph, which writes and compiles its Python code only if it is called.

    Like `GraphModule`, it has those attributes of `root` that the graph reads. Most graphs are only read,
    rewritten and interpreted. Their code would take as long as a pass over them.

    >>> graph = Graph()
    >>> _ = graph.output(graph.call_function(torch.relu, (graph.placeholder("x"),)))
    >>> graph_module(torch.nn.Module(), graph)(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    return _LazyGraphModule(root, graph)
