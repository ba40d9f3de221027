"""Decides the normal form of a quantised network: what quantizers insert round every operator is reduced to
what it says about values, and no number changes by it.

1. A quantised value is dequantised once.
2. What is quantised after it was moved, or selected by a maximum, is quantised before that, once.
3. What moves elements of dequantised values moves the integers.
4. What was selected from dequantised values is quantised as they were.
5. What is quantised as it was before is left as it is.
6. What clamps before that clamps before the value is quantised for the first time.
7. The bias of a product of quantised values is a multiple of its scale: what integer kernels add.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from dimorder.lowering.capture.scaled import Scaled
from dimorder.lowering.capture.tracing import EXPORTED
from dimorder.lowering.operators.quantisation import DEQUANTIZE, QUANTIZE, is_quantised

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
        aten.roll.default,
    )
)
# The same, but torch has them for floats alone, or targets compute them by products with ones.
_SELECTIONS = frozenset(
    (
        *(aten.max_pool2d.default, aten.upsample_nearest2d.vec),
        *(aten.expand.default, aten.repeat.default, aten.index_select.default),
    )
)
_PRODUCTS = frozenset((aten.convolution.default, aten.linear.default))


def simplify(module: GraphModule) -> None:
    """Bring a captured graph into that normal form, in place."""
    graph = module.graph
    if not is_quantised(module):
        return
    pending = [node for node in graph.nodes if node.target is QUANTIZE]
    while pending:
        pending += _quantised_before(pending.pop())
    for node in list(graph.nodes):
        if node.target in _MOVES:
            _move_integers(node)
        elif node.target in _SELECTIONS:
            _quantise_after(node)
        elif node.target is QUANTIZE:
            _left_out(node) or _clamped(node)
    for node in list(graph.nodes):
        if node.target is DEQUANTIZE:
            _join(node)
    for node in list(graph.nodes):
        if node.target in _PRODUCTS:
            _scale_bias(module, node)
    graph.eliminate_dead_code()
    module.recompile()


def _join(dequantize: Node) -> None:
    first = next(u for u in dequantize.args[0].users if u.target is DEQUANTIZE and u.args == dequantize.args)  # type: ignore[union-attr]
    if first is not dequantize:
        dequantize.replace_all_uses_with(first)


def _moved_by(move: Node) -> list[Node]:
    """The values whose elements a move or a selection gives."""
    return move.all_input_nodes if move.target is aten.cat.default else move.all_input_nodes[:1]


def _move_integers(move: Node) -> None:
    """A move of dequantised values: the integers are moved, and dequantised afterwards."""
    sources = _moved_by(move)
    if any(s.target is not DEQUANTIZE or s.args[1:] != sources[0].args[1:] for s in sources):
        return
    _, *scale = sources[0].args
    operator: Any = move.target
    integers: Any = [s.args[0] for s in sources]
    args: Any = torch.fx.map_arg(move.args, lambda n: n.args[0] if n in sources else n)
    with move.graph.inserting_before(move):
        moved = move.graph.call_function(operator, args, move.kwargs)
        real = move.graph.call_function(DEQUANTIZE, (moved, *scale))
    moved.meta = {**move.meta, "val": _like(move, integers[0])}
    real.meta = {**move.meta}
    move.replace_all_uses_with(real)
    move.graph.erase_node(move)


def _quantised_before(quantize: Node) -> list[Node]:
    """A quantised move of floats: what it moves is quantised instead, and the integers are moved. The nodes
    that do that."""
    move: Any = quantize.args[0]
    if not isinstance(move, Node) or move.target not in _MOVES | _SELECTIONS:
        return []
    sources = _moved_by(move)
    scale = quantize.args[1:]
    if any(source.op != "call_function" for source in sources):
        return []
    if move.target is not aten.cat.default:
        others = [user for user in sources[0].users if user.target in _MOVES | _SELECTIONS]
        alike = all(u.target is QUANTIZE and u.args[1:] == scale for other in others for u in other.users)
        if sources[0].target is DEQUANTIZE or not alike:
            return []
    made = {source: _quantised(source, quantize) for source in sources}
    with quantize.graph.inserting_before(quantize):
        if move.target in _MOVES:
            args = torch.fx.map_arg(move.args, lambda n: made.get(n, n))
            moved = quantize.graph.call_function(move.target, args, move.kwargs)
            moved.meta = {**move.meta, EXPORTED: quantize.meta.get(EXPORTED), "val": quantize.meta["val"]}
            quantize.replace_all_uses_with(moved)
            quantize.graph.erase_node(quantize)
        else:
            real = quantize.graph.call_function(DEQUANTIZE, (made[sources[0]], *scale))
            real.meta = {**sources[0].meta}
            chosen = quantize.graph.call_function(move.target, (real, *move.args[1:]), move.kwargs)
            chosen.meta = {**move.meta}
            quantize.replace_input_with(move, chosen)
    if not move.users:
        move.graph.erase_node(move)
    return list(made.values())


def _quantised(value: Node, alike: Node) -> Node:
    """`value` quantised as that node quantises."""
    for user in value.users:
        if user.target is QUANTIZE and user.args[1:] == alike.args[1:]:
            value.append(user)  # before whatever reads it now
            return user
    with value.graph.inserting_after(value):
        made = value.graph.call_function(QUANTIZE, (value, *alike.args[1:]))
    made.meta = {**value.meta, "val": _like(value, alike)}
    return made


def _quantise_after(selection: Node) -> None:
    """What is selected from dequantised values: quantised as they were, which changes nothing."""
    source = selection.all_input_nodes[0]
    if source.target is not DEQUANTIZE:
        return
    with selection.graph.inserting_after(selection):
        quantised = selection.graph.call_function(QUANTIZE, (selection, *source.args[1:]))
    with selection.graph.inserting_after(quantised):
        real = selection.graph.call_function(DEQUANTIZE, (quantised, *source.args[1:]))
    quantised.meta = {**selection.meta, "val": _like(selection, source.args[0])}  # type: ignore[arg-type]
    real.meta = {**selection.meta}
    selection.replace_all_uses_with(real, delete_user_cb=lambda user: user is not quantised)


def _left_out(quantize: Node) -> bool:
    """Without a quantize of what has just been dequantised from the same scale."""
    source = quantize.args[0]
    if (
        not isinstance(source, Node)
        or source.target is not DEQUANTIZE
        or source.args[1:] != quantize.args[1:]
    ):
        return False
    quantize.replace_all_uses_with(source.args[0])  # type: ignore[arg-type]
    quantize.graph.erase_node(quantize)
    return True


def _like(shaped: Node, typed: Node) -> torch.Tensor:
    return torch.empty_like(shaped.meta["val"], dtype=typed.meta["val"].dtype)


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
    if first.args[0].op == "placeholder":  # type: ignore[union-attr]  # whose integers may be the caller's
        return False
    clamp.args = (first.args[0], *clamp.args[1:])
    return True


def _scale_bias(module: GraphModule, product: Node) -> None:
    arguments: tuple[Any, ...] = product.args
    x, weight, bias, *rest = (*arguments, None) if len(arguments) == 2 else arguments  # a linear's bias
    held = [getattr(module, str(n.target), None) if isinstance(n, Node) else None for n in (weight, bias)]
    if (
        not isinstance(x, Node)
        or x.target is not DEQUANTIZE
        or not isinstance(held[0], Scaled)
        or held[1] is None
    ):
        return
    scale: Any = x.args[1]
    channels = held[0].integers.per_channel()
    transposed = product.target is aten.convolution.default and rest[3]
    outputs = 1 if transposed and rest[5] == 1 else 0  # the weight's dimension of output channels
    if channels is None or held[0].integers.zero_point or isinstance(held[1], Scaled):
        return
    if channels[0].numel() > 1 and channels[1] != outputs:
        return
    scales = (channels[0] * scale).to(torch.float32)
    limit = float(2**31 - 128)  # float32 holds no integer nearer to the end of int32
    multiples = (held[1].double() / scales.double()).round().clamp(-limit, limit).to(torch.int32)
    name = f"{bias.target}_of_{product.name}"
    module.register_buffer(name, Scaled.of(multiples, scales))
    with module.graph.inserting_before(product):
        made = module.graph.get_attr(name)
    made.meta = dict(bias.meta)
    product.replace_input_with(bias, made)
