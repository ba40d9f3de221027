"""Bring a quantized network into its normal form, which computes the same numbers.

1. Integers are dequantized with the scale that quantized them, or else with their first reader's. A reader
   with another scale computes its numbers from the result.
2. A quantized value is dequantized once.
3. A value that is quantized after a move, or after a maximum, is quantized once, before it.
4. A value is padded with a number that an integer stands for.
5. A move of dequantized values becomes a move of the integers.
6. A selection from dequantized values is quantized with their scale.
7. A value is not quantized a second time with the same scale.
8. A clamp before such a second quantize moves before the first one.
9. Elements that are gathered from a constant of one scale are gathered from its integers.
10. The bias of a linear or convolution of quantized values becomes a multiple of its scale. Integer kernels
   need such a bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import (
    EXPORTED,
    add_meta,
    args_of,
    bound,
    call_after,
    call_before,
    copy_meta,
    replace_node,
    set_meta,
    set_value,
    source_frames,
    source_of,
)
from dimorder.graph.prediction import add_predicted, without_data
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE, Scaled, in_float32
from dimorder.ops.quantization import is_quantized, remove_noop_quantize
from dimorder.ops.table import elements_of, moved_operands

aten = torch.ops.aten

# Moves of dequantized values become moves of integers.
_MOVES = frozenset((Elements.RELABELS, Elements.MOVES))
# Each element is one of the operand, or a number that is quantized in the same way. But torch has these
# operators only for floats, or targets compute them as matmuls with ones, or pad with floats.
_SELECTIONS = frozenset((Elements.REPEATS, Elements.PADS, Elements.SELECTS))
# Integers that these operators give stand for numbers as those of their operands do.
KEEPS_SCALE = _MOVES | _SELECTIONS
# Elements at positions that are computed; index_select is one of those that repeat elements.
_GATHERS = frozenset((Elements.GATHERS, Elements.REPEATS))
WEIGHTED = frozenset((aten.convolution.default, aten.linear.default))


def normalize_quantization(module: GraphModule) -> None:
    """Bring a captured graph into that normal form, in place."""
    graph = module.graph
    _agree(graph)
    if not is_quantized(module):
        return
    pending = [node for node in graph.nodes if node.target is QUANTIZE]
    while pending:
        pending += _quantize_before(pending.pop())
    for node in graph.find_nodes(op="call_function", target=QUANTIZE):
        _round_fill(node)
    for node in list(graph.nodes):
        if elements_of(node.target) in _GATHERS:
            _gather_integers(module, node)
    for node in list(graph.nodes):
        effect = elements_of(node.target)
        if effect in _MOVES:
            _move_integers(node)
        elif effect in _SELECTIONS:
            _quantize_after(node)
        elif node.target is QUANTIZE:
            remove_noop_quantize(node) or _clamp_first(node)
    _join(graph)
    for node in list(graph.nodes):
        if node.target in WEIGHTED:
            _scale_bias(module, node)
    graph.eliminate_dead_code()
    _add_missing_sources(graph)


def _add_missing_sources(graph: Graph) -> None:
    """Give each conversion without a source line that of its value, or of its reader if there is none."""
    conversions = [node for node in graph.nodes if node.target in (QUANTIZE, DEQUANTIZE)]
    for node in conversions:
        _copy_source(node, node.all_input_nodes[0])
    for node in reversed(conversions):
        for reader in node.users:
            _copy_source(node, reader)


def _copy_source(node: Node, other: Node) -> None:
    if not source_frames(node) and source_frames(other):
        add_meta(node, source_of(other))


def _agree(graph: Graph) -> None:
    """Give integers one type for all their readers, also after moves, and before they are concatenated."""
    types: dict[Node, Any] = {}
    for node in list(graph.nodes):
        if node.target is QUANTIZE:
            types[node] = node.args[1:]
        elif node.target is DEQUANTIZE:
            own = types.setdefault(_first(node.args[0]), node.args[1:])
            if own[:2] != node.args[1:3]:
                node.replace_all_uses_with(_read_as(node.args[0], own, node, node.args[1:]))
        elif node.target is aten.cat.default:
            first, *others = node.all_input_nodes
            if _first(first) not in types:
                continue
            own = types[_first(first)]
            for other in others:
                found = types.get(_first(other), own)
                if found[:2] != own[:2]:
                    real = _read_as(other, found, other, own)
                    same = call_before(node, QUANTIZE, (real, *own), like=other)
                    node.replace_input_with(other, same)


def _first(value: Node) -> Node:
    """Return the value before all moves and selections."""
    while elements_of(value.target) in KEEPS_SCALE:
        value = moved_operands(value)[0]
    return value


def _read_as(integers: Node, own: Any, like: Node, wanted: Any) -> Node:
    """Write the numbers of integers of type `own` that are read as `wanted`, after the node `like`."""
    scale, zero_point, *_ = wanted
    how: dict[str, Any] = {"like": like, "value": torch.empty_like(integers.meta["val"], dtype=torch.float32)}
    real = call_after(like, DEQUANTIZE, (integers, *own), **how)
    scaled = call_after(real, aten.mul.Tensor, (real, scale / own[0]), **how)
    return call_after(scaled, aten.add.Tensor, (scaled, (own[1] - zero_point) * scale), **how)


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


def _gather_integers(module: GraphModule, gather: Node) -> None:
    """Gather the integers of a constant of one type, such as an embedding's, and dequantize them."""
    table: Any = gather.args[0]
    constant = getattr(module, str(table.target), None) if table.op == "get_attr" else None
    found = None if constant is None else _integers_of(constant, gather)
    if found is None:
        return
    values, how = found
    name = "_".join((str(table.target), *(str(each).replace(".", "_") for each in how[:2])))
    module.register_buffer(name, values)
    with module.graph.inserting_before(gather):
        held = set_value(copy_meta(module.graph.get_attr(name), table), without_data(values))
        integers = add_predicted(gather, gather.target, held, *gather.args[1:], **gather.kwargs)
        gather.replace_all_uses_with(add_predicted(gather, DEQUANTIZE, integers, *how))


