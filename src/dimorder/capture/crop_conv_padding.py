"""Reduce the padding of convolutions whose results are cut.

Causal convolutions pad both sides and cut one off. Convolutions of even kernels are cut in the same way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import call_before
from dimorder.graph.tracing import shape_of, without_data

aten = torch.ops.aten


def crop_conv_padding(module: GraphModule) -> None:
    """Replace a convolution whose result is cut by a padding and a convolution, in place.

    >>> class Causal(torch.nn.Module):
    ...     def forward(self, x, w):
    ...         return torch.conv1d(x, w, padding=2)[..., :-2]
    >>> from dimorder.capture.captured import capture
    >>> nodes = capture(Causal(), (torch.ones(1, 3, 9), torch.ones(4, 3, 3))).nodes
    >>> [(str(node.target), *node.args[1:2]) for node in nodes if node.op == "call_function"][0]
    ('aten.constant_pad_nd.default', [2, 0])
    """
    for node in list(module.graph.nodes):
        if node.target is aten.slice.Tensor and node.args[0].target is aten.convolution.default:
            _crop(node)
    module.graph.eliminate_dead_code()


def _crop(cut: Node) -> None:
    conv, dim, start, end, step = _arguments(cut)
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = conv.args
    axis = dim - 2
    if axis < 0 or step != 1 or transposed or len(conv.users) > 1:
        return
    amounts = [*padding]
    low, high = amounts[axis] - start, amounts[axis] - (shape_of(conv)[dim] - end)
    if stride[axis] != 1 or min(low, high) < 0:
        return
    amounts[axis] = 0
    sides = [0, 0] * (len(stride) - 1 - axis) + [low, high]
    value = without_data(torch.nn.functional.pad(x.meta["val"], sides))
    padded = call_before(cut, aten.constant_pad_nd.default, (x, sides, 0.0), like=conv, value=value)
    args = (padded, weight, bias, stride, amounts, dilation, transposed, output_padding, groups)
    cut.replace_all_uses_with(call_before(cut, conv.target, args, like=conv, value=cut.meta["val"]))


def _arguments(cut: Node) -> Any:
    """Return the arguments of a slice, as the normal form has them."""
    return cut.args
