"""Say which element each operator must find and make where: one small function per treatment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dimorder.ops.dialect import OPS
from dimorder.ops.pointwise import relate_pointwise
from dimorder.ops.table import find

aten = torch.ops.aten

Layout = tuple[int, ...]
Shape = tuple[int, ...]


class Located:
    """One tensor at an operator: its shape, and in `memory` the number of the element at each position."""

    def __init__(self, shape: Shape, memory: Tensor) -> None:
        self.shape, self.memory, self.numel = shape, memory, memory.numel()

    @property
    def ids(self) -> Tensor:
        """The numbers in the tensor's logical shape."""
        return torch.arange(self.numel, dtype=torch.int32).reshape(self.shape)

    @property
    def positions(self) -> Tensor:
        """The position in memory of each number."""
        found = torch.empty_like(self.memory)
        found[self.memory.long()] = torch.arange(self.numel, dtype=torch.int32)
        return found

    def coordinate(self, dim: int) -> Tensor:
        """The index along one dimension of the element at each position."""
        return self.memory // math.prod(self.shape[dim + 1 :]) % self.shape[dim]


def shape_of(node: Any) -> Shape:
    return tuple(int(size) for size in node.meta["val"].shape)


def _arguments(call: torch.fx.Node, *defaults: Any) -> list[Any]:
    """The arguments after the first, defaults filled in."""
    given = call.args[1 : len(defaults) + 1]
    return [*given, *defaults[len(given) :]]


Rule = Callable[[torch.fx.Node, list[Located], list[Located]], Iterator[str]]