def _integers_of(constant: torch.Tensor, gather: Node) -> tuple[torch.Tensor, tuple[Any, ...]] | None:
    """Return the integers of a constant with their type, or None if what is gathered has no such type."""
    if isinstance(constant, Scaled):
        of = constant.integers.type
        return None if of is None else (constant.integers.values, of.arguments)
    types = {user.args[1:] if user.target is QUANTIZE else None for user in gather.users}
    only = types.pop() if len(types) == 1 else None
    return None if only is None else (QUANTIZE(constant, *only), only)


def _round_fill(quantize: Node) -> None:
    """Pad with a number that an integer stands for, not with -∞: some kernels cannot quantize that."""
    pad, how = quantize.all_input_nodes[0], quantize.args[1:]
    if pad.target is not aten.constant_pad_nd.default or len(pad.args) < 3:
        return
    if any(user.target is not QUANTIZE or user.args[1:] != how for user in pad.users):
        return
    fill, source = _rounded(pad.args[2], how), pad.all_input_nodes[0]
    if source.target is DEQUANTIZE:  # an end of the operand's range, if that is quantized to the same
        end = _rounded(math.copysign(math.inf, fill), source.args[1:])
        fill = end if abs(end) > abs(fill) and _rounded(end, how) == fill else fill
    pad.args = (*pad.args[:2], fill)


def _rounded(number: Any, how: Any) -> float:
    """Return the number of the integer to which a number is quantized."""
    scale, zero_point, *_ = how
    levels: int = int(QUANTIZE(torch.tensor(float(number)), *how)) - zero_point
    return levels * in_float32(scale)


def _quantize_before(quantize: Node) -> list[Node]:
    """Quantize before a move or selection instead of after it, and return the new quantize nodes."""
    move: Any = quantize.args[0]
    if not isinstance(move, Node) or elements_of(move.target) not in KEEPS_SCALE:
        return []
    sources = moved_operands(move)
    scale = quantize.args[1:]
    if any(_first(source).op == "get_attr" for source in sources):
        return []  # relabels and slices of a constant stay beside it
    if move.target is not aten.cat.default:
        others = [user for user in sources[0].users if elements_of(user.target) in KEEPS_SCALE]
        same = all(u.target is QUANTIZE and u.args[1:] == scale for other in others for u in other.users)
        if sources[0].target is DEQUANTIZE or not same:
            return []
    quantized = {source: _quantize_like(source, quantize) for source in sources}
    if elements_of(move.target) in _MOVES:
        args: Any = torch.fx.map_arg(move.args, lambda n: quantized.get(n, n))
        value = quantize.meta["val"]
        moved = call_before(quantize, move.target, args, move.kwargs, like=move, value=value)
        set_meta(moved, EXPORTED, quantize.meta.get(EXPORTED))
        replace_node(quantize, moved)
    else:
        real = call_before(quantize, DEQUANTIZE, (quantized[sources[0]], *scale), like=sources[0])
        args = (real, *move.args[1:])
        quantize.replace_input_with(move, call_before(quantize, move.target, args, move.kwargs, like=move))
    if not move.users:
        move.graph.erase_node(move)
    return list(quantized.values())


