"""Write and annotate calls that Arm's quantizers do not know, as those that they know."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import bound, replace_node, tensor_of
from dimorder.graph.prediction import computed_before
from dimorder.quantization.norms import rewrite_cosines, rewrite_deviations, rewrite_norms
from dimorder.quantization.wrapped import WrappedQuantizer

aten = torch.ops.aten

# Operator → one that Arm's quantizers annotate, with the same arguments at the places that they read.
_ANNOTATED_AS: Mapping[Any, Any] = MappingProxyType(
    {
        aten._log_softmax.default: aten.exp.default,
        aten.conv_transpose3d.input: aten.conv_transpose2d.input,
    }
)


class UnknownCalls(WrappedQuantizer):
    """Another quantizer, for which calls that it does not know are rewritten, or annotated as others."""

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        rewrite_norms(model)
        rewrite_cosines(model)
        rewrite_deviations(model)
        rewrite_logsumexp(model)
        keep_log_softmax(model)
        split_trilinear(model)
        return super().transform_for_annotation(model)

    def annotate(self, model: GraphModule) -> GraphModule:
        unknown = {node: node.target for node in model.graph.nodes if node.target in _ANNOTATED_AS}
        for node in unknown:
            node.target = _ANNOTATED_AS[node.target]
        annotated = super().annotate(model)
        for node, target in unknown.items():
            node.target = target
        return annotated


def rewrite_logsumexp(model: GraphModule) -> None:
    """Write each `logsumexp` as the maximum less that of the `log_softmax`, in place.

    It is written along one dimension after the other.

    >>> class LogSumExp(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.logsumexp(1)
    >>> model = torch.export.export(LogSumExp(), (torch.zeros(2, 5),)).module(check_guards=False)
    >>> rewrite_logsumexp(model)
    >>> [str(node.target) for node in model.graph.nodes][1:-1]
    ['aten.amax.default', 'aten.log_softmax.int', 'aten.amax.default', 'aten.sub.Tensor', 'aten.squeeze.dims']
    """
    for node in model.graph.find_nodes(op="call_function", target=aten.logsumexp.default):
        given = bound(node.target, node.args, node.kwargs)
        total: Node = given["self"]
        if not tensor_of(total).is_floating_point():
            continue
        for dim in given["dim"]:
            largest = computed_before(node, aten.amax.default, total, [dim], True)
            scores = computed_before(node, aten.log_softmax.int, total, dim)
            scores = computed_before(node, aten.amax.default, scores, [dim], True)
            total = computed_before(node, aten.sub.Tensor, largest, scores)
        kept = total if given["keepdim"] else computed_before(node, aten.squeeze.dims, total, given["dim"])
        replace_node(node, kept)


def keep_log_softmax(model: GraphModule) -> None:
    """Write each `log_softmax` as the operator that Arm's passes leave whole, in place.

    They write the other one as log(softmax). Small weights then round to 0, whose logarithm is infinite.

    >>> model = torch.export.export(torch.nn.LogSoftmax(1), (torch.ones(2, 5),)).module(check_guards=False)
    >>> keep_log_softmax(model)
    >>> [str(node.target) for node in model.graph.nodes][1:-1]
    ['aten._log_softmax.default']
    """
    for node in model.graph.find_nodes(op="call_function", target=aten.log_softmax.int):
        given, dtype = bound(node.target, node.args, node.kwargs), tensor_of(node).dtype
        x = given["self"]
        if tensor_of(x).dtype != dtype:
            x = computed_before(node, aten.to.dtype, x, dtype)
        replace_node(node, computed_before(node, aten._log_softmax.default, x, given["dim"], False))


def split_trilinear(model: GraphModule) -> None:
    """Write each trilinear resize as a bilinear one of each image, then one along the depth, in place.

    >>> resize = torch.nn.Upsample(scale_factor=2, mode="trilinear")
    >>> model = torch.export.export(resize, (torch.ones(1, 3, 4, 5, 6),)).module(check_guards=False)
    >>> split_trilinear(model)
    >>> [str(node.target) for node in model.graph.nodes if "upsample" in str(node.target)]
    ['aten.upsample_bilinear2d.vec', 'aten.upsample_bilinear2d.vec']
    """
    for node in model.graph.find_nodes(op="call_function", target=aten.upsample_trilinear3d.vec):
        given, value = bound(node.target, node.args, node.kwargs), tensor_of(node)
        n, c, depth, height, width = tensor_of(given["input"]).shape
        _, _, new_depth, new_height, new_width = value.shape
        if not all(isinstance(size, int) for size in (*tensor_of(given["input"]).shape, *value.shape)):
            continue
        scales = given["scale_factors"]

        images = computed_before(node, aten.transpose.int, given["input"], 1, 2)
        images = computed_before(node, aten.reshape.default, images, [n * depth, c, height, width])
        images = _bilinear(node, images, [new_height, new_width], scales and scales[1:])
        volume = computed_before(node, aten.reshape.default, images, [n, depth, c, new_height, new_width])
        columns = computed_before(node, aten.transpose.int, volume, 1, 2)
        columns = computed_before(node, aten.reshape.default, columns, [n, c, depth, new_height * new_width])
        columns = _bilinear(node, columns, [new_depth, new_height * new_width], scales and [scales[0], 1.0])
        replace_node(node, computed_before(node, aten.reshape.default, columns, list(value.shape)))


def _bilinear(like: Node, x: Node, size: list[int], factors: list[float] | None) -> Node:
    """Return images resized as `like` resizes volumes: by factors, or to a size if there are none."""
    aligned = bound(like.target, like.args, like.kwargs)["align_corners"]
    return computed_before(like, aten.upsample_bilinear2d.vec, x, None if factors else size, aligned, factors)
