"""Split, repeat and merge attention heads by slices, if a reshape would give several dynamic sizes.

XNNPACK derives only one size of a reshape. A slice takes one head, and a concatenation puts heads in a row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch.fx import GraphModule, Node

from dimorder.graph.nodes import args_of, dynamic_dims
from dimorder.graph.prediction import add_predicted
from dimorder.graph.tracing import shape_of

aten = torch.ops.aten


def slice_attention_heads(module: GraphModule, most: int, varying: Collection[int]) -> None:
    """Write reshapes that split, repeat or merge at most `most` heads as slices and concatenations, in place.

    It does so only if the reshape gives several of the `varying` sizes.

    >>> class Heads(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.view(2, 7, 3, 32).transpose(1, 2)
    >>> from dimorder.capture.captured import capture
    >>> module = capture(Heads(), (torch.ones(2, 7, 96),)).module
    >>> slice_attention_heads(module, 32, {2, 7})
    >>> print(*(node.name for node in module.graph.nodes if node.op == "call_function"))
    reshape_default_1 slice_tensor slice_tensor_1 slice_tensor_2 cat_default
    """
    for node in module.graph.find_nodes(op="call_function", target=aten.reshape.default):
        if is_stuck(node, varying):
            _split(node, most)
            _repeat(node, most)
            _merge(node, most)
    module.graph.eliminate_dead_code()


def is_stuck(move: Node, varying: Collection[int]) -> bool:
    """Return whether a reshape gives several dynamic sizes."""
    return move.target is aten.reshape.default and sum(size in varying for size in shape_of(move)) > 1


def _split(reshape: Node, most: int) -> None:
    """Replace a reshape that splits heads from channels, if all readers move the heads before the rows."""
    (value, *_), shape = args_of(reshape), shape_of(reshape)
    *outer, rows, count, size = (*[1] * (3 - len(shape)), *shape)
    rank = len(shape)
    permutes = [user for user in reshape.users if user.target is aten.permute.default]
    if rank < 3 or shape_of(value) != (*outer, rows, count * size) or not 1 < count <= most:
        return
    if len(permutes) < len(reshape.users) or not all(_moves_heads(user, rank) for user in permutes):
        return
    with reshape.graph.inserting_before(reshape):
        wide = reshaped(reshape, value, [*outer, 1, rows, count * size])
        heads = add_predicted(reshape, aten.cat.default, _pieces(reshape, wide, rank - 1, count), rank - 3)
    swapped = _swapped(rank)
    for permute in permutes:
        order, moved = [swapped[d] for d in args_of(permute)[1]], heads
        if order != list(range(rank)):
            with reshape.graph.inserting_before(permute):
                moved = add_predicted(permute, aten.permute.default, heads, order)
        permute.replace_all_uses_with(moved)


def _moves_heads(permute: Node, rank: int) -> bool:
    order = list(args_of(permute)[1])
    return order.index(rank - 2) < order.index(rank - 3)


def _swapped(rank: int) -> list[int]:
    """Return the order of dimensions with heads before rows."""
    return [*range(rank - 3), rank - 2, rank - 3, rank - 1]


def _repeat(reshape: Node, most: int) -> None:
    """Replace heads that an expansion repeats and a reshape puts in a row by joined slices."""
    expand, shape = args_of(reshape)[0], shape_of(reshape)
    if expand.target is not aten.expand.default or len(shape_of(expand)) != len(shape) + 1 or len(shape) < 3:
        return
    alone, (*outer, count, rows, size) = args_of(expand)[0], shape
    *_, heads, times, _, _ = shape_of(expand)
    if shape_of(alone) != (*outer, heads, 1, rows, size) or heads * times != count or count > most:
        return
    if not {len(outer), len(outer) + 1}.isdisjoint(dynamic_dims(expand)):
        return
    with reshape.graph.inserting_before(reshape):
        value, dim = reshaped(reshape, alone, [*outer, heads, rows, size]), len(outer)
        row = [piece for piece in _pieces(reshape, value, dim, heads) for _ in range(times)]
        reshape.replace_all_uses_with(add_predicted(reshape, aten.cat.default, row, dim))


def _merge(reshape: Node, most: int) -> None:
    """Replace a permute that moves heads after rows, and the reshape that merges them, by joined slices."""
    turned, shape = args_of(reshape)[0], shape_of(reshape)
    rank = len(shape) + 1
    if turned.target is not aten.permute.default or rank < 3 or list(args_of(turned)[1]) != _swapped(rank):
        return
    value = args_of(turned)[0]
    count = shape_of(value)[-3]
    if shape_of(turned)[:-2] != shape[:-1] or count > most:
        return
    with reshape.graph.inserting_before(reshape):
        joined = value
        if count > 1:
            joined = add_predicted(
                reshape, aten.cat.default, _pieces(value, value, rank - 3, count), rank - 1
            )
        joined = reshaped(reshape, joined, shape)
    reshape.replace_all_uses_with(joined)


def _pieces(like: Node, value: Node, dim: int, count: int) -> list[Node]:
    """Cut a dimension of a value into equal pieces; one piece is the value itself."""
    size = shape_of(value)[dim] // count
    if count == 1:
        return [value]
    cuts = [(value, dim, i * size, (i + 1) * size, 1) for i in range(count)]
    return [add_predicted(like, aten.slice.Tensor, *cut) for cut in cuts]


def reshaped(like: Node, value: Node, shape: Sequence[int]) -> Node:
    """Write a reshape of a value, if its shape differs."""
    same = shape_of(value) == tuple(shape)
    return value if same else add_predicted(like, aten.reshape.default, value, list(shape))
