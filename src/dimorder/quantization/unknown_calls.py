"""Write and annotate calls that Arm's quantizers do not know, as those that they know."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import bound, call_before, replace_node, tensor_of
from dimorder.quantization.norms import rewrite_norms
from dimorder.quantization.wrapped import WrappedQuantizer

aten = torch.ops.aten

# Operator → one that Arm's quantizers annotate, with the same arguments at the places that they read.
_ANNOTATED_AS: Mapping[Any, Any] = MappingProxyType(
    {
        aten._log_softmax.default: aten.exp.default,
    }
)


class UnknownCalls(WrappedQuantizer):
    """Another quantizer, for which calls that it does not know are rewritten, or annotated as others."""

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        rewrite_norms(model)
        rewrite_logsumexp(model)
        keep_log_softmax(model)
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
            largest = _call(node, aten.amax.default, total, [dim], True)
            scores = _call(node, aten.log_softmax.int, total, dim)
            scores = _call(node, aten.amax.default, scores, [dim], True)
            total = call_before(node, aten.sub.Tensor, (largest, scores), value=tensor_of(largest))
        kept = total if given["keepdim"] else _call(node, aten.squeeze.dims, total, given["dim"])
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
        given, value = bound(node.target, node.args, node.kwargs), tensor_of(node)
        x = given["self"]
        if tensor_of(x).dtype != value.dtype:
            converted = torch.empty_like(tensor_of(x), dtype=value.dtype)
            x = call_before(node, aten.to.dtype, (x, value.dtype), value=converted)
        whole = call_before(node, aten._log_softmax.default, (x, given["dim"], False), value=value)
        replace_node(node, whole)


def _call(place: Node, target: Any, x: Node, *args: Any) -> Node:
    """Return a call of one value, written before `place`."""
    return call_before(place, target, (x, *args), value=target(tensor_of(x), *args))
