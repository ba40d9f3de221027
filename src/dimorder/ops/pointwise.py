"""Define pointwise operators, which run in any order that is the same for all operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import args_of, tensor_arguments
from dimorder.graph.tracing import Tracer, Value, dtype_of, in_float32, shape_of
from dimorder.ops.call import Call
from dimorder.ops.dialect import OPS
from dimorder.ops.operator import Implementation, Operator, Spell, in_torchs_parts, spelling
from dimorder.ops.relation import Relation, broadcast_dims, token_axes

aten = torch.ops.aten


def relate_pointwise(node: torch.fx.Node) -> Relation:
    out = shape_of(node)
    reads = tuple(broadcast_dims(shape_of(operand), out) for operand in tensor_arguments(node))
    return Relation("agnostic", reads, (broadcast_dims(out, out),))


def _elementwise(c: Call) -> None:
    groups = c.split()
    feed = iter(c.all_operands(groups))
    args, kwargs = pytree.tree_map_only(torch.fx.Node, lambda _: next(feed), (args_of(c.node), c.node.kwargs))
    c.give(c.b.call(c.target, *args, **kwargs), groups)


def _prelu(c: Call) -> None:
    """Lower PReLU with the slope along the last physical dimension, or in simpler operators."""
    groups = c.split()
    x, slope = c.all_operands(groups)
    own = token_axes(c.tensors[1], c.relation) if len(c.site.reads) == 1 else {}
    inner = [group for group in groups if any(token in own for token in group)]
    if own and inner == groups[-1:]:
        slope = c.b.call(aten.view.default, slope, [c.size(0, groups[-1])])
        c.give(c.b.call(OPS.prelu_last.default, x, slope), groups)
        return
    negative = c.b.call(aten.mul.Tensor, c.b.call(aten.clamp.default, x, None, 0.0), slope)
    c.give(c.b.call(aten.add.Tensor, c.b.call(aten.relu.default, x), negative), groups)


def _add_combined(combine: Any) -> Callable[..., Value]:
    """Return the spelling of addcmul or addcdiv: x + value · combine(a, b)."""

    def spell(n: Tracer, x: Value, a: Value, b: Value, *, value: float = 1) -> Value:
        added = n.write(combine, a, b)
        return n.write(aten.add.Tensor, x, added if value == 1 else n.write(aten.mul.Tensor, added, value))

    return spell


def _round_decimals(n: Tracer, x: Value, *, decimals: int) -> Value:
    """Write rounding to decimals as torch has it: to whole numbers of a power of ten."""
    up, down = (aten.mul.Tensor, aten.div.Tensor) if decimals >= 0 else (aten.div.Tensor, aten.mul.Tensor)
    power = float(10 ** abs(decimals))
    return n.write(down, n.write(aten.round.default, n.write(up, x, power)), power)


def pointwise(name: Any, spell: Spell | None = None, elements: Elements = Elements.POINTWISE) -> Operator:
    """Return an operator that runs as itself on physical tensors, in any order."""
    implementation = Implementation("elementwise", "*", _elementwise, (name,))
    return Operator((name,), relate_pointwise, (implementation,), spell, elements=elements)


def _threshold(n: Tracer, x: Value, threshold: float, value: float) -> Value:
    if threshold == value and dtype_of(x).is_floating_point:
        return n.write(aten.clamp_min.default, x, threshold)
    below = n.write(aten.le.Scalar, x, threshold)
    return n.write(aten.where.self, below, torch.tensor(value, dtype=dtype_of(x)), x)


def _celu(n: Tracer, x: Value, alpha: float = 1.0) -> Value:
    """Write CELU: max(x, 0) + alpha (exp(min(x, 0) / alpha) - 1)."""
    return n.write(aten.elu.default, x, alpha, 1.0, 1 / alpha)


def _remainder_of_number(n: Tracer, number: Value, y: Value) -> Value:
    return n.write(aten.remainder.Tensor, torch.tensor(number), y)


def _of_one_type(target: Any) -> Callable[..., Value]:
    """Return the spelling of arithmetic on integers with a result of floats: the integers are cast first.

    A target that computes in floats then computes all but the cast.
    """

    def spell(n: Tracer, x: Value, y: Value, **kwargs: Value) -> Value:
        plain = n.emit(target, x, y, **kwargs)
        if not isinstance(plain, torch.fx.Node) or not dtype_of(plain).is_floating_point:
            return plain
        operands = [_of_floats(n, each, dtype_of(plain)) for each in (x, y)]
        same = operands[0] is x and operands[1] is y
        return plain if same else n.emit(target, *operands, **kwargs)

    return spell


def _of_floats(n: Tracer, value: Value, dtype: torch.dtype) -> Value:
    """Cast a computed value that is no float."""
    is_whole = isinstance(value, torch.fx.Node) and not dtype_of(value).is_floating_point
    return n.write(aten._to_copy.default, value, dtype=dtype) if is_whole else value


def _power(n: Tracer, x: Value, exponent: float) -> Value:
    """Write small powers of integers as products, which are exact and wrap: runtimes compute in floats."""
    dtype = dtype_of(x)
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool or exponent not in (2, 3, 4):
        return n.emit(aten.pow.Tensor_Scalar, x, exponent)
    square = n.write(aten.mul.Tensor, x, x)
    return square if exponent == 2 else n.write(aten.mul.Tensor, square, x if exponent == 3 else square)


def _power_of_tensor(n: Tracer, x: Value, exponent: Value) -> Value:
    """Write a power whose exponents are one constant as that with a number, which every target has."""
    plain = n.emit(aten.pow.Tensor_Tensor, x, exponent)
    if not isinstance(exponent, torch.Tensor) or not exponent.numel():
        return plain
    first = exponent.flatten()[0]
    same = (shape_of(plain), dtype_of(plain)) == (shape_of(x), dtype_of(x))
    return n.write(aten.pow.Tensor_Scalar, x, first.item()) if same and (exponent == first).all() else plain


# The bounds of each operator that clamps, from its arguments by name; None is no bound (see `clamp_bounds`).
CLAMP_BOUNDS: Mapping[Any, Callable[[Mapping[str, Any]], tuple[Any, Any]]] = MappingProxyType(
    {
        aten.relu.default: lambda given: (0.0, None),
        aten.relu6.default: lambda given: (0.0, 6.0),
        aten.hardtanh.default: lambda given: (given["min_val"], given["max_val"]),
        aten.clamp.default: lambda given: (given["min"], given["max"]),
        aten.clamp_min.default: lambda given: (given["min"], None),
        aten.clamp_max.default: lambda given: (None, given["max"]),
    }
)


def clamp_bounds(target: Any, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the bounds of a call that clamps, from its arguments by name. An infinity is no bound."""
    low, high = CLAMP_BOUNDS[target](given)
    return -math.inf if low is None else low, math.inf if high is None else high


