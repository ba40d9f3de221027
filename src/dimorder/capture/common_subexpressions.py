"""Remove calls of a captured graph that compute the same as an earlier call.

Patch merging in Swin, for example, slices the even rows twice. Some networks compute a mask again in each
layer.
"""

from __future__ import annotations

from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from dimorder.graph.tracing import is_random


def merge_common_subexpressions(module: GraphModule) -> None:
    """Replace repeated calls by the first of them, in place.

    Arguments are equal if they print the same: 1 is not 1.0, which turns integers into floats.

    >>> import torch
    >>> from dimorder.capture.captured import capture
    >>> class Twice(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x[:, ::2].relu(), x[:, ::2] * 2, x.long() * 2, x.long() * 2.0
    >>> nodes = capture(Twice(), (torch.ones(1, 4),)).nodes
    >>> print(*(node.name for node in nodes if node.op == "call_function"))
    slice_tensor relu_default mul_tensor _to_copy_default mul_tensor_1 mul_tensor_2
    """
    first: dict[tuple[OpOverload, str], Node] = {}
    for node in list(module.graph.nodes):
        if isinstance(node.target, OpOverload) and not is_random(node.target, node.args, node.kwargs):
            known = first.setdefault((node.target, repr((node.args, node.kwargs))), node)
            if known is not node:
                node.replace_all_uses_with(known)
                module.graph.erase_node(node)
