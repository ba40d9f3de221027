"""Fold factors and shifts beside linears and convolutions into their weights and biases.

Examples are the scale of attention, layer scales, batch norms after linears, and the affine part of norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from dimorder.capture.linears import (
    SCALE_AND_SHIFT,
    Linear,
    constant,
    is_normal,
    is_safe,
    linear_before,
    of_features,
    scaled_inputs,
    with_constant,
)
from dimorder.graph.nodes import call_before, replace_node
from dimorder.graph.tracing import shape_of
from dimorder.ops.normalization import scaled_features

aten = torch.ops.aten


def fold_into_weights(module: GraphModule) -> None:
    """Fold factors and shifts into the weights and biases beside them, in place.

    A factor must be a normal number. A factor of 0 stays, because 0 times an overflow is not 0. New constants
    must be finite, and normal numbers where the old ones are. A weight that has another reader stays: the
    file would contain both.
    """
    for node in list(module.graph.find_nodes(op="call_function", target=aten.hardsigmoid.default)):
        _spell_hardsigmoid(module, node)
    for node in list(module.graph.nodes):
        _fold_after(module, node) or _fold_before(module, node)
    module.graph.eliminate_dead_code()


# -- after a linear or convolution


def _spell_hardsigmoid(module: GraphModule, node: Node) -> None:
    """Write a hard sigmoid after a linear as a factor, a shift, which can be folded, and a clamp."""
    (source,) = node.all_input_nodes
    if linear_before(module, source) is None:
        return
    for target, *rest in ((aten.mul.Tensor, 1 / 6), (aten.add.Tensor, 0.5), (aten.clamp.default, 0, 1)):
        source = call_before(node, target, (source, *rest))
    replace_node(node, source)


def _fold_after(module: GraphModule, node: Node) -> bool:
    """Fold arithmetic with a constant into the linear before it, past views and permutes, or return False."""
    operands = with_constant(module, node)
    found = None if operands is None else linear_before(module, operands[0])
    if operands is None or found is None:
        return False
    (source, value), (linear, moves) = operands, found
    first = linear.node
    along = of_features(linear, moves, value.expand(shape_of(node)) if value.numel() > 1 else value)
    if along is None:
        return False
    scale, shift = SCALE_AND_SHIFT[node.target](along)
    if not is_normal(scale):
        return False
    weight, bias = scaled_features(
        linear.weight, linear.bias, scale, shift, transposed=linear.transposed, groups=linear.groups
    )
    if not is_safe([(linear.weight, weight)]) or not bool(bias.float().isfinite().all()):
        return False
    has_bias = linear.bias is not None or bool(shift.any())
    folded = linear.with_constants(weight, bias if has_bias else None, "folded")
    first.replace_all_uses_with(folded)
    node.replace_all_uses_with(folded if source is first else source)
    node.graph.erase_node(node)
    first.graph.erase_node(first)
    return True


# -- before linears and convolutions


@dataclass(frozen=True)
class _Front:
    """A factor and a shift per channel, along a dimension that linears or convolutions read."""

    dim: int
    scale: Tensor
    shift: Tensor | None


def _fold_before(module: GraphModule, node: Node) -> bool:
    """Fold a norm's last step on each channel into all readers, if these are linears or convolutions."""
    front = _front(module, node)
    readers = None if front is None else _readers(module, node, front)
    if front is None or not readers or not is_normal(front.scale):
        return False
    folded = [scaled_inputs(each.weight, each.bias, front.scale, front.shift) for each in readers]
    if not is_safe([(each.weight, weight) for each, (weight, _) in zip(readers, folded, strict=True)]):
        return False
    if not all(bias is None or bool(bias.float().isfinite().all()) for _, bias in folded):
        return False
    for linear, (weight, bias) in zip(readers, folded, strict=True):
        replace_node(linear.node, linear.with_constants(weight, bias, "folded"))
    if node.target is aten.layer_norm.default:
        node.args = (*node.args[:2], None, None, *node.args[4:])
    else:
        operands = with_constant(module, node)
        assert operands is not None
        replace_node(node, operands[0])
    return True


def _front(module: GraphModule, node: Node) -> _Front | None:
    """Return the affine part of a norm over the last dimension, or the factors of a multiplication."""
    if node.meta.get("val") is None or not isinstance(node.meta["val"], Tensor):
        return None
    shape = shape_of(node)
    if node.target is aten.layer_norm.default and node.meta["val"].dtype == torch.float32:
        scale, shift = (_optional(module, node, place) for place in (2, 3))
        if len(node.args[1]) != 1 or node.kwargs or (scale is None and shift is None):  # type: ignore[arg-type]
            return None
        read = [each for each in node.args[2:4] if each is not None]
        if len(read) != sum(each is not None for each in (scale, shift)):
            return None
        ones = torch.ones(shape[-1], dtype=torch.float64)
        return _Front(len(shape) - 1, ones if scale is None else scale, shift)
    operands = with_constant(module, node) if node.target is aten.mul.Tensor else None
    if operands is None:
        return None
    sizes = (1,) * (len(shape) - operands[1].dim()) + tuple(operands[1].shape)
    dims = [dim for dim, size in enumerate(sizes) if size > 1]
    return _Front(dims[0], operands[1].reshape(-1), None) if len(dims) == 1 else None


def _optional(module: GraphModule, node: Node, place: int) -> Tensor | None:
    return constant(module, node.args[place]) if len(node.args) > place else None


def _readers(module: GraphModule, node: Node, front: _Front) -> list[Linear] | None:
    """Return the linears that read a value's channels, moved or not; None if anything else reads it."""
    dims, linears = {node: front.dim}, list[Linear]()
    for reader in node.graph.nodes:
        read = [source for source in reader.all_input_nodes if source in dims]
        if not read:
            continue
        linear = Linear.of(module, reader)
        if linear is not None:
            if not _takes(linear, dims[read[0]], front):
                return None
            linears.append(linear)
            continue
        found = {dims[source] for source in read} if len(read) == len(reader.all_input_nodes) else set()
        dim = _moved(reader, found.pop()) if len(found) == 1 else None
        if dim is None:
            return None
        dims[reader] = dim
    return linears


def _takes(linear: Linear, dim: int, front: _Front) -> bool:
    """Return whether a linear sums over only this dimension, or a convolution over it and its taps."""
    if linear.node.target is aten.linear.default:
        return dim == linear.features
    unpadded = front.shift is None or not linear.pads
    return dim == 1 and linear.groups == 1 and not linear.transposed and unpadded


def _moved(node: Node, dim: int) -> int | None:
    """Return the dimension of the channels after a move, or None if it is cut or not one dimension."""
    args: Any = node.args
    if node.target is aten.permute.default:
        return list(args[1]).index(dim)
    if node.target is aten.reshape.default:
        return _reshaped(shape_of(args[0]), shape_of(node), dim)
    if node.target in (aten.slice.Tensor, aten.cat.default):
        cut = (args[1] if len(args) > 1 else 0) % len(shape_of(node))
        return None if cut == dim else dim
    return None


def _reshaped(before: Sequence[int], after: Sequence[int], dim: int) -> int | None:
    """Return where a view leaves a dimension whole, or None."""
    outer, size = math.prod(before[:dim]), before[dim]
    whole = (d for d, each in enumerate(after) if each == size > 1 and math.prod(after[:d]) == outer)
    return next(whole, None)