# The operators that torch 2.13 does not tag as pointwise, and those of which more is known. Any other tagged
# operator gets such a value, too (see table.find).
OPERATORS = (
    *(pointwise(target, elements=Elements.CLAMPS) for target in CLAMP_BOUNDS),
    *(
        pointwise(target, _of_one_type(target))
        for target in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
    ),
    pointwise(aten.floor_divide.default),
    pointwise(aten.floor_divide.Scalar),
    pointwise(aten.hardswish.default),
    pointwise(aten.log_sigmoid.default),
    pointwise(aten.rsub.Tensor),
    pointwise(aten.pow.Tensor_Scalar, _power),
    pointwise(aten.pow.Tensor_Tensor, _power_of_tensor),
    Operator(
        (aten._prelu_kernel.default,),
        relate_pointwise,
        (
            Implementation(
                "slope last, or from parts",
                "*",
                _prelu,
                (
                    OPS.prelu_last.default,
                    aten.clamp.default,
                    aten.relu.default,
                    aten.mul.Tensor,
                    aten.add.Tensor,
                ),
            ),
        ),
        elements=Elements.POINTWISE,
    ),
    spelling(in_float32(_round_decimals), aten.round.decimals),
    spelling(in_float32(_threshold), aten.threshold.default),
    spelling(_celu, aten.celu.default),
    spelling(_remainder_of_number, aten.remainder.Scalar_Tensor),
    *map(in_torchs_parts, (aten.glu.default, aten.selu.default, aten.prelu.default)),
    *map(in_torchs_parts, (aten.clip.default, aten.clip.Tensor, aten.max.other, aten.min.other)),
    in_torchs_parts(aten.true_divide.Tensor),
    spelling(in_float32(_add_combined(aten.mul.Tensor)), aten.addcmul.default),
    spelling(in_float32(_add_combined(aten.div.Tensor)), aten.addcdiv.default),
)
