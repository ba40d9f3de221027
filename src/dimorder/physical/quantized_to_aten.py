"""Rewrite a quantized program for partitioners that look for the sequence dequantize, operator, quantize.

The moves around a decomposed operator interrupt this sequence, and move floats. They move integers instead:
after the quantize, or before the dequantize. This changes no number. Weights stay integers too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node, map_arg

from dimorder.capture.fold import fold_constants
from dimorder.graph.exported import own_module
from dimorder.graph.nodes import CUSTOM, add_call, call_after, replace_node, set_meta, set_value
from dimorder.graph.quantized import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE
from dimorder.ops.table import elements_of
from dimorder.physical.wasted_levels import clamp_range

aten = torch.ops.aten

# The partitioners of ExecuTorch's Arm backend know operators between a dequantize and a quantize by this
# mark.
_MARK = {"_arm_annotation_info": {"quantized": True}}
_PADS = {aten.constant_pad_nd.default, aten.pad.default}


def quantized_to_aten(program: ExportedProgram) -> ExportedProgram:
    """Return the program with moves of integers, and with other operators marked as Arm's quantizer does.

    Its weights are constants of integers, laid out as ATen's operators read them.
    """
    shown = fold_constants(_moving_integers(program), kept=(DEQUANTIZE, DEQUANTIZE_CHANNELS))
    for node in shown.graph.nodes:
        value = node.meta.get("val")
        if node.op != "call_function" or node.target in (QUANTIZE, DEQUANTIZE, DEQUANTIZE_CHANNELS):
            continue
        if isinstance(value, Tensor) and value.is_floating_point():
            set_meta(node, CUSTOM, {**node.meta.get(CUSTOM, {}), **_MARK})
    return shown


def _moving_integers(program: ExportedProgram) -> ExportedProgram:
    module = own_module(program)
    graph = module.graph
    for node in list(graph.nodes):
        if _is_move(node):
            _move_before_dequantize(node)
        elif node.target in _PADS:
            _rounded(node)
    for node in graph.find_nodes(op="call_function", target=QUANTIZE):
        _move_after_quantize(node)
    for node in graph.find_nodes(op="call_function", target=DEQUANTIZE_CHANNELS):
        _tell_type(module, node)
    graph.eliminate_dead_code()
    module.recompile()
    args, kwargs = program.example_inputs or ((), {})
    with torch.no_grad():
        return torch.export.export(module, args, kwargs)


def _is_move(node: Node) -> bool:
    """Return whether a call moves the elements of its only operand."""
    return elements_of(node.target).moves and len(node.all_input_nodes) == 1


def _move_before_dequantize(move: Node) -> None:
    """Write `move(dequantize(x))` as `dequantize(move(x))`, if the node is of that form."""
    real = move.args[0]
    if not isinstance(real, Node) or real.target not in (DEQUANTIZE, DEQUANTIZE_CHANNELS):
        return
    integers, *how = real.args
    if real.target is DEQUANTIZE_CHANNELS:
        axis = _axis_after(move, real)
        if axis is None:
            return
        how[2] = axis
    graph = move.graph
    with graph.inserting_before(move):
        moved = _called(graph, move, (integers, *move.args[1:]), move.kwargs)
        again = _called(graph, real, (moved, *how), real.kwargs)
    replace_node(move, again)


def _rounded(pad: Node) -> None:
    """Quantize and dequantize a padded float again, by the type of its dequantize; this is exact."""
    real = pad.args[0]
    if not isinstance(real, Node) or real.target is not DEQUANTIZE:
        return
    how = real.args[1:]
    dtype: Any = how[-1]
    with real.meta["val"].fake_mode:
        value = pad.meta["val"].to(dtype)
    integers = call_after(pad, QUANTIZE, (pad, *how), like=real, value=value)
    again = call_after(integers, DEQUANTIZE, (integers, *how), like=real, value=pad.meta["val"])
    pad.replace_all_uses_with(again, lambda user: user is not integers)


def _axis_after(move: Node, real: Node) -> int | None:
    """Return the dimension in which scales differ after a move, or None if that is not one dimension."""
    shape, axis = real.meta["val"].shape, real.args[3]
    places = torch.arange(shape[axis]).view([-1 if d == axis else 1 for d in range(len(shape))])
    found: Tensor = move.target(places.expand(shape), *move.args[1:], **move.kwargs)  # type: ignore[operator]
    for dim, size in enumerate(found.shape):
        one = torch.arange(size).view([-1 if d == dim else 1 for d in range(found.dim())])
        if size == shape[axis] and bool((found == one).all()):
            return dim
    return None


def _move_after_quantize(quantize: Node) -> None:
    """Write `quantize(move(x))` as `move(quantize(x))`, also with clamps before or after the move."""
    passed = list(_passed(quantize.args[0]))
    moves = [node for node in reversed(passed) if _is_move(node)]
    if not moves:
        return
    graph = quantize.graph
    value = passed[-1].args[0]
    with graph.inserting_before(quantize):
        for node in reversed(passed):
            if node not in moves:
                value = _called(graph, node, (value, *node.args[1:]), node.kwargs)
        value = _called(graph, quantize, (value, *quantize.args[1:]), quantize.kwargs)
        for node in moves:
            value = _called(graph, node, (value, *node.args[1:]), node.kwargs)
    replace_node(quantize, value)


def _passed(value: object) -> Iterator[Node]:
    """Yield, from a value upwards, the moves and clamps that have no other reader."""
    while isinstance(value, Node) and len(value.users) == 1:
        if not _is_move(value) and clamp_range(value) is None:
            return
        yield value
        value = value.args[0]


def _tell_type(module: GraphModule, dequantize: Node) -> None:
    """Write the type of a constant's integers as other tools do.

    One scale becomes a number, and missing zero points become zeros.
    """
    integers, scales, zero_points, _, *rest = dequantize.args
    scale = module.get_buffer(scales.target)  # type: ignore[union-attr, arg-type]
    zero = torch.zeros_like(scale, dtype=torch.int64)
    if zero_points is not None:
        zero = module.get_buffer(zero_points.target)  # type: ignore[union-attr, arg-type]
    if scale.numel() == 1:
        dequantize.target = DEQUANTIZE
        dequantize.args = (integers, float(scale), int(zero), *rest)
    elif zero_points is None:
        module.register_buffer(f"{dequantize.name}_zero_points", zero)
        with module.graph.inserting_before(dequantize):
            told = module.graph.get_attr(f"{dequantize.name}_zero_points")
        dequantize.args = (integers, scales, told, *dequantize.args[3:])


def _called(graph: Graph, like: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Node:
    """Write a call of the operator of `like` with other operands, and compute its fake result."""
    target: Any = like.target
    node = add_call(graph, target, args, kwargs, like=like)
    with like.meta["val"].fake_mode, torch.no_grad():
        held, named = map_arg((node.args, node.kwargs), lambda read: read.meta["val"])
        return set_value(node, target(*held, **named))
