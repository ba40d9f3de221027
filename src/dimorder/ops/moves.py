"""Define views, permutes and copies, which leave memory as it is, and expand."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence

import torch

from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import args_of
from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.call import Call
from dimorder.ops.operator import Implementation, Operator, in_torchs_parts, spelling
from dimorder.ops.relation import Dims, Relation, Token, broadcast_dims

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


def expand(n: Tracer, x: Value, shape: Sequence[int], implicit: bool = False) -> Value:
    old = (1,) * (len(shape) - len(shape_of(x))) + shape_of(x)
    sizes = [before if size == -1 else int(size) for before, size in zip(old, shape, strict=True)]
    x = view(n, x, old)
    return x if tuple(sizes) == old else n.emit(aten.expand.default, x, sizes)


def _places(
    n: Tracer, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> torch.Tensor:
    """Return the place in x, row-major, of each element that strides select in its memory."""
    memory = n.node.args[0].meta["val"]
    first = memory.storage_offset()
    own = _addresses(memory.shape, memory.stride(), first)
    selected = _addresses(size, stride, first if offset is None else offset)
    places = torch.full((1 + int(torch.cat([own, selected]).amax()),), -1)
    places[own] = torch.arange(len(own))
    if len(own) == math.prod(shape_of(x)) == len(own.unique()) and (places[selected] >= 0).all():
        return places[selected]
    raise UnsupportedError(
        "aten.as_strided",
        f"sizes {list(size)}, strides {list(stride)} read memory directly",
        "write it as view, permute or slice",
    )


def _addresses(size: Sequence[int], stride: Sequence[int], first: int) -> torch.Tensor:
    """Return the address in memory of each element of a tensor, row-major."""
    addresses = torch.tensor([first])
    for extent, step in zip(size, stride, strict=True):
        addresses = (addresses[:, None] + torch.arange(extent) * step).reshape(-1)
    return addresses


def _as_strided(
    n: Tracer, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Value:
    places = _places(n, x, size, stride, offset)
    if torch.equal(places, torch.arange(math.prod(shape_of(x)))):
        return view(n, x, size)
    return view(n, n.write(aten.index_select.default, view(n, x, [-1]), 0, places), size)


def _as_strided_scatter(
    n: Tracer,
    x: Value,
    source: Value,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> Value:
    places = _places(n, x, size, stride, offset)
    written = n.write(aten.index_put.default, view(n, x, [-1]), [places], view(n, source, [-1]))
    return view(n, written, shape_of(x))


def _filled_like(fill: float) -> Callable[..., Value]:
    """Return the spelling of a tensor of one number, in the shape of another tensor or in a given one."""

    def rewrite(n: Tracer, x: Value, size: Sequence[int] | None = None, **options: Value) -> Value:
        shape = shape_of(x) if size is None else size
        return torch.full(list(shape), fill, dtype=options.get("dtype") or dtype_of(x))

    return rewrite


# -- which axes they keep


def _relate_permute(node: torch.fx.Node) -> Relation:
    source, dims = shape_of(args_of(node)[0]), args_of(node)[1]
    read = broadcast_dims(source, source)
    return Relation("relabel", (read,), (tuple(read[d] for d in dims),))


def _relate_view(node: torch.fx.Node) -> Relation | str:
    """Relate a view by the pieces between ends of dimensions; ends that conflict make blocks."""
    before, after = shape_of(args_of(node)[0]), shape_of(node)
    if math.prod(before) == 0:
        return "a shape without elements"
    cuts = _chain({*_suffix_products(before), *_suffix_products(after)})
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


def _suffix_products(shape: Sequence[int]) -> Iterable[int]:
    return itertools.accumulate(reversed(shape), operator.mul, initial=1)


def _chain(boundaries: set[int]) -> list[tuple[str, int, int]]:
    """Return the pieces (name, low, high) between boundaries that divide all larger ones, innermost first."""
    kept = [b for b in sorted(boundaries) if all(max(b, other) % min(b, other) == 0 for other in boundaries)]
    return [(f"v.{i}", low, high) for i, (low, high) in enumerate(itertools.pairwise(kept))]


def _relate_expand(node: torch.fx.Node) -> Relation:
    out, source = shape_of(node), shape_of(args_of(node)[0])
    return Relation("expand", (broadcast_dims(source, out),), (broadcast_dims(out, out),))


# -- on physical tensors


def _relabel(c: Call) -> None:
    """Lower a view with blocks to the same memory; a reader derives its dimensions."""
    c.b.store(c.site.writes[0].buffer, c.orders[c.result], c.dynamic[0].node, None)


def _lower_expand(c: Call) -> None:
    groups = c.split()
    if any(len({c.has(token, 0) for token in group}) > 1 for group in groups):
        groups = [[token] for token in c.arrangement.tokens]
    elif any(len({label for label, _ in group}) > 1 and not c.has(group[0], 0) for group in groups):
        apart = _by_dimension(c)  # a view could split no dimension of two dynamic sizes
        groups = apart if len(apart) <= len(shape_of(c.node)) else groups
    shape = [c.size(c.result, group) for group in groups]
    c.give(c.b.dense(c.b.call(aten.expand.default, c.take(0, groups), shape)), groups)


def _by_dimension(c: Call) -> list[list[Token]]:
    """Return one group for each dimension of the result, those of size 1 first."""
    labels = itertools.groupby(c.arrangement.tokens, key=lambda token: token[0])
    return [[]] * shape_of(c.node).count(1) + [list(tokens) for _, tokens in labels]


_FREE = (Implementation("same memory", "*", _relabel, ()),)

OPERATORS = (
    Operator((aten.reshape.default,), _relate_view, _FREE, spelling=view),
    Operator((aten.permute.default,), _relate_permute, _FREE, spelling=permute),
    Operator(
        (aten.expand.default,),
        _relate_expand,
        (Implementation("repeated", "*", _lower_expand, (aten.expand.default,)),),
        spelling=expand,
    ),
    spelling(
        _same,
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
        aten.detach_.default,
        aten.contiguous.default,
        aten.lift_fresh_copy.default,
    ),
    spelling(_dropout, aten.dropout.default),
    spelling(view, aten.view.default, aten._unsafe_view.default),
    spelling(transpose, aten.transpose.int, aten.swapaxes.default, aten.swapdims.default),
    spelling(lambda n, x: transpose(n, x, -2, -1), aten.mT.default),
    spelling(expand, aten.broadcast_to.default),
    spelling(lambda n, x: transpose(n, x, 0, -1), aten.t.default),
    spelling(unsqueeze, aten.unsqueeze.default),
    spelling(squeeze, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
    spelling(_flatten, aten.flatten.using_ints),
    in_torchs_parts(aten.unflatten.int),
    spelling(_as_strided, aten.as_strided.default),
    spelling(_as_strided_scatter, aten.as_strided_scatter.default),
    spelling(_filled_like(0), aten.new_zeros.default, aten.zeros_like.default),
    spelling(_filled_like(1), aten.new_ones.default, aten.ones_like.default),
    spelling(lambda n, x, fill, **given: _filled_like(fill)(n, x, **given), aten.full_like.default),
)
