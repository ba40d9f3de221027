"""Define operators that read or write elements by indices, and pads of a tensor's own elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from dimorder.graph.elements import Elements
from dimorder.graph.quantized import are_equal
from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.moves import unsqueeze, view
from dimorder.ops.operator import Operator, filled, spelling
from dimorder.ops.rearranging import around
from dimorder.ops.row_major import row_major

aten = torch.ops.aten

# Indices that need more pieces stay one operator: this bounds the growth of the graph.
MAX_PIECES = 16
# At most this many elements that are not neighbours are cut one by one. More elements become a strided slice,
# a flip or an expand.
MAX_SINGLES = 4


def take(n: Tracer, x: Value, dim: int, indices: Sequence[int]) -> Value | None:
    """Write the elements of `x` at these indices of a dimension as slices; None if they are too irregular."""
    dim = dim % len(shape_of(x))
    runs = _runs(indices)
    if not 0 < len(runs) <= MAX_PIECES:
        return None
    pieces = {run: _piece(n, x, dim, *run) for run in dict.fromkeys(runs)}
    return n.write(aten.cat.default, [pieces[run] for run in runs], dim)


def _runs(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Split indices into arithmetic sequences (first, step, count), and keep ascending neighbours together.

    The indices 0 to 4 with a reflected padding of two, for example, are (2) (1) (0 to 4) (3) (2).
    """
    runs: list[tuple[int, int, int]] = []
    i = 0
    while i < len(indices):
        step = indices[i + 1] - indices[i] if i + 1 < len(indices) else 1
        end = i + 1
        while end < len(indices) and indices[end] - indices[end - 1] == step:
            end += 1
        if step != 1 and end < len(indices) and indices[end] == indices[end - 1] + 1:
            end -= 1  # this index begins the next sequence
        if step != 1 and end - i <= MAX_SINGLES:
            runs += [(index, 1, 1) for index in indices[i:end]]
        else:
            runs.append((indices[i], step, end - i))
        i = end
    return runs


def _piece(n: Tracer, x: Value, dim: int, first: int, step: int, count: int) -> Value:
    last = first + (count - 1) * step
    low, high = min(first, last), max(first, last)
    piece = n.write(aten.slice.Tensor, x, dim, low, high + 1, abs(step) or 1)
    if step == 0:
        before, _, after = around(x, dim)
        return n.write(aten.expand.default, piece, [*before, count, *after])
    return n.write(aten.flip.default, piece, [dim]) if step < 0 else piece


def _is_constant_index(index: Value) -> bool:
    """Return whether an index is a constant, and no mask: an export of a mask has no shape."""
    return isinstance(index, torch.Tensor) and index.dtype not in (torch.bool, torch.uint8)


def _index_select(n: Tracer, x: Value, dim: int, index: Value) -> Value:
    found = None
    if shape_of(x) and _is_constant_index(index):
        found = take(n, x, dim, [i % shape_of(x)[dim] for i in index.flatten().tolist()])
    return n.emit(aten.index_select.default, x, dim, index) if found is None else found


def _index(n: Tracer, x: Value, indices: Sequence[Value]) -> Value:
    """Write an index by constants as slices.

    Each constant indexes its own dimension, and varies along its own dimensions of the result.
    """
    given = {dim: index for dim, index in enumerate(indices) if index is not None}
    along = _own_dims(list(given.values()))
    found: Value | None = None if along is None else x
    for dim, index in given.items():
        if found is not None:
            found = take(n, found, dim, [i % shape_of(x)[dim] for i in index.flatten().tolist()])
    if found is None or along is None:
        return n.emit(aten.index.Tensor, x, _without_last_nones(indices))
    cut = dict(zip(given, along, strict=True))
    shape = torch.broadcast_shapes(*(index.shape for index in given.values()))
    pieces = [
        p
        for dim in range(len(shape_of(x)))
        for p in ([(0, d) for d in cut[dim]] if dim in cut else [(1, dim)])
    ]
    sizes = [shape[d] if kind == 0 else shape_of(x)[d] for kind, d in pieces]
    adjacent = max(given) - min(given) + 1 == len(given)
    front = [(1, dim) for dim in range(min(given) if adjacent else 0) if dim not in given]
    behind = [piece for piece in pieces if piece[0] == 1 and piece not in front]
    order = [*front, *sorted(piece for piece in pieces if piece[0] == 0), *behind]
    moved = n.write(aten.permute.default, view(n, found, sizes), [pieces.index(piece) for piece in order])
    before, after = ([shape_of(x)[dim] for _, dim in part] for part in (front, behind))
    return view(n, moved, [*before, *shape, *after])


