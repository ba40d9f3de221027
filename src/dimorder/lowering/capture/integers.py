"""Decides the normal form of a quantised network: what quantizers insert round every operator is reduced to
what it says about values, and no number changes by it.

1. A quantised value is dequantised once.
2. What moves elements between a dequantize and a quantize of the same scale moves the integers.
3. What clamps there clamps before the value is quantised for the first time.
4. The bias of a product of quantised values is a multiple of its scale: what integer kernels add.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from dimorder.lowering.capture.scaled import Scaled
from dimorder.lowering.operators.quantisation import DEQUANTIZE, QUANTIZE

aten = torch.ops.aten

_CLAMPS = frozenset(
    (
        aten.relu.default,
        aten.hardtanh.default,
        aten.clamp.default,
        aten.clamp_min.default,
        aten.clamp_max.default,
    )
)
# Each element of the result is one of the first operand, or of each operand of its list.
_MOVES = frozenset(
    (
        *(aten.reshape.default, aten.permute.default, aten.slice.Tensor, aten.cat.default, aten.flip.default),
        *(aten.expand.default, aten.repeat.default, aten.roll.default, aten.index_select.default),
    )
)
_PRODUCTS = frozenset((aten.convolution.default, aten.linear.default))


def simplify(module: GraphModule) -> None:
    """Bring a captured graph into that normal form, in place."""
    graph = module.graph
    if not any(node.target is QUANTIZE for node in graph.nodes):
        return
    for node in list(graph.nodes):
        if node.target is DEQUANTIZE:
            _join(node)
    for node in list(graph.nodes):
        if node.target is QUANTIZE:
            _moved(node) or _clamped(node)
    for node in list(graph.nodes):
        if node.target in _PRODUCTS:
            _scale_bias(module, node)
    graph.eliminate_dead_code()
    module.recompile()


def _join(dequantize: Node) -> None:
    first = next(u for u in dequantize.args[0].users if u.target is DEQUANTIZE and u.args == dequantize.args)  # type: ignore[union-attr]
    if first is not dequantize:
        dequantize.replace_all_uses_with(first)


def _moved(quantize: Node) -> bool:
    move = quantize.args[0]
    if not isinstance(move, Node) or move.target not in _MOVES:
        return False
    sources = move.all_input_nodes if move.target is aten.cat.default else move.all_input_nodes[:1]
    if not all(s.target is DEQUANTIZE and s.args[1:] == quantize.args[1:] for s in sources):
        return False
    args: Any = torch.fx.map_arg(move.args, lambda n: n.args[0] if n in sources else n)
    with move.graph.inserting_before(quantize):
        moved = move.graph.call_function(move.target, args, move.kwargs)
    moved.meta = {**move.meta, "val": quantize.meta["val"]}
    quantize.replace_all_uses_with(moved)
    return True


def _clamped(quantize: Node) -> bool:
    """With q for quantising: q(clamp(q⁻¹(q(x)))) is q(clamp(x)), for both never decrease."""
    clamp = quantize.args[0]
    if not isinstance(clamp, Node) or clamp.target not in _CLAMPS or len(clamp.users) > 1:
        return False
    again = clamp.args[0]
    if not isinstance(again, Node) or again.target is not DEQUANTIZE or len(again.users) > 1:
        return False
    first = again.args[0]
    if not isinstance(first, Node) or first.target is not QUANTIZE or len(first.users) > 1:
        return False
    if first.args[1:] != quantize.args[1:]:
        return False
    clamp.args = (first.args[0], *clamp.args[1:])
    return True


def _scale_bias(module: GraphModule, product: Node) -> None:
    x, weight, bias, *rest = product.args
    held = [getattr(module, str(n.target), None) if isinstance(n, Node) else None for n in (weight, bias)]
    if (
        not isinstance(x, Node)
        or x.target is not DEQUANTIZE
        or not isinstance(held[0], Scaled)
        or held[1] is None
    ):
        return
    channels = held[0].integers.per_channel()
    transposed = product.target is aten.convolution.default and rest[3]
    if (
        channels is None
        or isinstance(held[1], Scaled)
        or (channels[0].numel() > 1 and (transposed or channels[1]))
    ):
        return
    scales = (channels[0] * x.args[1]).to(torch.float32)
    limit = float(2**31 - 128)  # float32 holds no integer nearer to the end of int32
    multiples = (held[1].double() / scales.double()).round().clamp(-limit, limit).to(torch.int32)
    name = f"{bias.target}_of_{product.name}"  # type: ignore[union-attr]
    module.register_buffer(name, Scaled.of(multiples, scales))
    with module.graph.inserting_before(product):
        made = module.graph.get_attr(name)
    made.meta = dict(bias.meta)  # type: ignore[union-attr]
    product.replace_input_with(bias, made)  # type: ignore[arg-type]
