"""Write norms that Arm's quantizers do not know in operators that they know."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from dimorder.graph.nodes import bound, call_before, replace_node
from dimorder.graph.prediction import computed_before

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
        x, weight, eps = given["input"], given["weight"], given["eps"]
        dims = list(range(-len(given["normalized_shape"]), 0))
        eps = torch.finfo(node.meta["val"].dtype).eps if eps is None else eps
        mean = computed_before(node, aten.mean.dim, computed_before(node, aten.mul.Tensor, x, x), dims, True)
        scale = computed_before(node, aten.add.Scalar, mean, eps)
        y = computed_before(node, aten.mul.Tensor, x, computed_before(node, aten.rsqrt.default, scale))
        replace_node(node, y if weight is None else computed_before(node, aten.mul.Tensor, y, weight))
