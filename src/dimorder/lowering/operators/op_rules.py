"""Decides how each ATen operator treats the axes of its operands and results: the one table of operator
rules.

A rule turns a node into a `Relation`: which labels (pieces of dimensions) its operands and results share, and
in which orders it may run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

aten = torch.ops.aten

Dims = tuple[tuple[tuple[str, int], ...], ...]  # per dimension: its labels, outer first, with their sizes


@dataclass(frozen=True)
class Relation:
    """How one operator relates the axes of its operands and results.

    `reads` and `writes` give, per tensor and dimension, the labels it is made of (none where the size is 1 or
    the operand broadcasts). A label is one of three kinds:

    1. shared (the default): its axes are the same wherever it occurs, in the same relative order on every
    tensor;
    2. in `blocks`: every tensor has axes of its own there, which lie adjacent and in logical order;
    3. in `absorbed`: every tensor has axes of its own there, adjacent and in any order, because a constant
    weight
       is re-laid to match.

    `forms` are the accepted orders, each a sequence of labels from slowest to fastest; `*` stands for every
    label not named, in any order. A name stands for itself and for all labels `name.…`.
    """

    kind: str
    reads: tuple[Dims, ...]
    writes: tuple[Dims, ...]
    forms: tuple[str, ...] = ("*",)
    blocks: frozenset[str] = frozenset()
    absorbed: frozenset[str] = frozenset()
    reason: str = ""  # why an operator is opaque

    @property
    def is_view(self) -> bool:
        return self.kind == "relabel" and not self.blocks

    def as_block(self, *labels: str) -> Relation:
        """The same relation with adjacent labels joined into one block (or one label made a block)."""
        joined = "+".join(labels)

        def join(dims: Dims) -> Dims:
            return tuple(
                tuple(_merge([(joined if name in labels else name, size) for name, size in dim]))
                for dim in dims
            )

        forms = tuple(
            " ".join(dict.fromkeys(joined if name in labels else name for name in form.split()))
            for form in self.forms
        )
        kept = {name for name in self.blocks | self.absorbed if name not in labels}
        return replace(
            self,
            reads=tuple(map(join, self.reads)),
            writes=tuple(map(join, self.writes)),
            forms=forms,
            blocks=frozenset(self.blocks & kept | {joined}),
            absorbed=frozenset(self.absorbed & kept),
        )


def _merge(labels: list[tuple[str, int]]) -> list[tuple[str, int]]:
    merged: list[tuple[str, int]] = []
    for name, size in labels:
        if merged and merged[-1][0] == name:
            merged[-1] = (name, merged[-1][1] * size)
        else:
            merged.append((name, size))
    return merged


def relate(node: torch.fx.Node) -> Relation:
    """The relation of a call, by the table; an operator that is not in it is opaque."""
    rule = RULES.get(node.target)
    if rule is None and is_pointwise(node):
        rule = _agnostic
    relation = rule(node) if rule else None
    return relation or opaque(node, "no rule knows this operator")


def opaque(node: torch.fx.Node, reason: str) -> Relation:
    """Row-major in, row-major out."""
    reads = [_all_of(f"x{i}", _shape(operand)) for i, operand in enumerate(operands(node))]
    writes = [_all_of(f"y{i}", tuple(value.shape)) for i, value in enumerate(results(node))]
    names = [name for dims in (*reads, *writes) for dim in dims for name, _ in dim]
    return Relation("opaque", tuple(reads), tuple(writes), blocks=frozenset(names), reason=reason)


def operands(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensor operands whose layout matters, in argument order. Weights of contractions are not among
    them."""
    found = [n for n in pytree.tree_leaves((_args(node), node.kwargs)) if isinstance(n, torch.fx.Node)]
    weights = _WEIGHTS.get(node.target)
    if weights is None:
        return found
    skipped = [_args(node)[i] for i in weights if i < len(_args(node))]
    if any(isinstance(w, torch.fx.Node) and w.op != "get_attr" for w in skipped):
        return found
    return [n for n in found if n not in skipped]


def results(node: torch.fx.Node) -> list[torch.Tensor]:
    value = node.meta["val"]
    return list(value) if isinstance(value, (list, tuple)) else [value]


# -- agnostic, expand


