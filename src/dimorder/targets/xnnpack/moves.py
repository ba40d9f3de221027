"""Write the operators that move or rename elements as XNNPACK nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from dimorder.graph.dynamic_sizes import common_divisor, is_fixed
from dimorder.physical.fuse_quantized import MOVE, FoundKernel
from dimorder.targets.graph_writer import join_in_steps
from dimorder.targets.integer_kernels import SELECTION, TIMES_ONES
from dimorder.targets.rows import clone, joined, paddings, permute, start_of, unfit_step, view
from dimorder.targets.table import Arguments, Row, View, is_of_one_type, shape_of
from dimorder.targets.xnnpack.pointwise import pair

if TYPE_CHECKING:
    from dimorder.targets.xnnpack.builder import XnnBuilder
    from dimorder.targets.xnnpack.graph import XnnValue

aten = torch.ops.aten

MAX_CONCATENATED = 5


def _expand(w: XnnBuilder, a: Arguments) -> View[XnnValue] | XnnValue:
    """Broadcast by a multiplication with ones in the dimensions that grow, one dynamic size at a time."""
    old = (1,) * (len(a.shape) - len(a.self.shape)) + tuple(a.self.shape)
    if old == a.shape:
        return view(w, a)
    grown = [d for d, sizes in enumerate(zip(old, a.shape, strict=True)) if sizes[0] != sizes[1]]
    dynamic = [d for d in grown if not is_fixed([a.shape[d]])]
    last = {d for d in grown if d not in dynamic[:-1]}
    x, in_integers = w.reshape(w.dense(a.self), old), w.in_integers
    for dims in (last, *({d} for d in reversed(dynamic[:-1]))):
        w.in_integers = in_integers
        x = pair(w, "Multiply", x, w.ones([n if d in dims else 1 for d, n in enumerate(a.shape)]))
    return x


def _expand_kernel(a: Arguments) -> FoundKernel:
    old = shape_of(a.self)
    return MOVE if (1,) * (len(a.shape) - len(old)) + old == a.shape else TIMES_ONES


def slice_(w: XnnBuilder, x: XnnValue, offsets: Sequence[int], sizes: Sequence[int]) -> XnnValue:
    if tuple(sizes) == x.shape:
        return x
    return w.node(
        "StaticSlice",
        sizes,
        num_dims=len(x.shape),
        offsets=list(offsets),
        sizes=list(sizes),
        input_id=x.id,
    )


def _cut(w: XnnBuilder, x: XnnValue, dim: int, start: int, length: int) -> XnnValue:
    dim %= len(x.shape)
    offsets = [start if d == dim else 0 for d in range(len(x.shape))]
    return slice_(w, x, offsets, [length if d == dim else size for d, size in enumerate(x.shape)])


def _slice_tensor(w: XnnBuilder, a: Arguments) -> XnnValue:
    x = w.dense(a.self)
    dim = a.dim % len(x.shape)
    size, length = x.shape[dim], a.shape[dim]
    start = start_of(a, size)
    # a dynamic number of whole rows, such as those of the outermost of several dimensions in one
    row = common_divisor((size, start, length))
    if is_fixed((start, length)) or not is_fixed((start // row, length // row)):
        return _cut(w, x, dim, start, length)
    x = w.reshape(x, (*x.shape[:dim], size // row, row, *x.shape[dim + 1 :]))
    return w.reshape(_cut(w, x, dim, start // row, length // row), a.shape)


def _cat(w: XnnBuilder, a: Arguments) -> XnnValue:
    values: list[XnnValue] = joined(w, a, lambda value: value.integer_type)
    axis = a.dim % len(a.shape)
    return join_in_steps(values, MAX_CONCATENATED, lambda group: _concatenate(w, group, axis))


def _concatenate(w: XnnBuilder, values: Sequence[XnnValue], axis: int) -> XnnValue:
    shape = list(values[0].shape)
    shape[axis] = sum(value.shape[axis] for value in values)
    ids = [value.id for value in values] + [None] * (MAX_CONCATENATED - len(values))
    inputs: dict[str, Any] = {f"input{i}_id": index for i, index in enumerate(ids, start=1)}
    return w.node(f"Concatenate{len(values)}", shape, axis=axis, **inputs)


def _constant_pad(w: XnnBuilder, a: Arguments) -> XnnValue:
    x = w.dense(a.self)
    before, after = paddings(a.pad, len(x.shape))
    kept = [size + min(b, 0) + min(c, 0) for b, size, c in zip(before, x.shape, after, strict=True)]
    x = slice_(w, x, [max(-b, 0) for b in before], kept)
    return pad(w, x, [max(b, 0) for b in before], [max(c, 0) for c in after], float(a.value or 0))


def pad(w: XnnBuilder, x: XnnValue, before: Sequence[int], after: Sequence[int], value: float) -> XnnValue:
    if not any(before) and not any(after):
        return x
    return w.node(
        "StaticConstantPad",
        [b + size + c for b, size, c in zip(before, x.shape, after, strict=True)],
        pre_paddings=list(before),
        post_paddings=list(after),
        padding_value=value,
        input_id=x.id,
    )


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        aten.cat.default: Row(_cat, integers=True, halves=is_of_one_type),
        aten.slice.Tensor: Row(
            _slice_tensor, lambda a: unfit_step(a, "XNNPACK"), integers=True, halves=is_of_one_type
        ),
        aten.constant_pad_nd.default: Row(
            _constant_pad,
            halves=is_of_one_type,
            kernel=lambda a: SELECTION if any(side > 0 for side in a.pad) else MOVE,
        ),
        aten.expand.default: Row(_expand, halves=is_of_one_type, kernel=_expand_kernel),
        aten.permute.default: Row(permute, relabel=True, integers=True, halves=is_of_one_type),
        aten.view.default: Row(view, relabel=True, integers=True, halves=is_of_one_type),
        aten.clone.default: Row(clone, relabel=True, integers=True, halves=is_of_one_type),
    }
)
