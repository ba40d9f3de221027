"""Write norms that Arm's quantizers do not know in operators that they know."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import bound, call_before, replace_node

aten = torch.ops.aten


def rewrite_norms(model: GraphModule) -> None:
    """Write instance norms as group norms, and norms by root mean squares in parts, in place.

    >>> model = torch.export.export(torch.nn.RMSNorm(5), (torch.ones(2, 5),)).module(check_guards=False)
    >>> rewrite_norms(model)
    >>> [str(node.target) for node in model.graph.nodes if node.op == "call_function"][1:4]
    ['aten.mean.dim', 'aten.add.Scalar', 'aten.rsqrt.default']
    """
    for node in model.graph.find_nodes(op="call_function", target=aten.instance_norm.default):
        given = bound(node.target, node.args, node.kwargs)
        if given["use_input_stats"]:
            channels = node.meta["val"].shape[1]
            args = (given["input"], channels, given["weight"], given["bias"], given["eps"], False)
            replace_node(node, call_before(node, aten.group_norm.default, args, value=node.meta["val"]))
    for node in model.graph.find_nodes(op="call_function", target=aten.rms_norm.default):
        given = bound(node.target, node.args, node.kwargs)
        x, whole = given["input"], node.meta["val"]
        dims = list(range(-len(given["normalized_shape"]), 0))
        rows = whole.mean(dims, keepdim=True)
        eps = torch.finfo(whole.dtype).eps if given["eps"] is None else given["eps"]
        mean = _call(node, aten.mean.dim, rows, _call(node, aten.mul.Tensor, whole, x, x), dims, True)
        scale = _call(node, aten.rsqrt.default, rows, _call(node, aten.add.Scalar, rows, mean, eps))
        y = _call(node, aten.mul.Tensor, whole, x, scale)
        weight = given["weight"]
        replace_node(node, y if weight is None else _call(node, aten.mul.Tensor, whole, y, weight))


def _call(place: Node, target: Any, value: torch.Tensor, *args: Any) -> Node:
    return call_before(place, target, args, value=value)
