"""Write norms, and what is computed with them, in operators that Arm's quantizers know."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import bound, call_before, replace_node, tensor_of
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


def rewrite_cosines(model: GraphModule) -> None:
    """Write each cosine similarity as the sum of products of vectors of length 1, in place.

    Arm's pass takes dimension 1, whatever the call says.

    >>> class Cosine(torch.nn.Module):
    ...     def forward(self, x, y):
    ...         return torch.nn.functional.cosine_similarity(x, y, dim=-1)
    >>> x, y = torch.ones(2, 3, 5), torch.ones(1, 5)
    >>> model = torch.export.export(Cosine(), (x, y)).module(check_guards=False)
    >>> rewrite_cosines(model)
    >>> model.recompile(), model(x, y).shape, "cosine" in model.code
    (..., torch.Size([2, 3]), False)
    """
    for node in model.graph.find_nodes(op="call_function", target=aten.cosine_similarity.default):
        given = bound(node.target, node.args, node.kwargs)
        vectors = given["x1"], given["x2"]
        shape = torch.broadcast_shapes(*(tensor_of(x).shape for x in vectors))
        dim = given["dim"] % len(shape) - len(shape)  # both may have another rank
        x, y = (_normalized(node, x, shape, dim, given["eps"]) for x in vectors)
        product = computed_before(node, aten.mul.Tensor, x, y)
        replace_node(node, computed_before(node, aten.sum.dim_IntList, product, [dim]))


def _normalized(place: Node, x: Node, shape: Sequence[int], dim: int, eps: float) -> Node:
    """Return vectors of length 1, as torch divides them: by their length, or by `eps` if it is more.

    A vector of one element is repeated first, if the other's are longer.
    """
    own = tensor_of(x).shape
    if len(own) < -dim or own[dim] != shape[dim]:
        x = computed_before(place, aten.expand.default, x, list(shape))
    length = computed_before(place, aten.linalg_vector_norm.default, x, 2, [dim], True)
    length = computed_before(place, aten.clamp_min.default, length, eps)
    return computed_before(place, aten.div.Tensor, x, length)


def rewrite_deviations(model: GraphModule) -> None:
    """Write each standard deviation as the root of the variance, in place.

    A variance of all elements keeps its dimensions before they are removed: Arm's pass gives it one too many.

    >>> class Deviation(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.std((1, 2))
    >>> model = torch.export.export(Deviation(), (torch.ones(2, 3, 5),)).module(check_guards=False)
    >>> rewrite_deviations(model)
    >>> [str(node.target) for node in model.graph.nodes if node.op == "call_function"][-3:]
    ['aten.var.correction', 'aten.sqrt.default', 'aten.squeeze.dims']
    """
    for target in (aten.std.correction, aten.std.dim, aten.var.correction, aten.var.dim):
        for node in model.graph.find_nodes(op="call_function", target=target):
            given = bound(node.target, node.args, node.kwargs)
            dims = given["dim"] or list(range(tensor_of(given["self"]).dim()))
            is_root = target in (aten.std.correction, aten.std.dim)
            if not is_root and (given["keepdim"] or tensor_of(node).dim()):
                continue
            correction = given["correction"] if "correction" in given else int(given["unbiased"])
            correction = 1 if correction is None else correction
            call = aten.var.correction, given["self"], dims
            y = computed_before(node, *call, correction=correction, keepdim=True)
            y = computed_before(node, aten.sqrt.default, y) if is_root else y
            kept = given["keepdim"] or not dims
            replace_node(node, y if kept else computed_before(node, aten.squeeze.dims, y, dims))
