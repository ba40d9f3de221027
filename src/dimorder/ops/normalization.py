"""Define norms: batch norms are folded into constants, group norms written in others, layer norms stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dimorder.graph.elements import Elements
from dimorder.graph.half_numbers import HALVES
from dimorder.graph.nodes import add_meta, args_of, source_of
from dimorder.graph.tracing import Tracer, Value, dtype_of, in_float32, shape_of
from dimorder.ops.call import Call
from dimorder.ops.moves import view
from dimorder.ops.operator import Implementation, Operator, ordered_operands, spelling
from dimorder.ops.relation import Relation, dims_of

aten = torch.ops.aten

_AFFINE = ("weight", "bias")


def scaled_features(
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    *,
    transposed: bool = False,
    groups: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return the float64 weight and bias of a linear or convolution whose outputs are scaled, then shifted.

    The weight is (outputs, inputs / groups, taps…), or (inputs, outputs / groups, taps…) if `transposed`.

    >>> scale, shift = torch.tensor([2.0, 5.0]), torch.tensor([0.5, 0.0])
    >>> weight, bias = scaled_features(torch.ones(2, 3), torch.ones(2), scale, shift)
    >>> weight.tolist(), bias.tolist()
    ([[2.0, 2.0, 2.0], [5.0, 5.0, 5.0]], [2.5, 5.0])
    """
    weight, along = weight.double(), scale
    if transposed:  # (inputs, outputs of a group, taps)
        along = scale.reshape(groups, 1, -1).expand(groups, weight.shape[0] // groups, -1)
        along = along.reshape(weight.shape[0], -1)
    taps = [1] * (weight.dim() - along.dim())
    offset = shift if bias is None else shift + bias.double() * scale
    return weight * along.reshape(*along.shape, *taps), offset


def _batch_norm(n: Tracer, x: Value, *given: Value) -> Value:
    weight, bias, mean, var, momentum, eps = given
    if any(isinstance(v, torch.fx.Node) for v in (weight, bias, mean, var)):
        return [n.emit(aten.batch_norm.default, x, weight, bias, mean, var, False, momentum, eps, False)]
    scale = torch.rsqrt(var.double() + eps) * (1.0 if weight is None else weight.double())
    shift = (0.0 if bias is None else bias.double()) - mean.double() * scale
    folded = _fold_into_conv(n, x, scale, shift)
    if folded is not None:
        return [folded]
    shape = [-1] + [1] * (len(shape_of(x)) - 2)
    scale, shift = (v.to(dtype_of(x)).reshape(shape) for v in (scale, shift))
    if dtype_of(x) not in HALVES:
        return [n.emit(aten.add.Tensor, n.emit(aten.mul.Tensor, x, scale), shift)]
    # In halves, a shift that holds a mean far above the deviation is too coarse.
    centred = n.emit(aten.sub.Tensor, x, mean.reshape(shape).to(dtype_of(x)))
    y = n.emit(aten.mul.Tensor, centred, scale)
    return [y if bias is None else n.emit(aten.add.Tensor, y, bias.reshape(shape).to(dtype_of(x)))]


def _fold_into_conv(n: Tracer, x: Value, scale: Tensor, shift: Tensor) -> Value | None:
    """Fold a batch norm's scale and shift into the constants of the convolution before it, if possible."""
    if x.target is not aten.convolution.default or len(n.node.args[0].users) > 1:
        return None
    source, w, b, *rest = x.args
    if w.op != "get_attr" or (b is not None and b.op != "get_attr"):
        return None
    old_bias = None if b is None else n.attributes[b.target]
    constants = scaled_features(
        n.attributes[w.target], old_bias, scale, shift, transposed=rest[3], groups=rest[5]
    )
    weight, bias = (constant.to(dtype_of(x)) for constant in constants)
    n.names[id(weight)], n.names[id(bias)] = f"{w.target}_folded", f"{w.target}_folded_bias"
    return add_meta(n.emit(aten.convolution.default, source, weight, bias, *rest), source_of(x))


def _first_of_batch_norm(n: Tracer, x: Value, *given: Value) -> Value:
    *constants, training, momentum, eps, _ = given
    if training:
        return n.emit(aten.batch_norm.default, x, *constants, training, momentum, eps, False)
    return _batch_norm(n, x, *constants, momentum, eps)[0]


def _normalized(call: Callable[..., Any], x: Any, mean: Callable[[Any], Any], eps: float) -> tuple[Any, Any]:
    """Write x less its mean, and 1 over its deviation, by the `call` of a tracer or of a physical program."""
    centred = call(aten.sub.Tensor, x, mean(x))
    variance = mean(call(aten.mul.Tensor, centred, centred))
    return centred, call(aten.rsqrt.default, call(aten.add.Tensor, variance, eps))


def _group_norm(
    n: Tracer, x: Value, groups: int, weight: Value = None, bias: Value = None, eps: float = 1e-5, *_: Value
) -> Value:
    """Write a group norm in simpler operators, none of which divides the channels into groups.

    The means of channels are averaged over each group. A reshape of all elements to groups would be slow, and
    outside of a delegate if several of its sizes are dynamic.
    """
    batch, channels, *rest = shape_of(x)
    space, ones = list(range(2, 2 + len(rest))), [1] * len(rest)
    by_group = [batch, groups, channels // groups]

    def mean(value: Value) -> Value:
        if groups == 1:
            return n.emit(aten.mean.dim, value, [1, *space], True)
        means = n.emit(aten.mean.dim, value, space, True) if space else value
        if groups == channels:
            return means
        means = n.emit(aten.mean.dim, view(n, means, by_group), [2], True)
        return view(n, n.write(aten.expand.default, means, by_group), [batch, channels, *ones])

    centred, scale = _normalized(n.emit, x, mean, eps)
    if weight is not None:  # one factor per channel is cheaper than two per element
        scale = n.emit(aten.mul.Tensor, scale, view(n, weight, [channels, *ones]))
    y = n.emit(aten.mul.Tensor, centred, scale)
    return y if bias is None else n.emit(aten.add.Tensor, y, view(n, bias, [channels, *ones]))


def _instance_norm(n: Tracer, x: Value, *given: Value) -> Value:
    weight, bias, mean, var, use_input, momentum, eps, _ = given
    if not use_input:
        return _batch_norm(n, x, weight, bias, mean, var, momentum, eps)[0]
    return _group_norm(n, x, shape_of(x)[1], weight, bias, eps)


def _relate_layer_norm(node: torch.fx.Node) -> Relation | str:
    """Relate layer_norm: the innermost dimensions are normalized, and all labels are shared."""
    if len(ordered_operands(node, _AFFINE)) != 1:
        return "a weight or a bias that is computed"
    shape, count = shape_of(args_of(node)[0]), len(args_of(node)[1])
    names = [f"d.{i}" if i < len(shape) - count else f"k.{i}" for i in range(len(shape))]
    dims = dims_of(zip(names, shape, strict=True))
    return Relation("reduce", (dims,), (dims,))


def _affine(c: Call) -> tuple[Tensor | None, Tensor | None, float]:
    """Return the flat weight and bias for normalized dimensions in the planned order, and eps."""
    order = c.permutation(0, "k")
    weight, bias = (None if w is None else w.reshape(-1)[order] for w in (c.weight(2), c.weight(3)))
    return weight, bias, args_of(c.node)[4] if len(args_of(c.node)) > 4 else 1e-5


def _layer_norm_last(c: Call) -> None:
    weight, bias, eps = _affine(c)
    groups = c.ending_in("k")
    size = [c.size(0, groups[-1])]
    given = c.constant(weight, 2), c.constant(bias, 3)
    c.give(c.b.call(c.target, c.take(0, groups), size, *given, eps), groups)


def _layer_norm_from_parts(c: Call) -> None:
    c.compute_in_float32()
    weight, bias, eps = _affine(c)
    groups, dims = c.apart("k")
    shape = [c.size(0, group) if d in dims else 1 for d, group in enumerate(groups)]
    x, mean = c.take(0, groups), lambda value: c.b.call(aten.mean.dim, value, dims, True)
    y = c.b.call(aten.mul.Tensor, *_normalized(c.b.call, x, mean, eps))
    if weight is not None:
        y = c.b.call(aten.mul.Tensor, y, c.constant(weight.reshape(shape), 2))
    if bias is not None:
        y = c.b.call(aten.add.Tensor, y, c.constant(bias.reshape(shape), 3))
    c.give(y, groups)


_PARTS = (
    aten.sub.Tensor,
    aten.mean.dim,
    aten.mul.Tensor,
    aten.rsqrt.default,
    aten.add.Tensor,
    aten._to_copy.default,
)

OPERATORS = (
    Operator(
        (aten.layer_norm.default,),
        _relate_layer_norm,
        (
            Implementation("last", "* k", _layer_norm_last, (aten.layer_norm.default,)),
            Implementation("any", "*", _layer_norm_from_parts, _PARTS),
        ),
        weights=_AFFINE,
        plain=("last", "any"),
        elements=Elements.MIXES,
    ),
    spelling(_batch_norm, aten._native_batch_norm_legit_no_training.default),
    spelling(_first_of_batch_norm, aten.batch_norm.default, fresh=True),
    spelling(in_float32(_group_norm), aten.group_norm.default),
    spelling(in_float32(_instance_norm), aten.instance_norm.default),
)
