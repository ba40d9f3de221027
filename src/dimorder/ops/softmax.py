"""Define operators along a dimension that they keep: softmax, running sums and products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import args_of
from dimorder.graph.tracing import Tracer, Value, shape_of
from dimorder.ops.call import Call
from dimorder.ops.masks import bounded
from dimorder.ops.moves import view
from dimorder.ops.operator import Implementation, Operator, Relation, Spell, dims_of, spelt
from dimorder.ops.reduction import apart, halved, is_floating
from dimorder.ops.tokens import Token

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


def _relate_running(node: torch.fx.Node) -> Relation | str:
    """Relate cumsum or cumprod: it walks one dimension in index order."""
    relation = _relate_along(node)
    return (
        relation if isinstance(relation, str) else replace(relation, kind="indexed", blocks=frozenset({"k"}))
    )


def _softmax_last(c: Call) -> None:
    groups = c.ending_in("k")
    c.give(c.b.call(c.target, c.take(0, groups), len(groups) - 1), groups)


def _softmax(c: Call) -> None:
    """Lower softmax to itself along one physical dimension, or to simpler operators along several."""
    groups, dims = _along_groups(c)
    if len(dims) == 1:
        c.give(c.b.call(c.target, c.take(0, groups), dims[0]), groups)
        return
    _softmax_from_parts(c, groups, dims, lambda x: c.b.call(aten.amax.default, x, dims, True))


def _softmax_by_halves(c: Call) -> None:
    """Lower softmax to simpler operators, with the maximum by halves."""
    groups, dims = _along_groups(c)

    def largest(x: torch.fx.Node) -> torch.fx.Node:
        for dim in dims:
            x = halved(c, x, dim, c.size(0, groups[dim]), aten.maximum.default)
        return x

    _softmax_from_parts(c, groups, dims, largest)


def _along_groups(c: Call) -> tuple[list[list[Token]], list[int]]:
    """Return the physical dimensions of an operand, and those along which softmax runs."""
    k = set(c.labelled("k"))
    groups = apart(c, k)
    return groups, c.positions(groups, k) or [len(groups) - 1]


def _softmax_from_parts(
    c: Call,
    groups: list[list[Token]],
    dims: list[int],
    largest: Callable[[torch.fx.Node], torch.fx.Node],
) -> None:
    c.compute_in_float32()
    x, log = c.take(0, groups), c.target is aten.log_softmax.int
    shifted = c.b.call(aten.sub.Tensor, x, largest(x))
    powers = c.b.call(aten.exp.default, shifted)
    total = c.b.call(aten.sum.dim_IntList, powers, dims, True)
    scaled = (
        (aten.sub.Tensor, shifted, c.b.call(aten.log.default, total))
        if log
        else (aten.div.Tensor, powers, total)
    )
    c.give(c.b.call(*scaled), groups)


def _cumulative(c: Call) -> None:
    k = c.labelled("k")
    groups = apart(c, k, together=k)
    dim = (c.positions(groups, k) or [len(groups) - 1])[0]
    c.give(c.b.call(c.target, c.take(0, groups), dim, *args_of(c.node)[2:], **c.node.kwargs), groups)


def _by_doubling(combine: Any, neutral: float) -> Callable[[Call], None]:
    """Return the lowering of a running sum or product.

    Its steps combine each element with those 1, 2, 4, … places before.
    """

    def lower(c: Call) -> None:
        c.compute_in_float32()
        k = c.labelled("k")
        groups = c.split(alone=k, together=k)
        dim = c.positions(groups, k)[0]
        y, size, shift = c.take(0, groups), c.size(0, groups[dim]), 1
        while shift < size:
            pads = [0, 0] * (len(groups) - 1 - dim) + [shift, 0]
            before = c.b.call(aten.constant_pad_nd.default, c.b.slice(y, dim, 0, size - shift), pads, neutral)
            y = c.b.call(combine, y, before)
            shift *= 2
        c.give(y, groups)

    return lower


MAX_DOUBLED = 64  # elements of a running sum: all of them move log2(elements) times


def _is_short(node: torch.fx.Node) -> bool:
    """Return whether a running sum has few elements, of a floating type that it keeps."""
    x = args_of(node)[0].meta["val"]
    size = x.shape[args_of(node)[1]] if x.dim() else 1
    same = node.meta["val"].dtype == x.dtype and x.is_floating_point()
    return same and 1 < size <= MAX_DOUBLED


def _along(name: Any, *parts: Any, others: tuple[Implementation, ...] = ()) -> Operator:
    """Return the operator of softmax or log_softmax.

    It runs as itself along the last dimension, as itself along any dimension, or as simpler operators.
    """
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
    """Return the spelling of softmax in the type of the result, with rank 1 instead of 0.

    Not all kernels take other types and ranks. A mask before the softmax becomes a bound.
    """

    def spell(n: Tracer, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
        x = bounded(n, x)
        if dtype is not None:
            x = n.write(aten._to_copy.default, x, dtype=dtype)
        return n.emit(name, x, dim) if shape_of(x) else view(n, n.emit(name, view(n, x, [1]), 0), [])

    return spell


def _running(name: Any, combine: Any, neutral: float) -> Operator:
    parts = (aten.slice.Tensor, aten.constant_pad_nd.default, combine, aten._to_copy.default)
    implementations = (
        Implementation("one dim", "*", _cumulative, (name,)),
        Implementation("by doubling", "*", _by_doubling(combine, neutral), parts, _is_short),
    )
    return Operator((name,), _relate_running, implementations, plain=("one dim",), elements=Elements.MIXES)


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
    _running(aten.cumsum.default, aten.add.Tensor, 0.0),
    _running(aten.cumprod.default, aten.mul.Tensor, 1.0),
    spelt(_underscored(aten.softmax.int), aten._softmax.default),
    spelt(_underscored(aten.log_softmax.int), aten._log_softmax.default),
)
