"""Find the values of a program that may be infinite: a matmul would make NaN of all that they meet."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dimorder.ops.table import elements_of, moved_operands

aten = torch.ops.aten

# Operators with finite results, whichever of their operands' elements are infinite. But infinities alone give
# NaN.
_BOUNDED = (
    *(aten.softmax.int, aten.scaled_dot_product_attention.default),
    *(aten.sigmoid.default, aten.tanh.default),
)
# Operators that are infinite if an argument is 0, and which argument: the first or the second.
_POLES: Mapping[Any, int] = MappingProxyType(
    {
        **dict.fromkeys((aten.log.default, aten.log2.default, aten.log10.default), 0),
        **dict.fromkeys((aten.rsqrt.default, aten.reciprocal.default), 0),
        **dict.fromkeys((aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor), 0),
        aten.div.Tensor: 1,
    }
)
_AS_FIRST = (aten.sqrt.default, aten.sum.dim_IntList, aten.mean.dim)  # above 0 if their first argument is
_BOUNDS = (aten.add.Tensor, aten.add.Scalar, aten.clamp.default, aten.clamp_min.default)
_HUGE = torch.finfo(torch.float32).max / 2  # two such numbers add up to infinity


def infinite_values(exported: ExportedProgram) -> tuple[set[Node], set[Node]]:
    """Return the values that may be infinite, and these together with all values computed from them.

    Only infinities that the network itself creates count, as those of masks and logarithms.
    """
    signature = exported.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    # Tensors of tensors, as of torchao's integers, are finite.
    state = {
        name: value
        for name, value in {**exported.state_dict, **exported.constants}.items()
        if not is_traceable_wrapper_subclass(value)
    }
    held = {node: state.get(names.get(node.name, "")) for node in exported.graph.nodes}
    infinite, touched = set[Node](), set[Node]()
    for node in exported.graph.nodes:
        given, put = pytree.tree_leaves(node.meta.get("val")), (held[node], node.args, node.kwargs)
        if not any(isinstance(value, Tensor) and value.is_floating_point() for value in given):
            continue
        source = any(map(_is_huge, pytree.tree_leaves(put))) or _may_be_pole(node, held)
        if source or touched.intersection(node.all_input_nodes):
            touched.add(node)
        if (source or infinite.intersection(node.all_input_nodes)) and node.target not in _BOUNDED:
            infinite.add(node)
    return infinite, touched


def _may_be_pole(node: Node, held: Mapping[Node, Any]) -> bool:
    read: Any = node.args
    if node.target not in _POLES or (node.target is aten.pow.Tensor_Scalar and read[1] >= 0):
        return False
    return not _is_above_zero(read[_POLES[node.target]], held)


def _is_huge(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool(value.is_floating_point() and (value.abs() >= _HUGE).any())
    return isinstance(value, float) and abs(value) >= _HUGE


def _is_above_zero(value: Any, held: Mapping[Node, Any]) -> bool:
    """Return whether a value is known not to be zero."""
    if not isinstance(value, Node):
        return bool(value)
    if isinstance(held[value], Tensor):
        return bool(held[value].all())
    if value.target in _AS_FIRST or elements_of(value.target).moves:
        return all(_is_above_zero(each, held) for each in moved_operands(value))
    bounds = [each for each in value.args[1:2] if isinstance(each, (int, float))]
    return value.target is aten.exp.default or (value.target in _BOUNDS and any(b > 0 for b in bounds))
