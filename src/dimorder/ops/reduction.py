"""Define reductions of whole dimensions: sums, means, extrema."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import dropwhile, pairwise
from typing import Any

import torch

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import args_of, bound
from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.call import Call
from dimorder.ops.moves import view
from dimorder.ops.operator import Implementation, Operator, Spell, spelling
from dimorder.ops.relation import Relation, dims_of, in_index_order

aten = torch.ops.aten


def _over_all(reduce: Any) -> Spell:
    """Return the spelling of a sum or mean of all elements."""

    def spell(n: Tracer, x: Value, **options: Value) -> Value:
        given = {name: value for name, value in options.items() if value is not None}
        return n.emit(reduce, x, list(range(len(shape_of(x)))), False, **given)

    return spell


def dims_listed(x: Value, dims: int | Sequence[int] | None) -> list[int]:
    """Return the dimensions counted from the front; no dimensions mean all."""
    rank = len(shape_of(x))
    listed = [dims] if isinstance(dims, int) else dims
    return [dim % rank for dim in listed] if listed else list(range(rank))


def _extreme(whole: Any, reduce: Any) -> Callable[..., Value]:
    def spell(n: Tracer, x: Value) -> Value:
        return n.write(reduce, x, dims_listed(x, None)) if shape_of(x) else n.emit(whole, x)

    return spell


def _extreme_and_where(several: Any, reduce: Any, search: Any) -> Callable[..., Value]:
    """Return the spelling of `max.dim` or `min.dim` as two operators; one that nothing reads is dropped."""

    def spell(n: Tracer, x: Value, dim: int, keepdim: bool = False) -> Value:
        if not shape_of(x) or dtype_of(x) == torch.bool:
            return n.emit(several, x, dim, keepdim)
        return [n.write(reduce, x, [dim], keepdim), n.write(search, x, dim, keepdim)]

    return spell


def _truth(name: Any) -> Spell:
    """Return the spelling of any or all, which torch has over one dimension, several, or all."""

    def spell(n: Tracer, x: Value, dim: Sequence[int] | int | None = None, keepdim: bool = False) -> Value:
        if dim == [] or not shape_of(x):
            return n.emit(aten.ne.Scalar, x, 0)
        dims = [dim] if isinstance(dim, int) else list(dim or range(len(shape_of(x))))
        return n.emit(name, x, dims, keepdim)

    return spell


def _extreme_of_truths(name: Any, truth: Any) -> Spell:
    """Return the spelling of amax or amin, which is any or all of truth values."""

    def spell(n: Tracer, x: Value, *rest: Any, **named: Any) -> Value:
        if dtype_of(x) != torch.bool:
            return n.emit(name, x, *rest, **named)
        given = bound(name, (x, *rest), named)
        return n.write(truth, x, list(given["dim"]) or None, given["keepdim"])

    return spell


def _index_of(name: Any) -> Spell:
    """Return the spelling of argmax or argmin; without a dimension it is that of the flattened tensor."""

    def spell(n: Tracer, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is not None:
            return n.emit(name, x, dim, keepdim)
        index = n.emit(name, view(n, x, [-1]), 0, False)
        return view(n, index, [1] * len(shape_of(x))) if keepdim else index

    return spell


# -- which axes they reduce


def _relate_reduce(node: torch.fx.Node) -> Relation | str:
    shape = shape_of(args_of(node)[0])
    if not shape:
        return "a tensor of rank 0"
    reduced = dims_listed(args_of(node)[0], args_of(node)[1] if len(args_of(node)) > 1 else None)
    keepdim = len(args_of(node)) > 2 and bool(args_of(node)[2])
    names = [f"r.{d}" if d in reduced else f"d.{d}" for d in range(len(shape))]
    read = dims_of(zip(names, shape, strict=True))
    write = [dim if d not in reduced else () for d, dim in enumerate(read) if keepdim or d not in reduced]
    return Relation("reduce", (read,), (tuple(write),))


# -- on physical tensors


def _reduce(c: Call) -> None:
    """Reduce all dimensions at once.

    Among several dynamic sizes, the dimensions are those that the target was asked about: it might not
    compute the call with others. Channels that are reduced with an image stay apart from it. Further
    dimensions of size 1 may come first.
    """
    own, dynamic = c.labelled("r"), c.dynamic_sizes.keys()
    leads = [each for pair in pairwise(own) if dynamic & {*pair} for each in pair]
    groups, dims = c.apart("r", leads=leads)
    if dynamic:
        fewest = c.apart("r", leads=leads, merged=True)
        if [*dropwhile(operator.not_, groups)] != fewest[0]:
            groups, dims = fewest
    c.give_reduced(c.b.call(c.target, c.take(0, groups), dims, True, **c.node.kwargs), groups, dims)


def _index_reduce(c: Call) -> None:
    groups, dims = c.apart("r")
    c.give_reduced(c.b.call(c.target, c.take(0, groups), dims[0], True), groups, dims[:1])


def _product(c: Call) -> None:
    groups, dims = c.apart("r")
    y = c.take(0, groups)
    for dim in dims:
        y = c.b.call(c.target, y, dim, True, **c.node.kwargs)
    c.give_reduced(y, groups, dims)


def _by_halves(combine: Any, is_rounded: bool) -> Callable[[Call], None]:
    """Return the lowering of a reduction that combines two halves until one element is left."""

    def lower(c: Call) -> None:
        groups, dims = c.apart("r")
        if is_rounded:
            c.compute_in_float32()
        y = c.take(0, groups)
        for dim in dims:
            y = halved(c, y, dim, c.size(0, groups[dim]), combine)
        c.give_reduced(y, groups, dims)

    return lower


def halved(c: Call, y: torch.fx.Node, dim: int, size: int, combine: Any) -> torch.fx.Node:
    odd = []
    while size > 1:
        half = size // 2
        if size % 2:
            odd.append(c.b.slice(y, dim, size - 1, size))
        y = c.b.call(combine, c.b.slice(y, dim, 0, half), c.b.slice(y, dim, half, 2 * half))
        size = half
    for rest in odd:
        y = c.b.call(combine, y, rest)
    return y


def is_floating(node: torch.fx.Node) -> bool:
    return bool(node.meta["val"].is_floating_point())


def _reduction(name: Any, *others: Implementation, spell: Spell | None = None) -> Operator:
    implementations = (Implementation("any dims", "*", _reduce, (name,)), *others)
    return Operator(
        (name,), _relate_reduce, implementations, spell, plain=("any dims",), elements=Elements.REDUCES
    )


def _halving(combine: Any, is_rounded: bool = False) -> Implementation:
    parts = (aten.slice.Tensor, combine, *((aten._to_copy.default,) if is_rounded else ()))
    return Implementation("by halves", "*", _by_halves(combine, is_rounded), parts, is_floating)


def _index_reduction(name: Any) -> Operator:
    implementation = Implementation("one dim", "*", _index_reduce, (name,))
    relate = in_index_order(_relate_reduce, "r")
    return Operator((name,), relate, (implementation,), _index_of(name), elements=Elements.REDUCES)


OPERATORS = (
    _reduction(aten.mean.dim),
    _reduction(aten.sum.dim_IntList),
    _reduction(
        aten.amax.default,
        _halving(aten.maximum.default),
        spell=_extreme_of_truths(aten.amax.default, aten.any.dims),
    ),
    _reduction(
        aten.amin.default,
        _halving(aten.minimum.default),
        spell=_extreme_of_truths(aten.amin.default, aten.all.dims),
    ),
    _reduction(aten.any.dims, spell=_truth(aten.any.dims)),
    _reduction(aten.all.dims, spell=_truth(aten.all.dims)),
    Operator(
        (aten.prod.dim_int,),
        _relate_reduce,
        (
            Implementation("dim by dim", "*", _product, (aten.prod.dim_int,)),
            _halving(aten.mul.Tensor, is_rounded=True),
        ),
        plain=("dim by dim",),
        elements=Elements.REDUCES,
    ),
    *map(_index_reduction, (aten.argmax.default, aten.argmin.default)),
    spelling(_over_all(aten.mean.dim), aten.mean.default),
    spelling(_over_all(aten.sum.dim_IntList), aten.sum.default),
    spelling(_extreme(aten.max.default, aten.amax.default), aten.max.default),
    spelling(_extreme(aten.min.default, aten.amin.default), aten.min.default),
    spelling(_extreme_and_where(aten.max.dim, aten.amax.default, aten.argmax.default), aten.max.dim),
    spelling(_extreme_and_where(aten.min.dim, aten.amin.default, aten.argmin.default), aten.min.dim),
    spelling(_truth(aten.any.dims), aten.any.default, aten.any.dim),
    spelling(_truth(aten.all.dims), aten.all.default, aten.all.dim),
)
