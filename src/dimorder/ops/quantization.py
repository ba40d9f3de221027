"""Define quantize and dequantize. Scales are constant, or dynamic: one for the elements of each token."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import args_of, replace_node
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from dimorder.graph.tracing import Tracer, Value, shape_of
from dimorder.ops.call import Call
from dimorder.ops.dialect import ELEMENTS, OPS
from dimorder.ops.masks import constant_of
from dimorder.ops.operator import Implementation, Operator
from dimorder.ops.pointwise import pointwise
from dimorder.ops.relation import Relation, dims_of

quantized = torch.ops.quantized_decomposed
FAKE_QUANTIZE_DYNAMIC = OPS.fake_quantize_dynamic.default


def is_quantized(module: GraphModule) -> bool:
    """Return whether a graph quantizes any value, or computes with integers that stand for numbers."""
    kinds = (QUANTIZE, DEQUANTIZE, FAKE_QUANTIZE_DYNAMIC)
    return any(node.target in kinds for node in module.graph.nodes)


def remove_noop_quantize(node: Node) -> bool:
    """Remove a quantize right after a dequantize with the same arguments, and return whether it was one."""
    if node.target is not QUANTIZE:
        return False
    source = node.args[0]
    if not isinstance(source, Node) or source.target is not DEQUANTIZE or source.args[1:] != node.args[1:]:
        return False
    replace_node(node, source.args[0])  # type: ignore[arg-type]
    return True


def is_dynamic(module: GraphModule) -> bool:
    """Return whether a graph quantizes any value dynamically."""
    return any(node.target is FAKE_QUANTIZE_DYNAMIC for node in module.graph.nodes)


def _relate_dynamic(node: Node) -> Relation:
    """Relate a dynamic quantize, which runs in any order: a token has the same elements in each."""
    shape, token = shape_of(node), args_of(node)[1]
    dims = dims_of((f"t.{d}" if d in token else f"d.{d}", size) for d, size in enumerate(shape))
    return Relation("agnostic", (dims,), (dims,))


def _fake_quantize_dynamic(c: Call) -> None:
    groups, dims = c.apart("t")
    c.give(c.b.call(c.target, c.take(0, groups), dims, *args_of(c.node)[2:]), groups)


def _by_constants(target: Any, plain: Any) -> Operator:
    """Return an operator whose scale and zero point are tensors; constant ones become numbers."""

    def spell(
        n: Tracer, x: Value, scale: Value, zero: Value, low: Value, high: Value, dtype: Any, **result: Any
    ) -> Value:
        given = (scale, zero, low, high)
        known = [each for value in given if (each := constant_of(n, value)) is not None and each.numel() == 1]
        if len(known) < len(given):
            return n.parts(target, (x, *given, dtype), result)
        return n.write(plain, x, float(known[0]), *map(int, known[1:]), dtype, **result)

    return Operator((target,), spelling=spell)


OPERATORS = (
    pointwise(QUANTIZE),
    pointwise(DEQUANTIZE),
    _by_constants(quantized.quantize_per_tensor.tensor, QUANTIZE),
    _by_constants(quantized.quantize_per_tensor.tensor2, QUANTIZE),
    _by_constants(quantized.dequantize_per_tensor.tensor, DEQUANTIZE),
    _by_constants(quantized.dequantize_per_tensor.tensor2, DEQUANTIZE),
    Operator(
        (FAKE_QUANTIZE_DYNAMIC,),
        _relate_dynamic,
        (Implementation("by tokens", "*", _fake_quantize_dynamic, (FAKE_QUANTIZE_DYNAMIC,)),),
        elements=ELEMENTS[FAKE_QUANTIZE_DYNAMIC],
    ),
)
