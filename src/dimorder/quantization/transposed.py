"""Prepare transposed convolutions for quantizers: as 2-D ones, and in groups with a scale per output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import DerivedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from dimorder.graph.nodes import bound, replace_node
from dimorder.graph.prediction import computed_before

aten = torch.ops.aten

_TRANSPOSED = (aten.conv_transpose2d.input, aten.conv_transpose3d.input)


def widen_transposed(model: GraphModule) -> None:
    """Write each 1-D transposed convolution as one of images with one row, in place.

    >>> net = torch.nn.ConvTranspose1d(3, 5, 4, stride=2)
    >>> model = torch.export.export(net, (torch.ones(1, 3, 7),)).module(check_guards=False)
    >>> widen_transposed(model)
    >>> [str(node.target) for node in model.graph.nodes if node.op == "call_function"][-2:]
    ['aten.conv_transpose2d.input', 'aten.squeeze.dim']
    """
    for node in model.graph.find_nodes(op="call_function", target=aten.conv_transpose1d.default):
        given = bound(node.target, node.args, node.kwargs)
        x, weight = (
            computed_before(node, aten.unsqueeze.default, given[name], -2) for name in ("input", "weight")
        )
        pairs = [(1, "stride"), (0, "padding"), (0, "output_padding")]
        sizes = [_pair(first, given[name]) for first, name in pairs]
        args = (x, weight, given["bias"], *sizes, given["groups"], _pair(1, given["dilation"]))
        wide = computed_before(node, aten.conv_transpose2d.input, *args)
        replace_node(node, computed_before(node, aten.squeeze.dim, wide, -2))


def scale_by_output(node: Node) -> None:
    """Give the weight of a transposed convolution in groups a scale per output channel of a group.

    Arm's quantizers give it a scale per input channel, which does not fit the bias. XNNPACKQuantizer leaves
    it in float. A weight is (inputs, outputs / groups, *sizes of the kernel).
    """
    annotation = node.meta.get(Q_ANNOTATION_KEY)
    if node.target not in _TRANSPOSED or annotation is None:
        return
    given = bound(node.target, node.args, node.kwargs)
    specs, groups = annotation.input_qspec_map, given["groups"]
    weight, bias = specs.get(given["weight"]), specs.get(given["bias"])
    if groups == 1 or weight is None or weight.qscheme != torch.per_channel_symmetric:
        return
    specs[given["weight"]] = replace(weight, ch_axis=1)
    if isinstance(bias, DerivedQuantizationSpec):
        derive = bias.derive_qparams_fn

        def repeated(observers: Any) -> tuple[torch.Tensor, ...]:
            return tuple(each.repeat(groups) for each in derive(observers))

        specs[given["bias"]] = replace(bias, derive_qparams_fn=repeated)


def _pair(first: int, length: int | Sequence[Any]) -> list[Any]:
    return [first, length] if isinstance(length, int) else [first, *length]
