"""Write counts of truth values that float arithmetic reads as sums of floats, which quantizers observe."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from dimorder.graph.elements import MOVERS
from dimorder.graph.nodes import replace_node, tensor_of
from dimorder.graph.prediction import computed_before

aten = torch.ops.aten

_CASTS = (aten.to.dtype, aten._to_copy.default)
_ARITHMETIC = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
# What may be computed of counts before floats read them; it computes the same of floats.
_SAME_OF_FLOATS = (
    *(aten.sum.default, aten.sum.dim_IntList, aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor),
    *(aten.clamp.default, aten.clamp_min.default, *MOVERS),
)
_COUNTS: Mapping[Any, Any] = MappingProxyType(
    {
        aten.count_nonzero.default: aten.sum.default,
        aten.count_nonzero.dim_IntList: aten.sum.dim_IntList,
    }
)


def count_in_floats(model: GraphModule) -> None:
    """Write each count that float arithmetic reads, or that is cast to floats, as a sum of floats, in place.

    >>> class Share(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x / (x > 0).sum(1, keepdim=True).clamp(min=1)
    >>> model = torch.export.export(Share(), (torch.ones(2, 5),)).module(check_guards=False)
    >>> count_in_floats(model)
    >>> [str(node.target) for node in model.graph.nodes if node.op == "call_function"]
    ['aten.gt.Scalar', 'aten.to.dtype', 'aten.sum.dim_IntList', 'aten.clamp.default', 'aten.div.Tensor']
    """
    for node in list(model.graph.nodes):
        if node.target not in (*_CASTS, *_ARITHMETIC) or not tensor_of(node).is_floating_point():
            continue
        for operand in node.all_input_nodes:
            floats = _in_floats(operand, node)
            if floats is not None and node.target in _CASTS:
                replace_node(node, floats)
            elif floats is not None:
                node.replace_input_with(operand, floats)
    model.graph.eliminate_dead_code()


def _in_floats(count: Node, place: Node) -> Node | None:
    """Return a count of truth values as floats, computed before `place`; None for anything else."""
    dtype, target = tensor_of(count).dtype, count.target
    if dtype.is_floating_point or dtype.itemsize < 4 or count.op != "call_function":  # bytes wrap round
        return None
    if target in _CASTS:
        return _of_operand(count.all_input_nodes[0], place)
    target = _COUNTS.get(target, target)
    if target not in _SAME_OF_FLOATS:
        return None
    floats = {each: _of_operand(each, place) for each in count.all_input_nodes}
    if any(each is None for each in floats.values()):
        return None
    args, kwargs = pytree.tree_map_only(Node, floats.__getitem__, (count.args, dict(count.kwargs)))
    options = {name: option for name, option in kwargs.items() if name != "dtype"}
    return computed_before(place, target, *args, **options)


def _of_operand(operand: Node, place: Node) -> Node | None:
    """Return truth values, or a count of these, as floats."""
    if tensor_of(operand).dtype == torch.bool:
        return computed_before(place, aten.to.dtype, operand, tensor_of(place).dtype)
    return _in_floats(operand, place)