def _agnostic(node: torch.fx.Node) -> Relation:
    out = _shape(node)
    labels = [f"d.{i}" for i in range(len(out))]
    reads = []
    for operand in operands(node):
        shape = _shape(operand)
        tail = labels[len(out) - len(shape) :]
        reads.append(
            _dims(
                (name, size) if size == full else ("", 1)
                for name, size, full in zip(tail, shape, out[len(out) - len(shape) :], strict=True)
            )
        )
    return Relation("agnostic", tuple(reads), (_dims(zip(labels, out, strict=True)),))


def is_pointwise(node: torch.fx.Node) -> bool:
    """Whether an operator computes each element from the elements at the same place: by torch's tag, or by
    the list."""
    tagged = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return (tagged or node.target in _POINTWISE) and isinstance(node.meta["val"], torch.Tensor)


def _expand(node: torch.fx.Node) -> Relation:
    return replace(_agnostic(node), kind="expand")


# -- relabel


def _permute(node: torch.fx.Node) -> Relation:
    source, dims = _shape(_args(node)[0]), _args(node)[1]
    read = _dims((f"d.{i}", size) for i, size in enumerate(source))
    return Relation("relabel", (read,), (tuple(read[d] for d in dims),))


def _view(node: torch.fx.Node) -> Relation | None:
    """Pieces end wherever a dimension ends on either side; sides whose ends conflict in between share a
    block."""
    before, after = _shape(_args(node)[0]), _shape(node)
    if math.prod(before) == 0:
        return None
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
    """Pieces (name, low, high), innermost first, between the boundaries that divide all larger and are
    divided by all smaller."""
    ordered = sorted(boundaries)
    kept = [
        b
        for b in ordered
        if all(b % s == 0 for s in ordered if s < b) and all(large % b == 0 for large in ordered if large > b)
    ]
    return [(f"v.{i}", low, high) for i, (low, high) in enumerate(itertools.pairwise(kept))]


# -- reduce


def _reduce(node: torch.fx.Node) -> Relation | None:
    shape = _shape(_args(node)[0])
    if not shape:
        return None
    listed = _args(node)[1] if len(_args(node)) > 1 else None
    dims = range(len(shape)) if listed in (None, []) else [listed] if isinstance(listed, int) else listed
    reduced = {d % len(shape) for d in dims}
    keepdim = len(_args(node)) > 2 and bool(_args(node)[2])
    names = [f"r.{d}" if d in reduced else f"d.{d}" for d in range(len(shape))]
    read = _dims(zip(names, shape, strict=True))
    write = [dim if d not in reduced else () for d, dim in enumerate(read) if keepdim or d not in reduced]
    return Relation("reduce", (read,), (tuple(write),))


def _index_reduce(node: torch.fx.Node) -> Relation | None:
    """argmax and argmin: the result counts along the reduced dimension, so that is a block."""
    if len(_args(node)) < 2 or _args(node)[1] is None:
        return None
    relation = _reduce(node)
    return relation and replace(relation, kind="indexed", blocks=frozenset(_names(relation, "r.")))


def _last_dims(node: torch.fx.Node) -> Relation | None:
    """layer_norm: the normalised dimensions, shared, innermost."""
    if len(operands(node)) != 1:
        return None
    shape, count = _shape(_args(node)[0]), len(_args(node)[1])
    names = [f"d.{i}" if i < len(shape) - count else f"k.{i}" for i in range(len(shape))]
    dims = _dims(zip(names, shape, strict=True))
    return Relation("reduce", (dims,), (dims,), forms=("* k",))


def _along_dim(node: torch.fx.Node) -> Relation | None:
    """softmax, log_softmax: one dimension, shared."""
    shape = _shape(_args(node)[0])
    if not shape:
        return None
    k = _args(node)[1] % len(shape)
    dims = _dims((("k" if i == k else f"d.{i}"), size) for i, size in enumerate(shape))
    return Relation("reduce", (dims,), (dims,), forms=("* k",))


def _along_block(node: torch.fx.Node) -> Relation | None:
    """cumsum and its like: one dimension, walked in index order."""
    relation = _along_dim(node)
    return relation and replace(relation, kind="indexed", blocks=frozenset({"k"}))


# -- indexed


def _cat(node: torch.fx.Node) -> Relation:
    shapes = [_shape(operand) for operand in _args(node)[0]]
    dim = (_args(node)[1] if len(_args(node)) > 1 else 0) % len(shapes[0])
    inner = math.gcd(*(shape[dim] for shape in shapes))
    reads = [_with_cut(shape, {dim: inner}) for shape in shapes]
    return Relation(
        "indexed", tuple(reads), (_with_cut(_shape(node), {dim: inner}),), blocks=frozenset({f"cut.{dim}"})
    )


