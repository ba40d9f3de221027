"""Define views, permutes, copies and expand.

Views, permutes and copies relabel elements and leave memory as it is. An expand repeats elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import args_of
from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.call import Call
from dimorder.ops.operator import Dims, Implementation, Operator, Relation, dims_of, spelt

aten = torch.ops.aten


# -- spellings as reshape and permute


def _same(n: Tracer, x: Value, *_args: Value, **_kwargs: Value) -> Value:
    return x


def _dropout(n: Tracer, x: Value, p: float, train: bool) -> Value:
    return x if not train or p == 0 else n.emit(aten.dropout.default, x, p, train)


def view(n: Tracer, x: Value, shape: Sequence[int]) -> Value:
    sizes = [int(size) for size in shape]
    if -1 in sizes:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(shape_of(x)) // max(known, 1)
    if tuple(sizes) == shape_of(x):
        return x
    if isinstance(x, torch.Tensor):
        return x.reshape(sizes)
    return n.emit(aten.reshape.default, x, sizes)


def permute(n: Tracer, x: Value, dims: Sequence[int]) -> Value:
    rank = len(shape_of(x))
    dims = [dim % rank for dim in dims]
    if isinstance(x, torch.Tensor):
        return x.permute(dims)
    return x if dims == list(range(rank)) else n.emit(aten.permute.default, x, dims)


def transpose(n: Tracer, x: Value, dim0: int, dim1: int) -> Value:
    dims = list(range(len(shape_of(x))))
    if not dims:
        return x
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return permute(n, x, dims)


def _t(n: Tracer, x: Value) -> Value:
    return permute(n, x, list(reversed(range(len(shape_of(x))))))


def unsqueeze(n: Tracer, x: Value, dim: int) -> Value:
    shape = list(shape_of(x))
    shape.insert(dim % (len(shape) + 1), 1)
    return view(n, x, shape)


def squeeze(n: Tracer, x: Value, dim: int | Sequence[int] | None = None) -> Value:
    shape = shape_of(x)
    dims = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    drop = {d % max(len(shape), 1) for d in dims}
    return view(n, x, [size for d, size in enumerate(shape) if not (d in drop and size == 1)])


def _flatten(n: Tracer, x: Value, start: int = 0, end: int = -1) -> Value:
    shape = list(shape_of(x)) or [1]
    start, end = start % len(shape), end % len(shape)
    return view(n, x, [*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]])


def _unflatten(n: Tracer, x: Value, dim: int, sizes: Sequence[int]) -> Value:
    shape = list(shape_of(x))
    dim = dim % len(shape)
    return view(n, x, [*shape[:dim], *sizes, *shape[dim + 1 :]])


def expand(n: Tracer, x: Value, shape: Sequence[int], implicit: bool = False) -> Value:
    old = (1,) * (len(shape) - len(shape_of(x))) + shape_of(x)
    sizes = [before if size == -1 else int(size) for before, size in zip(old, shape, strict=True)]
    x = view(n, x, old)
    return x if tuple(sizes) == old else n.emit(aten.expand.default, x, sizes)


def _as_strided(
    n: Tracer, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Value:
    dense = [math.prod(size[i + 1 :]) for i in range(len(size))]
    moved = [(s, d) for s, d, extent in zip(stride, dense, size, strict=True) if extent != 1]
    row_major = not offset and all(s == d for s, d in moved) and n.node.args[0].meta["val"].is_contiguous()
    if row_major and math.prod(size) == math.prod(shape_of(x)):
        return view(n, x, size)
    raise UnsupportedError(
        "aten.as_strided",
        f"sizes {list(size)}, strides {list(stride)} read memory directly",
        "write it as view, permute or slice",
    )


def _new_filled(fill: float) -> Callable[..., Value]:
    def rewrite(
        n: Tracer,
        x: Value,
        size: Sequence[int],
        *_: Value,
        dtype: torch.dtype | None = None,
        **__: Value,
    ) -> Value:
        return torch.full(list(size), fill, dtype=dtype or dtype_of(x))

    return rewrite


def _like_filled(fill: float) -> Callable[..., Value]:
    def rewrite(n: Tracer, x: Value, *_: Value, dtype: torch.dtype | None = None, **__: Value) -> Value:
        return torch.full(list(shape_of(x)), fill, dtype=dtype or dtype_of(x))

    return rewrite


# -- which axes they keep


def _relate_permute(node: torch.fx.Node) -> Relation:
    source, dims = shape_of(args_of(node)[0]), args_of(node)[1]
    read = dims_of((f"d.{i}", size) for i, size in enumerate(source))
    return Relation("relabel", (read,), (tuple(read[d] for d in dims),))


def _relate_view(node: torch.fx.Node) -> Relation | str:
    """Relate a view by the pieces that its two shapes share.

    A piece ends wherever a dimension ends in either shape. Shapes whose ends conflict in between share a
    block.
    """
    before, after = shape_of(args_of(node)[0]), shape_of(node)
    if math.prod(before) == 0:
        return "a shape without elements"
    ends = [_suffix_products(shape) for shape in (before, after)]
    cuts = _chain(set(ends[0]) | set(ends[1]))
    blocks: set[str] = set()

    def dims(shape: tuple[int, ...]) -> Dims:
        result = []
        inner = 1
        for size in reversed(shape):
            pieces: list[tuple[str, int]] = []
            for name, low, high in cuts:
                overlap = min(high, inner * size) // max(low, inner)
                if low < inner * size and inner < high and overlap > 1:
                    pieces.append((name, overlap))
                    if not (inner <= low and high <= inner * size):
                        blocks.add(name)
            result.append(tuple(reversed(pieces)))
            inner *= size
        return tuple(reversed(result))

    return Relation("relabel", (dims(before),), (dims(after),), blocks=frozenset(blocks))


def _suffix_products(shape: Sequence[int]) -> list[int]:
    products, inner = [1], 1
    for size in reversed(shape):
        inner *= size
        products.append(inner)
    return products


def _chain(boundaries: set[int]) -> list[tuple[str, int, int]]:
    """Return the pieces (name, low, high) between compatible boundaries, innermost first.

    A boundary is compatible if it divides all larger ones and all smaller ones divide it.
    """
    ordered = sorted(boundaries)
    kept = [
        b
        for b in ordered
        if all(b % s == 0 for s in ordered if s < b) and all(large % b == 0 for large in ordered if large > b)
    ]
    return [(f"v.{i}", low, high) for i, (low, high) in enumerate(itertools.pairwise(kept))]


def _relate_expand(node: torch.fx.Node) -> Relation:
    out, source = shape_of(node), shape_of(args_of(node)[0])
    labels = [f"d.{i}" for i in range(len(out))]
    kept = zip(labels[len(out) - len(source) :], source, out[len(out) - len(source) :], strict=True)
    read = dims_of((name, size) if size == full else ("", 1) for name, size, full in kept)
    return Relation("expand", (read,), (dims_of(zip(labels, out, strict=True)),))


# -- on physical tensors


def _relabel(c: Call) -> None:
    """Lower a view with blocks to the same memory; a reader derives its dimensions."""
    view = c.site.writes[0]
    c.b.store(view.buffer, c.orders[c.result], c.dynamic[0].node, None)


def _lower_expand(c: Call) -> None:
    groups = c.split()
    groups = (
        [[t] for t in c.arrangement.tokens]
        if any(len({c.has(t, 0) for t in g}) > 1 for g in groups)
        else groups
    )
    c.give_dense(
        c.b.call(aten.expand.default, c.take(0, groups), [c.size(c.result, group) for group in groups]),
        groups,
    )


_FREE = (Implementation("same memory", "*", _relabel, ()),)

OPERATORS = (
    Operator((aten.reshape.default,), _relate_view, _FREE, spelt=view),
    Operator((aten.permute.default,), _relate_permute, _FREE, spelt=permute),
    Operator(
        (aten.expand.default,),
        _relate_expand,
        (Implementation("repeated", "*", _lower_expand, (aten.expand.default,)),),
        spelt=expand,
    ),
    spelt(
        _same,
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
        aten.detach_.default,
        aten.contiguous.default,
        aten.lift_fresh_copy.default,
    ),
    spelt(_dropout, aten.dropout.default),
    spelt(view, aten.view.default, aten._unsafe_view.default),
    spelt(transpose, aten.transpose.int),
    spelt(_t, aten.t.default),
    spelt(unsqueeze, aten.unsqueeze.default),
    spelt(squeeze, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
    spelt(_flatten, aten.flatten.using_ints),
    spelt(_unflatten, aten.unflatten.int),
    spelt(_as_strided, aten.as_strided.default),
    spelt(_new_filled(0), aten.new_zeros.default),
    spelt(_new_filled(1), aten.new_ones.default),
    spelt(_like_filled(0), aten.zeros_like.default),
    spelt(_like_filled(1), aten.ones_like.default),
)