def _own_dims(indices: Sequence[Value]) -> list[list[int]] | None:
    """Return along which dimensions of their common shape constants vary, or None if two share one."""
    if not all(map(_is_constant_index, indices)):
        return None
    rank = max(index.dim() for index in indices)
    along = [[d + rank - i.dim() for d, size in enumerate(i.shape) if size != 1] for i in indices]
    listed = [d for dims in along for d in dims]
    return along if len(set(listed)) == len(listed) else None


def _index_put(
    n: Tracer, x: Value, indices: Sequence[Value], values: Value, accumulate: bool = False
) -> Value:
    return n.emit(aten.index_put.default, x, _without_last_nones(indices), values, accumulate)


def _without_last_nones(indices: Sequence[Value]) -> list[Value]:
    """Drop the Nones after the last index: these dimensions need none."""
    given = list(indices)
    while given and given[-1] is None:
        given.pop()
    return given


def _gather(n: Tracer, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """Write a gather as slices if it takes the same indices everywhere, and the first elements elsewhere."""
    if isinstance(index, torch.Tensor) and index.dim() and index.numel():
        dim = dim % index.dim()
        row = index.movedim(dim, -1).flatten(0, -2)[0] if index.dim() > 1 else index
        along = row.reshape([-1 if d == dim else 1 for d in range(index.dim())])
        if torch.equal(along.expand_as(index), index):
            found = take(n, x, dim, row.tolist())
            if found is not None:
                for d, size in enumerate(index.shape):
                    found = n.write(aten.slice.Tensor, found, d, 0, size)
                return found
    repeated = _repeated_row(x, dim) if len(shape_of(index)) > 1 else None
    if repeated is not None:
        if bool((repeated == repeated[0]).all()):
            return repeated[0].expand(shape_of(index)).contiguous()
        return view(n, n.write(aten.embedding.default, repeated.unsqueeze(1), index), shape_of(index))
    return n.emit(aten.gather.default, x, dim, index)


def _repeated_row(x: Value, dim: int) -> torch.Tensor | None:
    """Return the elements of a constant along a dimension, if they are the same all over the others."""
    if not isinstance(x, torch.Tensor) or not x.numel():
        return None
    rows = x.movedim(dim, -1)
    row = rows.flatten(0, -2)[0]
    return row if are_equal(row.expand(rows.shape), rows) else None


def _embedding(n: Tracer, weight: Value, indices: Value, *options: Any) -> Value:
    if isinstance(weight, Node) and isinstance(indices, torch.Tensor):
        found = take(n, weight, 0, indices.flatten().tolist())
        if found is not None:
            return view(n, found, [*indices.shape, shape_of(weight)[1]])
    return n.emit(aten.embedding.default, weight, indices, *options)


_SUM, _MEAN, _MAX = range(3)  # modes of an embedding bag


def _embedding_bag(n: Tracer, weight: Value, indices: Value, offsets: Value, *given: Value) -> Value:
    """Write the rows of every bag as a matmul with a matrix that says which index is in which bag."""
    _, mode, sparse, scales, with_end, padding = filled(given, (False, _SUM, False, None, False, None))
    if any(user.args[1] > 0 and user.users for user in n.node.users):
        options = (mode, sparse, scales, with_end, -1 if padding is None else padding)
        return n.emit(aten._embedding_bag_forward_only.default, weight, indices, offsets, False, *options)
    count, bags = shape_of(indices)[0], shape_of(offsets)[0] - with_end
    if not count:
        return [torch.zeros(bags, shape_of(weight)[1], dtype=dtype_of(weight)), None, None, None]
    # If the end is not the last index, torch stops there only in sums. A mean also counts the indices after
    # it.
    inside = members = _bags(n, offsets, count, bags, with_end=False)
    padded = -1 if padding is None else padding
    if with_end and mode != _MAX and padded == -1:
        inside = _bags(n, offsets, count, bags, with_end)
    if padded != -1:
        others = n.write(aten.ne.Scalar, indices, padded % shape_of(weight)[0])
        inside = members = n.write(aten.logical_and.default, inside, view(n, others, [1, count]))
    rows = n.write(aten.embedding.default, weight, indices)
    if scales is not None:
        rows = n.write(aten.mul.Tensor, rows, view(n, scales, [count, 1]))
    finite = scales is None and isinstance(weight, torch.Tensor) and bool(weight.isfinite().all())
    share = n.write(aten._to_copy.default, inside, dtype=dtype_of(weight))
    if mode != _MAX and finite:
        bag = n.write(aten.matmul.default, share, rows)
    else:  # a matmul with 0 would turn an infinity into NaN
        fill = torch.tensor(-math.inf if mode == _MAX else 0.0, dtype=dtype_of(weight))
        each = n.write(aten.where.self, view(n, inside, [bags, count, 1]), unsqueeze(n, rows, 0), fill)
        bag = n.write(aten.amax.default if mode == _MAX else aten.sum.dim_IntList, each, [1], False)
    if mode == _MEAN:
        listed = n.write(aten._to_copy.default, members, dtype=dtype_of(weight))
        number = n.write(aten.sum.dim_IntList, listed, [1], True)
        bag = n.write(aten.div.Tensor, bag, n.write(aten.clamp_min.default, number, 1.0))
    if mode == _MAX:
        some = n.write(aten.any.dims, inside, [1], True)
        bag = n.write(aten.where.self, some, bag, torch.zeros((), dtype=dtype_of(weight)))
    return [bag, None, None, None]


def _bags(n: Tracer, offsets: Value, count: int, bags: int, with_end: bool) -> Value:
    """Return which of `count` positions (dimension 1) each bag (dimension 0) has."""
    positions = torch.arange(count).reshape(1, count)
    starts = n.write(aten.slice.Tensor, offsets, 0, 0, bags)
    ends = n.write(aten.slice.Tensor, offsets, 0, 1, bags + with_end)
    if not with_end:
        last = torch.tensor([count], dtype=dtype_of(offsets))
        ends = n.write(aten.cat.default, [ends, last], 0)
    begun = n.write(aten.le.Tensor, view(n, starts, [bags, 1]), positions)
    open_ = n.write(aten.gt.Tensor, view(n, ends, [bags, 1]), positions)
    return n.write(aten.logical_and.default, begun, open_)


# -- padding with elements of the tensor itself


def _mirrored(size: int, low: int, high: int) -> list[int]:
    return [*range(low, 0, -1), *range(size), *range(size - 2, size - 2 - high, -1)]


def _edged(size: int, low: int, high: int) -> list[int]:
    return [0] * low + list(range(size)) + [size - 1] * high


def _wrapped(size: int, low: int, high: int) -> list[int]:
    return [*range(size - low, size), *range(size), *range(high)]


_PADDED: dict[str, Callable[[int, int, int], list[int]]] = {
    "reflect": _mirrored,
    "replicate": _edged,
    "circular": _wrapped,
}


def _pad_as(mode: str, target: Any) -> Callable[..., Value]:
    def spell(n: Tracer, x: Value, pad: Sequence[int]) -> Value:
        padded = _padded(n, x, pad, mode)
        return n.emit(target, x, list(pad)) if padded is None else padded

    return spell


def _pad(
    n: Tracer, x: Value, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Value:
    if mode == "constant":
        return n.write(aten.constant_pad_nd.default, x, list(pad), value or 0.0)
    padded = _padded(n, x, pad, mode)
    return n.emit(aten.pad.default, x, pad, mode, value) if padded is None else padded


def _padded(n: Tracer, x: Value, pad: Sequence[int], mode: str) -> Value | None:
    """Pad dimension by dimension with slices of the tensor; None if padding is negative or needs too many."""
    if min(pad, default=0) < 0:
        return None
    for i in range(0, len(pad), 2):
        dim = len(shape_of(x)) - 1 - i // 2
        padded = take(n, x, dim, _PADDED[mode](shape_of(x)[dim], pad[i], pad[i + 1]))
        if padded is None:
            return None
        x = padded
    return x


_COMPUTED = "its elements are read by computed positions"
_WRITTEN = "its elements are written at computed positions"

OPERATORS: tuple[Operator, ...] = (
    row_major(aten.index_select.default, Elements.UNKNOWN, _COMPUTED, _index_select),
    row_major(aten.embedding.default, Elements.GATHERS, _COMPUTED, _embedding),
    row_major(aten.index_put.default, Elements.SCATTERS, _WRITTEN, _index_put),
    row_major(aten.index.Tensor, Elements.GATHERS, _COMPUTED, _index),
    row_major(aten.gather.default, Elements.GATHERS, _COMPUTED, _gather),
    spelling(_embedding_bag, aten.embedding_bag.default, aten.embedding_bag.padding_idx),
    spelling(_embedding_bag, aten._embedding_bag.default),
    spelling(_pad, aten.pad.default),
    *(
        spelling(_pad_as(mode, padding.default), padding.default)
        for mode, paddings in (
            ("reflect", (aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d)),
            ("replicate", (aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d)),
        )
        for padding in paddings
    ),
)