def _quantize_like(value: Node, quantize: Node) -> Node:
    """Return `value` quantized in the same way as by the node `quantize`."""
    for user in value.users:
        if user.target is QUANTIZE and user.args[1:] == quantize.args[1:]:
            _last(value).append(user)  # before its new readers
            return user
    args = (value, *quantize.args[1:])
    return call_after(_last(value), QUANTIZE, args, like=value, value=_like(value, quantize))


def _last(value: Node) -> Node:
    """Return the node after which a value can be read; for an input it is the last input."""
    return value if value.op != "placeholder" else value.graph.find_nodes(op="placeholder")[-1]


def _quantize_after(selection: Node) -> None:
    """Quantize a selection from dequantized values as they were, which changes nothing."""
    source = selection.all_input_nodes[0]
    if source.target is not DEQUANTIZE or not _holds(source, selection):
        return
    integers, *how = args_of(source)
    quantized = call_after(selection, QUANTIZE, (selection, *how), value=_like(selection, integers))
    real = call_after(quantized, DEQUANTIZE, (quantized, *how), like=selection)
    selection.replace_all_uses_with(real, delete_user_cb=lambda user: user is not quantized)


def _holds(dequantize: Node, selection: Node) -> bool:
    """Return whether a selection adds only numbers that the dequantized values can have: a pad adds one."""
    if selection.target is not aten.constant_pad_nd.default:
        return True
    how: Any = dequantize.args[1:]
    number = torch.tensor(float(selection.args[2]) if len(selection.args) > 2 else 0.0)  # type: ignore[arg-type]
    return torch.equal(DEQUANTIZE(QUANTIZE(number, *how), *how), number)


def _like(shaped: Node, typed: Node) -> torch.Tensor:
    return torch.empty_like(shaped.meta["val"], dtype=typed.meta["val"].dtype)


def _clamp_first(quantize: Node) -> bool:
    """Write q(clamp(q⁻¹(q(x)))) as q(clamp(x)), with q for quantize; q and clamp never decrease."""
    clamp = quantize.args[0]
    again = _only_source(clamp) if elements_of(getattr(clamp, "target", None)) is Elements.CLAMPS else None
    first = _only_source(again) if again is not None and again.target is DEQUANTIZE else None
    source = _only_source(first) if first is not None and first.target is QUANTIZE else None
    if source is None or first is None or first.args[1:] != quantize.args[1:]:
        return False
    if source.op == "placeholder":  # whose integers may be the caller's
        return False
    clamp.args = (source, *clamp.args[1:])  # type: ignore[union-attr]
    return True


def _only_source(node: Any) -> Node | None:
    """Return the first operand of a node that is read once, else None."""
    source = node.args[0] if len(node.users) == 1 else None
    return source if isinstance(source, Node) else None


def _scale_bias(module: GraphModule, node: Node) -> None:
    given = bound(node.target, node.args, node.kwargs)
    x, bias_node = given["input"], given["bias"]
    weight, bias = (
        getattr(module, str(getattr(given[name], "target", "")), None) for name in ("weight", "bias")
    )
    if getattr(x, "target", None) is not DEQUANTIZE or not isinstance(weight, Scaled) or bias is None:
        return
    if weight.integers.zero_point or isinstance(bias, Scaled):
        return
    by_output = _by_output(weight.integers.scales, given)
    if bool((by_output != by_output[:, :1]).any()):
        return
    scales = (by_output[:, 0] * x.args[1]).to(torch.float32)
    limit = float(2**31 - 128)  # float32 has no integer nearer to the end of int32
    multiples = (bias.double() / scales.double()).round().clamp(-limit, limit).to(torch.int32)
    name = f"{bias_node.target}_of_{node.name}"
    module.register_buffer(name, Scaled.of(multiples, scales))
    with module.graph.inserting_before(node):
        node.replace_input_with(bias_node, copy_meta(module.graph.get_attr(name), bias_node))


def _by_output(scales: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
    """Return the scales of a weight as a matrix with a row for each output of its linear or convolution."""
    if not given.get("transposed"):
        return scales.flatten(1)
    groups, outputs = given["groups"], scales.shape[1]
    return (
        scales.reshape(groups, -1, outputs, *scales.shape[2:]).transpose(1, 2).reshape(groups * outputs, -1)
    )
