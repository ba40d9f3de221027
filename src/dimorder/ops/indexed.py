"""Define operators that depend on the order of indices: cat, slice, pad, flip, and operators written in them.

A cut splits a dimension into outer and inner axes, if its inner size divides the offset, the length and every
member's size. The operator then acts on the outer axes and leaves the inner ones free.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

import torch

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import args_of, dynamic_dims, is_uneven, may_resize, piece_of
from dimorder.graph.tracing import Tracer, Value, dtype_of, shape_of
from dimorder.ops.call import Call
from dimorder.ops.dialect import ELEMENTS, SLICE_CONSTANT
from dimorder.ops.moves import squeeze, unsqueeze, view
from dimorder.ops.operator import Implementation, Operator, spelling
from dimorder.ops.relation import Relation, Token, broadcast_dims, is_named, relate_cut, token_axes

aten = torch.ops.aten


# -- spellings


def slice_(
    n: Tracer, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    if isinstance(x, torch.Tensor):
        return n.write(aten.slice.Tensor, x, dim, start, end, step)
    shape = shape_of(x)
    dim = dim % len(shape)
    begin, stop, step = slice(start, end, step).indices(shape[dim])
    kept = range(begin, stop, step)
    if len(kept) == shape[dim] and not may_resize(n.node):
        return x
    if len(kept) <= 1:
        return n.emit(aten.slice.Tensor, x, dim, begin, begin + len(kept), 1)
    return n.emit(aten.slice.Tensor, x, dim, begin, stop, step)  # a stop at the end stays there at all sizes


def select(n: Tracer, x: Value, dim: int, index: int) -> Value:
    dim = dim % len(shape_of(x))
    index = index % shape_of(x)[dim]
    return squeeze(n, slice_(n, x, dim, index, index + 1), dim)


def _unbind(n: Tracer, x: Value, dim: int = 0) -> Value:
    return [select(n, x, dim, index) for index in range(shape_of(x)[dim])]


def _split_sizes(n: Tracer, x: Value, sizes: Sequence[int], dim: int = 0) -> Value:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice_(n, x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _split(n: Tracer, x: Value, size: int, dim: int = 0) -> Value:
    total = shape_of(x)[dim]
    return _split_sizes(n, x, [min(size, total - begin) for begin in range(0, total, size)], dim)


def _chunk(n: Tracer, x: Value, chunks: int, dim: int = 0) -> Value:
    return _split(n, x, -(-shape_of(x)[dim] // chunks), dim)


def _getitem(n: Tracer, x: Value, index: int) -> Value:
    return x[index] if isinstance(x, (list, tuple)) else n.emit(operator.getitem, x, index)


def cat(n: Tracer, tensors: Sequence[Value], dim: int = 0) -> Value:
    parts = [t for t in tensors if 0 not in shape_of(t)]
    dim = dim % len(shape_of(parts[0]))
    dtypes = {dtype_of(t) for t in parts}
    if len(dtypes) > 1:
        common = functools.reduce(torch.promote_types, dtypes)
        parts = [n.write(aten._to_copy.default, t, dtype=common) for t in parts]
    return parts[0] if len(parts) == 1 else n.emit(aten.cat.default, parts, dim)


def stack(n: Tracer, tensors: Sequence[Value], dim: int = 0) -> Value:
    dim = dim % (len(shape_of(tensors[0])) + 1)
    return cat(n, [unsqueeze(n, t, dim) for t in tensors], dim)


def _roll(n: Tracer, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    if not dims:
        return view(n, _roll(n, view(n, x, [math.prod(shape_of(x))]), shifts, [0]), shape_of(x))
    for shift, dim in zip(shifts, dims, strict=True):
        size = shape_of(x)[dim]
        cut = -shift % size
        if cut:
            x = cat(n, [slice_(n, x, dim, cut, size), slice_(n, x, dim, 0, cut)], dim)
    return x


def pad(n: Tracer, x: Value, amounts: Sequence[int], value: float = 0.0) -> Value:
    if not any(amounts) and not may_resize(n.node):
        return x
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))  # the last dimension first
    shape = list(shape_of(x))
    if any(min(pair) <= -size for pair, size in zip(pairs, reversed(shape), strict=False)):
        for i, pair in enumerate(pairs):
            shape[-1 - i] += sum(pair)
        return torch.full(shape, value, dtype=dtype_of(x))  # no element of x is left
    for i, (low, high) in enumerate(pairs):  # portable kernels support no negative padding
        dim = len(shape) - 1 - i
        if min(low, high) < 0:
            x = slice_(n, x, dim, max(-low, 0), shape[dim] + min(high, 0))
    rest = [max(amount, 0) for amount in amounts]
    pads = any(rest) or may_resize(n.node)
    return n.emit(aten.constant_pad_nd.default, x, rest, value or 0.0) if pads else x


# -- which axes they cut


def _relate_cat(node: torch.fx.Node) -> Relation:
    shapes = [shape_of(operand) for operand in args_of(node)[0]]
    dim = (args_of(node)[1] if len(args_of(node)) > 1 else 0) % len(shapes[0])
    return relate_cut(shapes, shape_of(node), {dim: piece_of(node, *(shape[dim] for shape in shapes))})


def _relate_slice(node: torch.fx.Node) -> Relation:
    dim, start, end, step = args_of(node)[1:5]
    shape, out = shape_of(args_of(node)[0]), shape_of(node)
    if step == 1:
        return relate_cut([shape], out, {dim: piece_of(node, start, end - start, shape[dim])})
    if piece_of(node, shape[dim], step) != step or start >= step or out[dim] != shape[dim] // step:
        return relate_cut([shape], out, {dim: 1})
    read = list(broadcast_dims(shape, shape))
    read[dim] = ((f"d.{dim}", shape[dim] // step), ("step", step))
    return Relation("indexed", (tuple(read),), (broadcast_dims(out, out),), blocks=frozenset({"step"}))


def _relate_pad(node: torch.fx.Node) -> Relation:
    shape, pads = shape_of(args_of(node)[0]), args_of(node)[1]
    inner = {}
    for i in range(0, len(pads), 2):
        low, high = pads[i : i + 2]
        if low or high or is_uneven(node):
            dim = len(shape) - 1 - i // 2
            inner[dim] = piece_of(node, shape[dim], low, high)
    return relate_cut([shape], shape_of(node), inner)


def _relate_flip(node: torch.fx.Node) -> Relation:
    shape = shape_of(args_of(node)[0])
    return relate_cut([shape], shape, {dim % len(shape): 1 for dim in args_of(node)[1]})


def _relate_slice_of_constant(node: torch.fx.Node) -> Relation:
    """Relate a slice whose end is dynamic, so that nothing can cut its dimension."""
    constant, dim = args_of(node)[:2]
    return relate_cut([shape_of(constant)], shape_of(node), {dim: 1})


# -- on physical tensors


def _lower_cat(c: Call) -> None:
    """Lower to physical dimensions in which no dynamic size is merged with another, nor with the cut.

    A view could not part them. If all operands have size 1 in the cut dimension, it takes the place of a
    dimension of 1 that they have.
    """
    operands, along = args_of(c.node)
    cut, dynamic = c.labelled("cut"), dynamic_dims(c.node)
    several = len(dynamic) > 1
    groups = c.split(leads=[*cut, *(c.labelled(*(f"d.{dim}" for dim in dynamic)) if several else [])])
    dim = c.positions(groups, cut)[0]
    are_single = all(shape_of(operand)[along] == 1 for operand in operands)
    if several and are_single and dim and not groups[dim - 1]:
        del groups[dim - 1]
        dim -= 1
    c.give(c.b.call(c.target, c.all_operands(groups), dim), groups)


def _lower_slice(c: Call) -> None:
    dim, start, end, step = args_of(c.node)[1:5]
    if _is_stepped(c):
        x, groups, position = _stepped(c)
        c.give(c.b.slice(x, position, start, end, step), groups)
        return
    lead = c.labelled("cut", "step")
    groups = c.split(leads=lead)
    if not lead:  # a dimension of size 1, whole
        c.give(c.take(0, groups), groups)
        return
    position = c.positions(groups, lead)[0]
    outer = c.size(0, lead[:1])
    rest = c.size(0, groups[position]) // outer
    if step != 1:
        begin, length = start * rest, rest
    else:
        inner = shape_of(args_of(c.node)[0])[dim] // outer
        begin, length = start // inner * rest, (end - start) // inner * rest
    c.give(c.b.slice(c.take(0, groups), position, begin, begin + length), groups)


def _is_stepped(c: Call) -> bool:
    """Return whether a slice has a step that no cut of axes expresses."""
    lead = c.labelled("cut", "step")
    return args_of(c.node)[4] != 1 and bool(lead) and lead[0][0] != "step"


def _stepped(c: Call) -> tuple[torch.fx.Node, list[list[Token]], int]:
    """Return the operand of a slice with a step, its physical dimensions and the one that is cut."""
    lead = c.labelled("cut", "step")  # "step" if it belongs to a block
    groups = c.split(leads=lead, alone=lead)
    return c.take(0, groups), groups, c.positions(groups, lead)[0]


def _step_by_view(c: Call) -> None:
    if not _is_stepped(c):
        _lower_slice(c)
        return
    _, start, _, step = args_of(c.node)[1:5]
    x, groups, position = _stepped(c)
    sizes = [c.size(0, group) for group in groups]
    count = c.size(c.result, groups[position])
    c.give(c.b.every(x, sizes, position, start, count, step), groups)


def _has_even_step(node: torch.fx.Node) -> bool:
    return bool(args_of(node)[4] != 1) and not is_uneven(node)


def _lower_slice_of_constant(c: Call) -> None:
    """Lower to one physical dimension per axis: an axis merged with the dynamic one would vary with it.

    A slice of one element has no axis there; the constant's own comes first.
    """
    axes, tokens = token_axes(c.tensors[0], c.relation), list(c.arrangement.tokens)
    (cut,) = (token for token in axes if is_named(token, "cut"))
    groups = [[token] for token in (tokens if cut in tokens else [cut, *tokens])]
    (constant,) = c.all_operands(groups)
    result = c.b.call(c.target, constant, groups.index([cut]), *args_of(c.node)[2:])
    c.give(result, [[token for token in group if token in tokens] for group in groups])


def _lower_pad(c: Call) -> None:
    rank, pads = len(shape_of(c.node)), list(args_of(c.node)[1])
    cuts = c.labelled("cut")
    groups = c.split(leads=cuts)
    amounts = [0] * (2 * len(groups))
    for i in range(0, len(pads), 2):
        name = f"cut.{rank - 1 - i // 2}"
        if not (pads[i] or pads[i + 1]):
            continue
        position = c.positions(groups, c.labelled(name))[0]
        labels = c.relation.reads[0][rank - 1 - i // 2]
        inner = math.prod(size for label, size in labels if not is_named((label, 0), name))
        rest = c.size(c.result, groups[position]) // c.size(c.result, groups[position][:1])
        slot = 2 * (len(groups) - 1 - position)
        amounts[slot : slot + 2] = [pads[i] // inner * rest, pads[i + 1] // inner * rest]
    while len(amounts) > 2 and amounts[-2:] == [0, 0] and not is_uneven(c.node):
        amounts = amounts[:-2]
    c.give(c.b.call(c.target, c.take(0, groups), amounts, *args_of(c.node)[2:]), groups)


def _lower_flip(c: Call) -> None:
    cuts = c.labelled("cut")
    groups = c.split(leads=cuts, alone=cuts)
    dims = c.positions(groups, cuts)
    c.give(c.b.call(c.target, c.take(0, groups), dims), groups)


# If the digits of a size need more single slices than this, the size is padded to a power of two.
MAX_DIGITS = 16


def _flip_by_digits(c: Call) -> None:
    """Flip a dimension digit by digit: an index is reversed if each of its digits is."""
    cuts = c.labelled("cut")
    groups = c.split(leads=cuts, alone=cuts)
    sizes, y = [c.size(0, group) for group in groups], c.take(0, groups)
    for dim in c.positions(groups, cuts):
        y = _reversed(c, y, sizes, dim)
    c.give(y, groups)


def _reversed(c: Call, y: torch.fx.Node, sizes: Sequence[int], dim: int) -> torch.fx.Node:
    size, bases = sizes[dim], _prime_factors(sizes[dim])
    if sum(bases) > MAX_DIGITS:
        bases = [2] * (size - 1).bit_length()
    whole = math.prod(bases)
    if whole != size:
        pads = [0, 0] * (len(sizes) - 1 - dim) + [whole - size, 0]
        y = c.b.call(aten.constant_pad_nd.default, y, pads, 0.0)
    outer, inner = math.prod(sizes[:dim]), whole * math.prod(sizes[dim + 1 :])
    for base in bases:
        inner //= base
        y = c.b.call(aten.view.default, y, [outer, base, inner])
        digits = [c.b.slice(y, 1, digit, digit + 1) for digit in reversed(range(base))]
        y = c.b.call(aten.cat.default, digits, 1)
        outer *= base
    y = c.b.call(aten.view.default, y, [*sizes[:dim], whole, *sizes[dim + 1 :]])
    return y if whole == size else c.b.slice(y, dim, 0, size)


def _prime_factors(size: int) -> list[int]:
    factors, divisor = [], 2
    while size > 1:
        if size % divisor:
            divisor += 1
        else:
            factors.append(divisor)
            size //= divisor
    return factors


OPERATORS = (
    Operator(
        (aten.cat.default,),
        _relate_cat,
        (Implementation("along the outer axes", "*", _lower_cat, (aten.cat.default,)),),
        spelling=cat,
    ),
    Operator(
        (aten.slice.Tensor,),
        _relate_slice,
        (
            Implementation("of the outer axes", "*", _lower_slice, (aten.slice.Tensor,)),
            Implementation(
                "step by view",
                "*",
                _step_by_view,
                (aten.slice.Tensor, aten.constant_pad_nd.default),
                _has_even_step,
            ),
        ),
        spelling=slice_,
        plain=("of the outer axes",),
    ),
    Operator(
        (aten.constant_pad_nd.default,),
        _relate_pad,
        (Implementation("of the outer axes", "*", _lower_pad, (aten.constant_pad_nd.default,)),),
        spelling=pad,
        elements=Elements.PADS,
    ),
    Operator(
        (aten.flip.default,),
        _relate_flip,
        (
            Implementation("of whole dimensions", "*", _lower_flip, (aten.flip.default,)),
            Implementation(
                "digit by digit",
                "*",
                _flip_by_digits,
                (aten.slice.Tensor, aten.cat.default, aten.constant_pad_nd.default),
            ),
        ),
        plain=("of whole dimensions",),
    ),
    Operator(  # the program has the constant of the largest size, and each call takes a slice of it
        (SLICE_CONSTANT,),
        _relate_slice_of_constant,
        (Implementation("of the outer axes", "*", _lower_slice_of_constant, (SLICE_CONSTANT,)),),
        elements=ELEMENTS[SLICE_CONSTANT],
    ),
    spelling(select, aten.select.int),
    spelling(_unbind, aten.unbind.int),
    spelling(_split, aten.split.Tensor),
    spelling(_split_sizes, aten.split_with_sizes.default),
    spelling(_chunk, aten.chunk.default),
    spelling(_getitem, operator.getitem),
    spelling(stack, aten.stack.default),
    spelling(_roll, aten.roll.default),
)