def row_major(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    for place in (*reads, *writes):
        if not torch.equal(place.memory, place.ids.reshape(-1)):
            yield f"opaque: a tensor of shape {place.shape} is not row-major"


def relabel(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    (before,), (after,) = reads, writes
    moved = call.target(before.ids, *call.args[1:]).reshape(-1)
    if not torch.equal(moved[after.memory.long()], before.memory):
        yield "relabel: memory read through the result's axes is not what ATen gives"


def _pointwise(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    """Every operand in the order of the result, less the dimensions along which it broadcasts."""
    (out,) = writes
    for number, place in enumerate(reads):
        shape = (1,) * (len(out.shape) - len(place.shape)) + place.shape
        broadcast = [d for d, size in enumerate(shape) if size != out.shape[d]]
        wanted = place.ids.reshape(shape).expand(out.shape).reshape(-1)
        if not torch.equal(wanted[_first_along(out, broadcast)], place.memory):
            yield f"agnostic: operand {number} does not lie as the result does"


def _first_along(place: Located, dims: Sequence[int]) -> Tensor:
    """In the order of memory, the elements whose index is 0 along some dimensions."""
    found = place.memory
    for d in dims:
        inner = math.prod(place.shape[d + 1 :])
        found = found[found // inner % place.shape[d] == 0]
    return found.long()


def _reduce(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    (x,), (out,) = reads, writes
    listed, _ = _arguments(call, None, False)
    rank = len(x.shape)
    every = listed is None or listed == []
    dims = range(rank) if every else [listed] if isinstance(listed, int) else listed
    reduced = sorted({d % rank for d in dims})
    kept = [1 if d in reduced else size for d, size in enumerate(x.shape)]
    target = out.ids.reshape(kept).expand(x.shape).reshape(-1)
    if not torch.equal(target[_first_along(x, reduced)], out.memory):
        yield "reduce: the result does not lie as the operand less its reduced dimensions"


def _index_reduce(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    yield from _reduce(call, reads, writes)
    yield from _in_order(reads[0], call.args[1])  # type: ignore[arg-type]


def _same(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    (x,), (out,) = reads, writes
    if not torch.equal(x.memory, out.memory):
        yield "reduce: the result does not lie as the operand"


def _cumulative(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    yield from _same(call, reads, writes)
    yield from _in_order(reads[0], call.args[1])  # type: ignore[arg-type]


def _in_order(place: Located, dim: int) -> Iterator[str]:
    """A dimension that is walked: one physical dimension, in index order."""
    if not place.shape:
        return
    dim %= len(place.shape)
    size, index = place.shape[dim], place.coordinate(dim)
    if size == 1:
        return
    run = int((index != 0).int().argmax())
    walked = torch.arange(place.numel, dtype=torch.int32) // max(run, 1) % size
    if run == 0 or not torch.equal(index, walked):
        yield f"indexed: dimension {dim} is not one physical dimension in index order"


def _cat(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    """The result is its operands side by side, in rows as long as the first operand's."""
    (out,) = writes
    members: list[Located | Shape] = []
    dynamic = iter(reads)
    for node in call.args[0]:  # type: ignore[union-attr]
        members.append(shape_of(node) if node.op == "get_attr" else next(dynamic))
    sizes = [m.numel if isinstance(m, Located) else math.prod(m) for m in members]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    shapes = [m.shape if isinstance(m, Located) else m for m in members]
    numbered = [
        torch.arange(start, start + size, dtype=torch.int32).reshape(shape)
        for start, size, shape in zip(starts, sizes, shapes, strict=True)
    ]
    dim = call.args[1] if len(call.args) > 1 else 0
    source = torch.cat(numbered, dim).reshape(-1)[out.memory.long()]  # type: ignore[arg-type]
    beyond = source >= sizes[0]
    row = int(beyond.int().argmax())
    if row == 0 or sizes[0] % row or any(size % (sizes[0] // row) for size in sizes):
        yield "indexed: the result does not start with a row of its first operand"
        return
    rows = sizes[0] // row
    column = 0
    for number, (member, start, size) in enumerate(zip(members, starts, sizes, strict=True)):
        width = size // rows
        part = source.reshape(rows, -1)[:, column : column + width].reshape(-1) - start
        column += width
        inside = bool((part >= 0).all() and (part < size).all())
        if not inside or (isinstance(member, Located) and not torch.equal(part, member.memory)):
            yield f"indexed: operand {number} is not a column of the result"


def _slice(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    """Some rows of one physical dimension: `memory.reshape(outer, -1, inner)[:, begin:end:step]`."""
    (x,), (out,) = reads, writes
    dim, start, end, step = _arguments(call, 0, None, None, 1)
    sliced = aten.slice.Tensor(x.ids, dim, start, end, step).reshape(-1)
    found = x.positions[sliced[out.memory.long()].long()]
    levels = _levels(found)
    if levels is not None:
        inners = {1, *(count for count, stride in levels[:1] if stride == 1)}
        outers = {1, *(count for count, _ in levels[-1:])}
        tried = ((o, i, s) for o in outers for i in inners for s in {1, step})
        if any(_is_range(found, x.numel, *form) for form in tried):
            return
    yield "indexed: the result is not a slice of one physical dimension"


def _slice_constant(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    """A constant lies as the call wants it; what is sliced again does not."""
    if reads:
        yield from _slice(call, reads, writes)


def _is_range(found: Tensor, total: int, outer: int, inner: int, step: int) -> bool:
    if total % (outer * inner) or found.numel() % (outer * inner):
        return False
    grid = torch.arange(total, dtype=torch.int32).reshape(outer, -1, inner)
    length = found.numel() // (outer * inner)
    begin = int(found[0]) // inner
    rows = grid[:, begin : begin + (length - 1) * step + 1 : step]
    return torch.equal(rows.reshape(-1), found)


def _pad(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    """Check that kept elements have the same order on both sides, and are a box of dimensions in each."""
    (x,), (out,) = reads, writes
    pads: Any = call.args[1]
    filled = aten.constant_pad_nd.default(x.ids + 1, pads).reshape(-1)[out.memory.long()] - 1
    inside = filled >= 0
    before, after = x.positions[filled[inside].long()], inside.nonzero().reshape(-1)
    padded = sum(any(pads[i : i + 2]) for i in range(0, len(pads), 2))
    if not (_is_box(before, padded, x.numel) and _is_box(after, padded, out.numel)):
        yield "indexed: what is padded is not a box of physical dimensions"


def _levels(positions: Tensor) -> list[tuple[int, int]] | None:
    """Positions as nested progressions, innermost first: (count, stride). None if they are not."""
    levels = []
    while positions.numel() > 1:
        stride = int(positions[1] - positions[0])
        breaks = (positions.diff() != stride).nonzero()
        count = int(breaks[0]) + 1 if len(breaks) else positions.numel()
        if stride <= 0 or positions.numel() % count:
            return None
        rows = positions.reshape(-1, count)
        if not bool((rows.diff(dim=1) == stride).all()):
            return None
        positions = rows[:, 0]
        levels.append((count, stride))
    return levels


def _is_box(positions: Tensor, cuts: int, total: int) -> bool:
    """Whether positions are a box of a dense tensor of `total` elements, cut in up to `cuts` dimensions."""
    levels = _levels(positions)
    if levels is None or not positions.numel():
        return levels is not None
    first = int(positions[0])
    levels = levels if levels and levels[0][1] == 1 else [(1, 1), *levels]
    ends = [stride for _, stride in levels[1:]] + [total]
    cut = 0
    for (count, stride), end in zip(levels, ends, strict=True):
        size = end // stride
        if end % stride or first // stride % size + count > size:
            return False
        cut += count < size
    return cut <= cuts


def _flip(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    if not torch.equal(reads[0].memory, writes[0].memory):
        yield "indexed: the result does not lie as the operand"
    for dim in call.args[1]:  # type: ignore[union-attr]
        yield from _in_order(reads[0], dim)


def _linear(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    """Features innermost or outermost, in any order; rows alike in operand and result."""
    rows = []
    for place in (*reads, *writes):
        size = place.shape[-1]
        innermost = place.memory.reshape(-1, size)
        outermost = place.memory.reshape(size, -1).T
        parts = [_outer_sum(m, size) for m in (innermost, outermost)]
        rows.append([None if part is None else part[0] for part in parts])
    if not any(a is not None and b is not None and torch.equal(a, b) for a, b in zip(*rows, strict=True)):
        yield "contraction: features are not absorbed, or rows lie otherwise in operand and result"


def _outer_sum(numbers: Tensor, size: int) -> tuple[Tensor, Tensor] | None:
    """A matrix of numbers as (number of its row) × size + (number of its column); None if it is not."""
    rows, columns = numbers[:, 0] // size, numbers[0] % size
    return (rows, columns) if torch.equal(rows[:, None] * size + columns, numbers) else None


def _matmul(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    """Batch, then the two last dimensions either way round; each dimension alike wherever it occurs."""
    dynamic = iter(reads)
    tensors = [next(dynamic) if n.op != "get_attr" else None for n in call.args[:2]]  # type: ignore[union-attr]
    orders: list[tuple[Tensor, Tensor, Tensor] | None] = []
    for place in (*tensors, writes[0]):
        orders.append(_batched(place) if place is not None else None)
        if place is not None and orders[-1] is None:
            yield "contraction: a matrix is not two physical dimensions behind its batch"
            return
    a, b, out = orders
    assert out is not None
    shared = [(a, 1, out, 1, "m"), (a, 2, b, 1, "k"), (b, 2, out, 2, "n")]
    for first, i, second, j, name in shared:
        if first is not None and second is not None and not torch.equal(first[i], second[j]):
            yield f"contraction: {name} lies in two orders"
    batch = writes[0].shape[:-2]
    for place, order in zip(tensors, (a, b), strict=True):
        if place is None or order is None:
            continue
        whole, part = Located(batch, out[0]), Located(place.shape[:-2], order[0])
        if list(_pointwise(call, [part], [whole])):
            yield "contraction: a batch does not lie as the result's"


def _attention(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    """Rows, heads inside them, features innermost; each dimension alike wherever it occurs."""
    names = ["bmhe", "bnhe", "bnhf", *(["bhmn"] if call.args[3] is not None else [])]
    tensors = [label for n, label in zip(call.args, names, strict=False) if n.op != "get_attr"]  # type: ignore[union-attr]
    known: dict[str, Tensor] = {}
    for place, label in zip([*reads, *writes], [*tensors, "bmhf"], strict=True):
        dims = [0, 1, 2, 3] if label == "bhmn" else [0, 2, 1, 3]
        own = Located((1,) * (4 - len(place.shape)) + place.shape, place.memory)
        sizes = [own.shape[dim] for dim in dims]
        for axis, (name, dim) in enumerate(zip(label, dims, strict=True)):
            rows = own.coordinate(dim).reshape(sizes).movedim(axis, 0).reshape(sizes[axis], -1)
            if not torch.equal(rows, rows[:, :1].expand_as(rows)):
                yield f"attention: {name} is no physical dimension of its own"
            elif sizes[axis] > 1 and not torch.equal(known.setdefault(name, rows[:, 0]), rows[:, 0]):
                yield f"attention: {name} lies in two orders"


def _batched(place: Located) -> tuple[Tensor, Tensor, Tensor] | None:
    """The order of the batch, of the rows and of the columns of stacked matrices."""
    rows, columns = place.shape[-2:]
    for straight in (True, False):
        sizes = (rows, columns) if straight else (columns, rows)
        stacked = place.memory.reshape(-1, *sizes)
        stacked = stacked if straight else stacked.transpose(1, 2)
        batch = stacked[:, 0, 0] // (rows * columns)
        row, column = stacked[0, :, 0] // columns % rows, stacked[0, 0] % columns
        if torch.equal((batch[:, None, None] * rows + row[:, None]) * columns + column, stacked):
            return batch, row, column
    return None


def _convolution(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    """Batch, space in index order (for one tap in any, the same), channels; groups alike on both sides, their
    channels as they like."""
    pixels = _pixels(reads[0]) if _has_one_tap(call) else None
    orders = [_channels_last(place, pixels) for place in (*reads, *writes)]
    if None in orders:
        yield "contraction: not batch, space, channels"
        return
    groups: Any = call.args[8]
    (batch_in, source), (batch_out, result) = orders  # type: ignore[misc]
    if not torch.equal(batch_in, batch_out):
        yield "contraction: the batch lies in two orders"
    found = []
    for channels in (source, result):
        per_group = channels.numel() // groups
        parts = _outer_sum(channels.reshape(groups, per_group), per_group)
        if parts is None:
            yield "contraction: the channels of a group do not lie together, or each group's otherwise"
            return
        found.append(parts[0])
    if not torch.equal(*found):
        yield "contraction: groups lie in two orders"


def _spatial(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    """Batch, space in index order, channels; batch and channels alike in operand and result."""
    orders = [_channels_last(place) for place in (*reads, *writes)]
    if None in orders:
        yield "indexed: not batch, space, channels"
    elif not all(torch.equal(a, b) for a, b in zip(*orders, strict=True)):
        yield "indexed: batch or channels lie in two orders"


def _windowed(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    """Space in index order, wherever it lies; what both have of each dimension lies alike in both."""
    (x,), (out,) = reads, writes
    for place in (x, out):
        for dim in range(2, len(place.shape)):
            yield from _in_order(place, dim)
    corner = tuple(map(min, x.shape, out.shape))
    if not torch.equal(_corner(x, corner), _corner(out, corner)):
        yield "indexed: the result does not lie as the operand"


def _corner(place: Located, sizes: Shape) -> Tensor:
    """In the order of memory, the elements of a corner of these sizes, numbered anew."""
    along = [place.coordinate(dim) for dim in range(len(sizes))]
    number = torch.zeros_like(place.memory)
    for index, size in zip(along, sizes, strict=True):
        number = number * size + index
    inside = torch.stack([index < size for index, size in zip(along, sizes, strict=True)]).all(0)
    return number[inside]


def _has_one_tap(call: torch.fx.Node) -> bool:
    weight = call.args[1].meta["val"]  # type: ignore[union-attr]
    stride, added = set(call.args[3]), {*call.args[4], *call.args[7]}  # type: ignore[arg-type,misc]
    return math.prod(weight.shape[2:]) == 1 and stride == {1} and added == {0}


def _pixels(place: Located) -> Tensor:
    """The order of the pixels, where memory is batch, space, channels."""
    count, channels, *space = place.shape
    return place.memory.reshape(count, math.prod(space), channels)[0, :, 0] % math.prod(space)


def _channels_last(place: Located, pixels: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
    """The orders of batch and channels, where memory is batch, space in index order or that of `pixels`,
    channels."""
    count, channels, *space = place.shape
    area = math.prod(space)
    numbers = place.memory.reshape(count, area, channels)
    batch, channel = numbers[:, 0, 0] // (channels * area), numbers[0, 0] // area % channels
    index = torch.arange(area, dtype=torch.int32) if pixels is None else pixels
    wanted = (batch[:, None, None] * channels + channel) * area + index[:, None]
    return (batch, channel) if torch.equal(wanted, numbers) else None


_RULES: dict[Any, Rule] = {
    aten.reshape.default: relabel,
    aten.permute.default: relabel,
    aten.expand.default: _pointwise,
    **dict.fromkeys(
        (
            aten.mean.dim,
            aten.sum.dim_IntList,
            aten.amax.default,
            aten.amin.default,
            aten.any.dims,
            aten.all.dims,
            aten.prod.dim_int,
        ),
        _reduce,
    ),
    **dict.fromkeys((aten.argmax.default, aten.argmin.default), _index_reduce),
    **dict.fromkeys((aten.softmax.int, aten.log_softmax.int, aten.layer_norm.default), _same),
    OPS.fake_quantize_dynamic.default: _same,
    OPS.slice_constant.default: _slice_constant,
    **dict.fromkeys((aten.cumsum.default, aten.cumprod.default), _cumulative),
    aten.cat.default: _cat,
    aten.slice.Tensor: _slice,
    aten.constant_pad_nd.default: _pad,
    aten.flip.default: _flip,
    aten.linear.default: _linear,
    aten.matmul.default: _matmul,
    aten.scaled_dot_product_attention.default: _attention,
    aten.convolution.default: _convolution,
    **dict.fromkeys(
        (
            aten.max_pool2d.default,
            aten.avg_pool2d.default,
            aten.upsample_bilinear2d.vec,
            aten.upsample_nearest2d.vec,
            aten.max_pool3d.default,
            aten.avg_pool3d.default,
            aten.upsample_trilinear3d.vec,
            aten.upsample_nearest3d.vec,
        ),
        _spatial,
    ),
    **dict.fromkeys(
        (
            aten.adaptive_avg_pool2d.default,
            aten.adaptive_avg_pool3d.default,
            aten.upsample_bicubic2d.vec,
            aten._upsample_bilinear2d_aa.vec,
            aten._upsample_bicubic2d_aa.vec,
        ),
        _windowed,
    ),
}


KNOWN = frozenset(_RULES)


def rule_of(call: torch.fx.Node) -> Rule:
    if call.target in _RULES:
        return _RULES[call.target]
    known = find(call.target)
    return _pointwise if known and known.relate is relate_pointwise else _unknown


def _unknown(call: torch.fx.Node, reads: list[Located], writes: list[Located]) -> Iterator[str]:
    yield f"{call.target}: this checker knows no rule for it"
