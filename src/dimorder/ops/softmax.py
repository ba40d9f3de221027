"""Define operators along a dimension that they keep: softmax, running sums and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dimorder.graph.elements import Elements
from dimorder.graph.half_numbers import HALVES
from dimorder.graph.nodes import args_of, dynamic_dims
from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.call import Call
from dimorder.ops.masks import bounded
from dimorder.ops.moves import view
from dimorder.ops.operator import Implementation, Operator, Spell, spelling
from dimorder.ops.reduction import halved, is_floating
from dimorder.ops.relation import Relation, Token, dims_of, in_index_order

aten = torch.ops.aten


def _underscored(name: Any) -> Spell:
    """Return the spelling of softmax or log_softmax as core ATen has it."""

    def spell(n: Tracer, x: Value, dim: int, half_to_float: bool) -> Value:
        return n.write(name, x, dim, *([torch.float32] if half_to_float else []))

    return spell


def _relate_along(node: torch.fx.Node) -> Relation | str:
    """Relate softmax or log_softmax: the dimension is shared."""
    shape = shape_of(args_of(node)[0])
    if not shape:
        return "a tensor of rank 0"
    k = args_of(node)[1] % len(shape)
    dims = dims_of((("k" if i == k else f"d.{i}"), size) for i, size in enumerate(shape))
    return Relation("reduce", (dims,), (dims,))


def _softmax_last(c: Call) -> None:
    groups = c.ending_in("k")
    c.give(c.b.call(c.target, c.take(0, groups), len(groups) - 1), groups)


def _softmax(c: Call) -> None:
    """Lower softmax to itself along one physical dimension, or to simpler operators along several."""
    groups, dims = c.apart("k")
    if len(dims) == 1:
        c.give(c.b.call(c.target, c.take(0, groups), dims[0]), groups)
    else:
        _softmax_from_parts(c, groups, dims, lambda x: c.b.call(aten.amax.default, x, dims, True))


def _softmax_by_halves(c: Call) -> None:
    """Lower softmax to simpler operators, with the maximum by halves."""
    groups, dims = c.apart("k")

    def largest(x: torch.fx.Node) -> torch.fx.Node:
        for dim in dims:
            x = halved(c, x, dim, c.size(0, groups[dim]), aten.maximum.default)
        return x

    _softmax_from_parts(c, groups, dims, largest)


def _softmax_from_parts(
    c: Call,
    groups: list[list[Token]],
    dims: list[int],
    largest: Callable[[torch.fx.Node], torch.fx.Node],
) -> None:
    c.compute_in_float32()
    x = c.take(0, groups)
    shifted = c.b.call(aten.sub.Tensor, x, largest(x))
    powers = c.b.call(aten.exp.default, shifted)
    total = c.b.call(aten.sum.dim_IntList, powers, dims, True)
    if c.target is aten.log_softmax.int:
        y = c.b.call(aten.sub.Tensor, shifted, c.b.call(aten.log.default, total))
    else:
        y = c.b.call(aten.div.Tensor, powers, total)
    c.give(y, groups)


def _cumulative(c: Call) -> None:
    groups, dims = c.apart("k", together=True)
    c.give(c.b.call(c.target, c.take(0, groups), dims[0], *args_of(c.node)[2:], **c.node.kwargs), groups)


def _by_doubling(combine: Any, neutral: int) -> Callable[[Call], None]:
    """Return the lowering of a running sum or product: steps combine elements 1, 2, 4, … places apart."""

    def lower(c: Call) -> None:
        c.compute_in_float32()
        groups, (dim,) = c.apart("k", together=True)
        y, size, shift = c.take(0, groups), c.size(0, groups[dim]), 1
        dtype = dtype_of(c.node)
        if dtype not in HALVES and dtype != dtype_of(args_of(c.node)[0]):
            y = c.b.call(aten._to_copy.default, y, dtype=dtype)
        while shift < size:
            pads = [0, 0] * (len(groups) - 1 - dim) + [shift, 0]
            before = c.b.call(aten.constant_pad_nd.default, c.b.slice(y, dim, 0, size - shift), pads, neutral)
            y = c.b.call(combine, y, before)
            shift *= 2
        c.give(y, groups)

    return lower


def by_doubling(
    combine: Any, neutral: int, applies: Callable[[torch.fx.Node], bool] = lambda node: True
) -> Implementation:
    """Return the implementation of a running sum or product in log2(elements) steps, each of which moves all.

    A target that has the operator outside lists it as its own, for the calls that `applies` accepts.
    """
    parts = (aten.slice.Tensor, aten.constant_pad_nd.default, combine, aten._to_copy.default)
    return Implementation(
        "by doubling",
        "*",
        _by_doubling(combine, neutral),
        parts,
        lambda node: _has_steps(node) and applies(node),
    )


def running_size(node: torch.fx.Node) -> int:
    """Return how many elements a running sum or product adds up."""
    shape = shape_of(args_of(node)[0])
    return shape[args_of(node)[1]] if shape else 1


def _has_steps(node: torch.fx.Node) -> bool:
    """Return whether a running sum has a fixed number of elements, not rounded to half precision first."""
    x, dim = args_of(node)[:2]
    fixed = not shape_of(x) or dim % len(shape_of(x)) not in dynamic_dims(node)
    kept = dtype_of(node) == dtype_of(x) or dtype_of(node) not in HALVES
    return fixed and kept and running_size(node) > 1


def _along(name: Any, *parts: Any, others: tuple[Implementation, ...] = ()) -> Operator:
    """Return the operator of softmax or log_softmax, which runs as itself or as simpler operators."""
    implementations = (
        Implementation("last", "* k", _softmax_last, (name,)),
        Implementation("any", "*", _softmax, (name, aten.sub.Tensor, aten.amax.default, *parts)),
        *others,
    )
    return Operator(
        (name,),
        _relate_along,
        implementations,
        _plain_along(name),
        plain=("last", "any"),
        elements=Elements.MIXES,
    )


def _plain_along(name: Any) -> Spell:
    """Return the spelling of softmax: in the type of its result, of rank 1 or more, with masks as bounds."""

    def spell(n: Tracer, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
        x = bounded(n, x)
        if dtype is not None:
            x = n.write(aten._to_copy.default, x, dtype=dtype)
        return n.emit(name, x, dim) if shape_of(x) else view(n, n.emit(name, view(n, x, [1]), 0), [])

    return spell


def _plain_running(name: Any) -> Spell:
    """Return the spelling of a running sum or product: of one element it is that element."""

    def spell(n: Tracer, x: Value, dim: int, **given: torch.dtype | None) -> Value:
        if shape_of(x) and shape_of(x)[dim] != 1:
            return n.emit(name, x, dim, **given)
        own = dtype_of(x) if dtype_of(x).is_floating_point else torch.int64
        return n.write(aten._to_copy.default, x, dtype=given.get("dtype") or own)

    return spell


def _running(name: Any, combine: Any, neutral: int) -> Operator:
    implementations = Implementation("one dim", "*", _cumulative, (name,)), by_doubling(combine, neutral)
    relate, spell = in_index_order(_relate_along, "k"), _plain_running(name)
    return Operator((name,), relate, implementations, spell, plain=("one dim",), elements=Elements.MIXES)


_SUMMED = (aten.exp.default, aten.sum.dim_IntList, aten._to_copy.default)
_LOG_BY_HALVES = Implementation(
    "by halves",
    "*",
    _softmax_by_halves,
    (aten.slice.Tensor, aten.maximum.default, aten.sub.Tensor, aten.log.default, *_SUMMED),
    is_floating,
)


OPERATORS = (
    _along(aten.softmax.int, aten.div.Tensor, *_SUMMED),
    _along(aten.log_softmax.int, aten.log.default, *_SUMMED, others=(_LOG_BY_HALVES,)),
    _running(aten.cumsum.default, aten.add.Tensor, 0),
    _running(aten.cumprod.default, aten.mul.Tensor, 1),
    spelling(_underscored(aten.softmax.int), aten._softmax.default),
    spelling(_underscored(aten.log_softmax.int), aten._log_softmax.default),
)
