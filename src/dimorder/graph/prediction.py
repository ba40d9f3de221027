"""Predict the results of calls from the shapes of operands, and find the mode of values without data."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from traceback import FrameSummary
from typing import Any

import torch
from torch import Tensor
from torch._guards import ShapeGuard, SLoc, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from dimorder.graph.nodes import VALUE, add_call, call_before


def without_data(tensor: Tensor) -> Tensor:
    """Return a dense meta tensor of the same shape and dtype.

    Predicted strides can be wrong, and would make later views fail.
    """
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")


def predict(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the results of a call on meta tensors; calls of an operator on equal shapes are made once.

    >>> x = torch.empty(2, 3, device="meta")
    >>> predict(torch.ops.aten.sum.dim_IntList, (x, [1]), {}).shape
    torch.Size([2])
    """
    if not isinstance(target, torch._ops.OpOverload):  # it may own weights, which no cache may keep
        with torch.no_grad():
            return target(*args, **kwargs)
    leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs)))
    return _predict(target, tuple(map(_described, leaves)), tree)


@lru_cache(maxsize=4096)
def _predict(target: Any, leaves: tuple[Any, ...], tree: pytree.TreeSpec) -> Any:
    held = [
        torch.empty_strided(*leaf[1:3], dtype=leaf[3], device="meta") if leaf[0] is Tensor else leaf[1]
        for leaf in leaves
    ]
    args, kwargs = pytree.tree_unflatten(held, tree)
    with torch.no_grad():
        return target(*args, **kwargs)


def _described(leaf: Any) -> tuple[Any, ...]:
    """Return what the shape of a result may depend on, with the type: 1 equals True."""
    if isinstance(leaf, Tensor):
        return Tensor, tuple(leaf.shape), leaf.stride(), leaf.dtype
    return type(leaf), leaf


def results_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the results of a call of nodes, without data."""
    metas = pytree.tree_map_only(Node, lambda node: node.meta["val"], (args, kwargs))
    return pytree.tree_map_only(Tensor, without_data, predict(target, *metas))


def add_predicted(like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """Write a call where the graph of `like` inserts, with the metadata of `like` but the predicted results.

    >>> from dimorder.graph.nodes import set_value
    >>> x = set_value(torch.fx.Graph().placeholder("x"), torch.empty(2, 3, device="meta"))
    >>> add_predicted(x, torch.ops.aten.sum.dim_IntList, x, [1]).meta["val"].shape
    torch.Size([2])
    """
    return add_call(like.graph, target, args, kwargs, like=like, value=results_of(target, args, kwargs))


def computed_before(place: Node, target: Any, *args: Any, like: Node | None = None, **kwargs: Any) -> Node:
    """Write a call before a node, with what the operator computes of the values of its operands.

    Unlike those of `add_predicted`, these values may have dynamic sizes. See `call_before`.

    >>> from dimorder.graph.nodes import set_value
    >>> x = set_value(torch.fx.Graph().placeholder("x"), torch.empty(2, 3, device="meta"))
    >>> computed_before(x, torch.ops.aten.sum.dim_IntList, x, [1]).meta["val"].shape
    torch.Size([2])
    """
    metas = pytree.tree_map_only(Node, lambda node: node.meta["val"], (args, kwargs))
    with torch.no_grad():
        value = target(*metas[0], **metas[1])
    return call_before(place, target, args, kwargs, like=like, value=value)


def fake_mode_of(program: ExportedProgram) -> FakeTensorMode | None:
    """Return the mode of a program's inputs, which are tensors without data; it has the dynamic sizes."""
    names, nodes = program.graph_signature.user_inputs, program.graph.find_nodes(op="placeholder")
    return detect_fake_mode([node.meta.get(VALUE) for node in nodes if node.name in names])


def size_assertions(program: ExportedProgram) -> list[Node]:
    """Return the calls in a program that assert what torch.export could not prove of sizes."""
    target = torch.ops.aten._assert_scalar.default
    return list(program.graph.find_nodes(op="call_function", target=target))


def assume_assertions(program: ExportedProgram) -> None:
    """Take what a program asserts of sizes for assumptions of torch.export, in place."""
    mode = fake_mode_of(program)
    for node in size_assertions(program):
        program.graph.erase_node(node)
    if mode is not None and mode.shape_env is not None:
        deferred, unplaced = mode.shape_env.deferred_runtime_asserts, SLoc(None, None)
        asserted = itertools.chain(*deferred.values())
        mode.shape_env.guards += [ShapeGuard(each.expr, unplaced, False) for each in asserted]
        deferred.clear()


def assumptions_of(program: ExportedProgram) -> list[Any]:
    """Return what torch.export assumed of a program's sizes, as expressions of the dynamic sizes' symbols."""
    return [assumed for assumed, _ in places_of_assumptions(program)]


def places_of_assumptions(program: ExportedProgram) -> list[tuple[Any, FrameSummary | None]]:
    """Return what torch.export assumed of a program's sizes, each with its line of the network, if known.

    It defers some to assertions, of which the graph may lack some.
    """
    mode = fake_mode_of(program)
    environment = None if mode is None else mode.shape_env
    if environment is None:
        return []
    known, deferred = environment.replacements, environment.deferred_runtime_asserts.values()
    guards = [(guard.expr.xreplace(known), guard.sloc.framework_loc) for guard in environment.guards]
    found = [*guards, *((each.expr.xreplace(known), None) for each in itertools.chain(*deferred))]
    return [(assumed, place if isinstance(place, FrameSummary) else None) for assumed, place in found]
