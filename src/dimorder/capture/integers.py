"""Bring a quantized network into its normal form.

Quantizers insert operators around every operator. They are reduced to what they say about values, and no
number changes.

1. Integers are read as they were quantized, or else as their first reader reads them. Another reader computes
   its numbers from those.
2. A quantized value is dequantized once.
3. A value that is quantized after a move, or after a maximum, is quantized before it, once.
4. A move of dequantized values moves the integers.
5. A selection from dequantized values is quantized as they were.
6. A value is not quantized again in the same way.
7. A clamp before such a second quantize comes before the first one.
8. The bias of a linear or convolution of quantized values becomes a multiple of its scale, as integer kernels
   need it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import (
    EXPORTED,
    args_of,
    bound,
    call_after,
    call_before,
    copy_meta,
    replace_node,
    set_meta,
)
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE, Scaled
from dimorder.ops.quantization import is_quantised, remove_noop_quantize
from dimorder.ops.table import elements_of, moved_operands

aten = torch.ops.aten

# Moves of dequantized values become moves of integers.
_MOVES = frozenset((Elements.RELABELS, Elements.MOVES))
# Each element is one of the operand, or a number that is quantized in the same way. But torch has these
# operators only for floats, or targets compute them as matmuls with ones, or pad with floats.
_SELECTIONS = frozenset((Elements.REPEATS, Elements.PADS, Elements.SELECTS))
# Integers that these operators give stand for numbers as those of their operands do.
KEEPS_SCALE = _MOVES | _SELECTIONS
_WEIGHTED = frozenset((aten.convolution.default, aten.linear.default))


def normalize_quantization(module: GraphModule) -> None:
    """Bring a captured graph into that normal form, in place."""
    graph = module.graph
    _agree(graph)
    if not is_quantised(module):
        return
    pending = [node for node in graph.nodes if node.target is QUANTIZE]
    while pending:
        pending += _quantised_before(pending.pop())
    for node in list(graph.nodes):
        if elements_of(node.target) in _MOVES:
            _move_integers(node)
        elif elements_of(node.target) in _SELECTIONS:
            _quantise_after(node)
        elif node.target is QUANTIZE:
            remove_noop_quantize(node) or _clamped(node)
    _join(graph)
    for node in list(graph.nodes):
        if node.target in _WEIGHTED:
            _scale_bias(module, node)
    graph.eliminate_dead_code()


def _agree(graph: Graph) -> None:
    """Give integers one type for all their readers, also after moves.

    Integers that are concatenated get one type, too.
    """
    types: dict[Node, Any] = {}
    for node in list(graph.nodes):
        if node.target is QUANTIZE:
            types[node] = node.args[1:]
        elif node.target is DEQUANTIZE:
            own = types.setdefault(_source(node.args[0]), node.args[1:])
            if own[:2] != node.args[1:3]:
                node.replace_all_uses_with(_read_as(node.args[0], own, node))
        elif node.target is aten.cat.default:
            first, *others = node.all_input_nodes
            if _source(first) not in types:
                continue
            own = types[_source(first)]
            for other in others:
                found = types.get(_source(other), own)
                if found[:2] != own[:2]:
                    real = _read_as(other, found, other, own)
                    same = call_before(node, QUANTIZE, (real, *own), like=other)
                    node.replace_input_with(other, same)


def _source(integers: Node) -> Node:
    """Return the integers before all moves and selections."""
    while elements_of(integers.target) in KEEPS_SCALE:
        integers = moved_operands(integers)[0]
    return integers


def _read_as(integers: Node, own: Any, alike: Node, wanted: Any = None) -> Node:
    """Return the numbers of integers that are read as `wanted`, computed from their numbers as `own`.

    Without `wanted` they are read as the node `alike` reads them.
    """
    scale, zero_point, *_ = wanted or alike.args[1:]
    last = alike
    value = torch.empty_like(integers.meta["val"], dtype=torch.float32)
    for target, *args in (
        (DEQUANTIZE, integers, *own),
        (aten.mul.Tensor, None, scale / own[0]),
        (aten.add.Tensor, None, (own[1] - zero_point) * scale),
    ):
        given = [last if each is None else each for each in args]
        last = call_after(last, target, given, like=alike, value=value)
    return last


def _join(graph: Graph) -> None:
    """Keep only the first dequantize of each value, for all its readers."""
    firsts: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.target is DEQUANTIZE and firsts.setdefault(node.args, node) is not node:
            node.replace_all_uses_with(firsts[node.args])


def _move_integers(move: Node) -> None:
    """Move integers instead of their dequantized values, and dequantize them afterwards."""
    sources = moved_operands(move)
    if any(s.target is not DEQUANTIZE or s.args[1:] != sources[0].args[1:] for s in sources):
        return
    _, *scale = sources[0].args
    args: Any = torch.fx.map_arg(move.args, lambda n: n.args[0] if n in sources else n)
    value = _like(move, args_of(sources[0])[0])
    moved = call_before(move, move.target, args, move.kwargs, value=value)
    replace_node(move, call_before(move, DEQUANTIZE, (moved, *scale)))


def _quantised_before(quantize: Node) -> list[Node]:
    """Quantize before a move or selection instead of after it, and return the new quantize nodes."""
    move: Any = quantize.args[0]
    if not isinstance(move, Node) or elements_of(move.target) not in KEEPS_SCALE:
        return []
    sources = moved_operands(move)
    scale = quantize.args[1:]
    if any(source.op == "get_attr" for source in sources):
        return []
    if move.target is not aten.cat.default:
        others = [user for user in sources[0].users if elements_of(user.target) in KEEPS_SCALE]
        alike = all(u.target is QUANTIZE and u.args[1:] == scale for other in others for u in other.users)
        if sources[0].target is DEQUANTIZE or not alike:
            return []
    made = {source: _quantised(source, quantize) for source in sources}
    if elements_of(move.target) in _MOVES:
        args: Any = torch.fx.map_arg(move.args, lambda n: made.get(n, n))
        value = quantize.meta["val"]
        moved = call_before(quantize, move.target, args, move.kwargs, like=move, value=value)
        set_meta(moved, EXPORTED, quantize.meta.get(EXPORTED))
        replace_node(quantize, moved)
    else:
        real = call_before(quantize, DEQUANTIZE, (made[sources[0]], *scale), like=sources[0])
        args = (real, *move.args[1:])
        quantize.replace_input_with(move, call_before(quantize, move.target, args, move.kwargs, like=move))
    if not move.users:
        move.graph.erase_node(move)
    return list(made.values())


def _quantised(value: Node, alike: Node) -> Node:
    """Return `value` quantized in the same way as the node `alike`."""
    for user in value.users:
        if user.target is QUANTIZE and user.args[1:] == alike.args[1:]:
            _last(value).append(user)  # before its new readers
            return user
    args = (value, *alike.args[1:])
    return call_after(_last(value), QUANTIZE, args, like=value, value=_like(value, alike))


def _last(value: Node) -> Node:
    """Return the node after which a value can be read; for an input it is the last input."""
    return value if value.op != "placeholder" else value.graph.find_nodes(op="placeholder")[-1]


def _quantise_after(selection: Node) -> None:
    """Quantize a selection from dequantized values as they were, which changes nothing."""
    source = selection.all_input_nodes[0]
    if source.target is not DEQUANTIZE or not _holds(source, selection):
        return
    integers, *how = args_of(source)
    quantised = call_after(selection, QUANTIZE, (selection, *how), value=_like(selection, integers))
    real = call_after(quantised, DEQUANTIZE, (quantised, *how), like=selection)
    selection.replace_all_uses_with(real, delete_user_cb=lambda user: user is not quantised)


def _holds(dequantize: Node, selection: Node) -> bool:
    """Return whether a selection adds only numbers that the dequantized values can have: a pad adds one."""
    if selection.target is not aten.constant_pad_nd.default:
        return True
    how: Any = dequantize.args[1:]
    number = torch.tensor(float(selection.args[2]) if len(selection.args) > 2 else 0.0)  # type: ignore[arg-type]
    return torch.equal(DEQUANTIZE(QUANTIZE(number, *how), *how), number)


def _like(shaped: Node, typed: Node) -> torch.Tensor:
    return torch.empty_like(shaped.meta["val"], dtype=typed.meta["val"].dtype)


def _clamped(quantize: Node) -> bool:
    """Write q(clamp(q⁻¹(q(x)))) as q(clamp(x)), with q for quantize; q and clamp never decrease."""
    clamp = quantize.args[0]
    if (
        not isinstance(clamp, Node)
        or elements_of(clamp.target) is not Elements.CLAMPS
        or len(clamp.users) > 1
    ):
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
    target: Any = product.target
    given = bound(target, product.args, product.kwargs)
    x, weight, bias = given["input"], given["weight"], given["bias"]
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
    if channels is None or held[0].integers.zero_point or isinstance(held[1], Scaled):
        return
    scales = (channels[0] * scale).to(torch.float32)
    if scales.numel() > 1:
        # Scales per output channel lie along a dimension of the weight, or several of them in each of its
        # rows.
        outputs, each = 0, 1
        if given.get("transposed"):
            rows, each = held[0].shape[:2]
            outputs, each = (1, 1) if given["groups"] == 1 else (0, each if rows == given["groups"] else 0)
        if channels[1] != outputs or not each:
            return
        scales = scales.repeat_interleave(each)
    limit = float(2**31 - 128)  # float32 has no integer nearer to the end of int32
    multiples = (held[1].double() / scales.double()).round().clamp(-limit, limit).to(torch.int32)
    name = f"{bias.target}_of_{product.name}"
    module.register_buffer(name, Scaled.of(multiples, scales))
    with module.graph.inserting_before(product):
        made = copy_meta(module.graph.get_attr(name), bias)
    product.replace_input_with(bias, made)