def _slice(node: torch.fx.Node) -> Relation:
    dim, start, end, step = _args(node)[1:5]
    shape, out = _shape(_args(node)[0]), _shape(node)
    if step != 1:
        return _strided_slice(shape, out, dim, start, step)
    inner = math.gcd(start, end - start, shape[dim])
    return Relation(
        "indexed",
        (_with_cut(shape, {dim: inner}),),
        (_with_cut(out, {dim: inner}),),
        blocks=frozenset({f"cut.{dim}"}),
    )


def _strided_slice(shape: tuple[int, ...], out: tuple[int, ...], dim: int, start: int, step: int) -> Relation:
    if shape[dim] % step or start >= step or out[dim] != shape[dim] // step:
        return Relation(
            "indexed",
            (_with_cut(shape, {dim: 1}),),
            (_with_cut(out, {dim: 1}),),
            blocks=frozenset({f"cut.{dim}"}),
        )
    read = list(_dims((f"d.{i}", size) for i, size in enumerate(shape)))
    read[dim] = ((f"d.{dim}", shape[dim] // step), ("step", step))
    write = _dims((f"d.{i}", size) for i, size in enumerate(out))
    return Relation("indexed", (tuple(read),), (write,), blocks=frozenset({"step"}))


def _pad(node: torch.fx.Node) -> Relation:
    shape, pads = _shape(_args(node)[0]), _args(node)[1]
    inner = {}
    for i in range(0, len(pads), 2):
        low, high = pads[i : i + 2]
        if low or high:
            dim = len(shape) - 1 - i // 2
            inner[dim] = math.gcd(shape[dim], low, high)
    blocks = frozenset(f"cut.{dim}" for dim in inner)
    return Relation("indexed", (_with_cut(shape, inner),), (_with_cut(_shape(node), inner),), blocks=blocks)


def _flip(node: torch.fx.Node) -> Relation:
    shape = _shape(_args(node)[0])
    flipped = {d % len(shape) for d in _args(node)[1]}
    dims = _with_cut(shape, dict.fromkeys(flipped, 1))
    return Relation("indexed", (dims,), (dims,), blocks=frozenset(f"cut.{d}" for d in flipped))


def _with_cut(shape: Sequence[int], inner: dict[int, int]) -> Dims:
    """Dims whose cut dimensions have an outer block `cut.D` and a shared piece `d.D` of the given size."""
    dims = []
    for d, size in enumerate(shape):
        pieces = [(f"cut.{d}", size // inner[d]), (f"d.{d}", inner[d])] if d in inner else [(f"d.{d}", size)]
        dims.append(tuple(piece for piece in pieces if piece[1] != 1))
    return tuple(dims)


# -- contraction


def _convolution(node: torch.fx.Node) -> Relation | None:
    x, weight, _, stride, padding, _, transposed, _, groups = _args(node)
    if len(operands(node)) != 1:
        return None
    source, out = _shape(x), _shape(node)
    spatial = [f"s.{i}" for i in range(len(source) - 2)]
    kernel = _shape(weight)[2:]
    pointwise = (
        not transposed and all(k == 1 for k in kernel) and all(s == 1 for s in stride) and not any(padding)
    )

    def dims(shape: tuple[int, ...]) -> Dims:
        channels = ((("g", groups),) if groups != 1 else ()) + (
            (("c", shape[1] // groups),) if shape[1] != groups else ()
        )
        n, *rest = _dims([("n", shape[0]), *zip(spatial, shape[2:], strict=True)])
        return (n, channels, *rest)

    return Relation(
        "contraction",
        (dims(source),),
        (dims(out),),
        forms=("n " + " ".join(spatial) + " g c",),
        blocks=frozenset() if pointwise else frozenset(spatial),
        absorbed=frozenset({"c"}),
    )


def _linear(node: torch.fx.Node) -> Relation | None:
    if len(operands(node)) != 1:
        return None
    reads, writes = (
        _dims([*((f"d.{i}", size) for i, size in enumerate(shape[:-1])), ("k", shape[-1])])
        for shape in (_shape(_args(node)[0]), _shape(node))
    )
    return Relation("contraction", (reads,), (writes,), forms=("* k",), absorbed=frozenset({"k"}))


def _matmul(node: torch.fx.Node) -> Relation | None:
    a, b, out = _shape(_args(node)[0]), _shape(_args(node)[1]), _shape(node)
    if not len(a) == len(b) == len(out) or len(out) < 2:
        return None
    batch = [f"b.{i}" for i in range(len(out) - 2)]

    def dims(shape: tuple[int, ...], *last: str) -> Dims:
        head = [
            (name, size if size == full else 1) for name, size, full in zip(batch, shape, out, strict=False)
        ]
        return _dims([*head, *zip(last, shape[-2:], strict=True)])

    return Relation(
        "contraction",
        (dims(a, "m", "k"), dims(b, "k", "n")),
        (dims(out, "m", "n"),),
        forms=("b m k n", "b m n k"),
    )


def _pool(node: torch.fx.Node) -> Relation | None:
    return _spatial(node, _POOL_RANK[node.target])


def _spatial(node: torch.fx.Node, rank: int) -> Relation | None:
    """Pooling, resizing: spatial dimensions in index order; everything before them shared."""
    source, out = _shape(_args(node)[0]), _shape(node)
    if len(source) != rank + 2:
        return None
    spatial = [f"s.{i}" for i in range(rank)]
    reads, writes = (
        _dims([("n", s[0]), ("c", s[1]), *zip(spatial, s[2:], strict=True)]) for s in (source, out)
    )
    return Relation(
        "indexed", (reads,), (writes,), forms=("n " + " ".join(spatial) + " c",), blocks=frozenset(spatial)
    )


def _resize(node: torch.fx.Node) -> Relation | None:
    return _spatial(node, len(_shape(node)) - 2)


# -- the table

_WEIGHTS: dict[Any, tuple[int, ...]] = {
    aten.convolution.default: (1, 2),
    aten.linear.default: (1, 2),
    aten.layer_norm.default: (2, 3),
}

# Pointwise operators that carry no such tag in torch 2.13.
_POINTWISE = frozenset(
    {
        aten._prelu_kernel.default,
        aten._to_copy.default,
        aten.floor_divide.default,
        aten.floor_divide.Scalar,
        aten.hardswish.default,
        aten.log_sigmoid.default,
        aten.masked_fill.Tensor,
        aten.rsub.Tensor,
    }
)

_POOL_RANK: dict[Any, int] = {
    aten.max_pool1d.default: 1,
    aten.max_pool2d.default: 2,
    aten.max_pool3d.default: 3,
    aten.avg_pool1d.default: 1,
    aten.avg_pool2d.default: 2,
    aten.avg_pool3d.default: 3,
    aten.adaptive_avg_pool1d.default: 1,
    aten.adaptive_avg_pool2d.default: 2,
    aten.adaptive_avg_pool3d.default: 3,
}

RULES: dict[Any, Callable[[torch.fx.Node], Relation | None]] = {
    aten.expand.default: _expand,
    aten.permute.default: _permute,
    aten.reshape.default: _view,
    **dict.fromkeys(
        (aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.amin.default, aten.prod.dim_int),
        _reduce,
    ),
    **dict.fromkeys((aten.argmax.default, aten.argmin.default), _index_reduce),
    aten.layer_norm.default: _last_dims,
    **dict.fromkeys(
        (aten.softmax.int, aten.log_softmax.int, aten._softmax.default, aten._log_softmax.default), _along_dim
    ),
    **dict.fromkeys((aten.cumsum.default, aten.cumprod.default), _along_block),
    aten.cat.default: _cat,
    aten.slice.Tensor: _slice,
    aten.constant_pad_nd.default: _pad,
    aten.flip.default: _flip,
    aten.convolution.default: _convolution,
    aten.linear.default: _linear,
    aten.matmul.default: _matmul,
    **dict.fromkeys(_POOL_RANK, _pool),
    **dict.fromkeys(
        (
            aten.upsample_bilinear2d.vec,
            aten.upsample_nearest2d.vec,
            aten.upsample_bilinear2d.default,
            aten.upsample_nearest2d.default,
        ),
        _resize,
    ),
}


def _dims(labels: Any) -> Dims:
    return tuple(((name, int(size)),) if size != 1 else () for name, size in labels)


def _all_of(name: str, shape: tuple[int, ...]) -> Dims:
    return _dims((name, size) for size in shape)


def _names(relation: Relation, prefix: str) -> set[str]:
    return {name for dims in relation.reads for dim in dims for name, _ in dim if name.startswith(prefix)}


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in node.meta["val"].shape)


def _args(node: torch.fx.Node) -> Any:
    """A node's arguments; torch types them as everything that an argument could be."""
    return node.args
