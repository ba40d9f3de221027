"""Split a linear into one matmul per attention head, if its result is only permuted so that heads come first.

A bias of keys is dropped, because softmax cancels it. A bias of values moves into the linear after attention.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from dimorder.capture.linears import Linear, constant, is_relabel, linear_before, scaled_inputs
from dimorder.capture.slice_attention_heads import is_stuck, reshaped
from dimorder.graph.nodes import args_of, only_reader, replace_node
from dimorder.graph.prediction import add_predicted
from dimorder.graph.tracing import FLOATS, shape_of

aten = torch.ops.aten


@dataclass(frozen=True)
class HeadLimits:
    """The attention heads for which a target is faster with one matmul per head.

    Attributes:
        channels: The number of which the channels of a head are a multiple.
        most_joined: The most heads that slices join again, where a reshape has several dynamic sizes.
    """

    channels: int
    most_joined: int


def split_attention_heads(module: GraphModule, limits: HeadLimits, varying: Collection[int] = ()) -> None:
    """Replace a linear and the permute of its attention heads by a matmul per head, in place.

    If a reshape would give several of the `varying` sizes, heads of any size and of half precision are split.

    >>> class Heads(torch.nn.Module):
    ...     def forward(self, x, w=torch.ones(96, 5)):
    ...         return torch.nn.functional.linear(x, w).view(2, 7, 3, 32).transpose(1, 2)
    >>> from dimorder.capture.captured import capture
    >>> module = capture(Heads(), (torch.ones(2, 7, 5),)).module
    >>> split_attention_heads(module, HeadLimits(32, 32))
    >>> [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    ['aten.reshape.default', 'aten.matmul.default']
    """
    for softmax in module.graph.find_nodes(op="call_function", target=aten.softmax.int):
        if softmax.args[1] % len(shape_of(softmax)) == len(shape_of(softmax)) - 1:
            _drop_bias_of_keys(module, softmax)
            _move_bias_of_values(module, softmax)
    for node in list(module.graph.find_nodes(op="call_function", target=aten.linear.default)):
        linear = Linear.of(module, node, FLOATS)
        heads = None if linear is None else _heads(linear)
        if linear is not None and heads is not None:
            stuck = any(is_stuck(move, varying) for move in heads.moves)
            is_faster = heads.size % limits.channels == 0 and linear.weight.dtype == torch.float32
            if stuck or is_faster:
                _split(linear, heads)
    module.graph.eliminate_dead_code()


# -- biases that need not be added


def _drop_bias_of_keys(module: GraphModule, softmax: Node) -> None:
    scores = _scores(module, args_of(softmax)[0])
    found = None if scores is None else _shifted(module, args_of(scores)[1])
    if found is not None and _is_alike(found[1], -1):
        _put(found[0], None)


def _move_bias_of_values(module: GraphModule, softmax: Node) -> None:
    reader = only_reader(softmax)
    if reader is None or reader.target is not aten.matmul.default or reader.args[0] is not softmax:
        return
    found, moves = _shifted(module, args_of(reader)[1]), _views_after(reader)
    after = only_reader(moves[-1] if moves else reader)
    linear = None if after is None else Linear.of(module, after)
    if found is None or linear is None or linear.features != len(shape_of(linear.node)) - 1:
        return
    values, shift = found
    if not _is_alike(shift, -2):
        return
    added = _moved(shift.narrow(-2, 0, 1).expand(shape_of(reader)), moves).flatten(0, -2)
    if not _is_alike(added, 0):
        return
    _, bias = scaled_inputs(linear.weight, linear.bias, torch.ones(added.shape[1]), added[0].double())
    if bias is not None and bool(bias.float().isfinite().all()):
        _put(linear, bias)
        _put(values, None)


def _scores(module: GraphModule, node: Node) -> Node | None:
    """Return the matmul of attention scores that only a factor, an addition, a mask and a softmax read."""
    if len(node.users) > 1 or node.target is aten.matmul.default:
        return node if len(node.users) == 1 else None
    if node.target in (aten.mul.Tensor, aten.div.Tensor):
        factor = constant(module, node.args[1])
        return _scores(module, args_of(node)[0]) if factor is not None and factor.numel() == 1 else None
    if node.target is aten.add.Tensor and len(node.args) == 2 and not node.kwargs:
        whole = (each for each in node.all_input_nodes if shape_of(each) == shape_of(node))
        return next(filter(None, (_scores(module, each) for each in whole)), None)
    if node.target is aten.where.self:
        lowest = constant(module, node.args[2])
        if lowest is not None and bool((lowest == torch.finfo(torch.float32).min).all()):
            return _scores(module, args_of(node)[1])
    return None


def _shifted(module: GraphModule, value: Node) -> tuple[Linear, Tensor] | None:
    """Return the linear that only a value reads, past views, and its bias in the value's shape."""
    found = linear_before(module, value)
    if found is None:
        return None
    linear, moves = found
    if linear.bias is None or linear.node.target is not aten.linear.default:
        return None
    return linear, _moved(linear.bias.expand(shape_of(linear.node)), moves[::-1])


def _moved(value: Tensor, moves: Sequence[Node]) -> Tensor:
    for move in moves:
        permutes = move.target is aten.permute.default
        value = value.permute(args_of(move)[1]) if permutes else value.reshape(shape_of(move))
    return value


def _is_alike(value: Tensor, dim: int) -> bool:
    """Return whether a constant does not change along a dimension."""
    return bool((value == value.narrow(dim, 0, 1)).all())


def _put(linear: Linear, bias: Tensor | None) -> None:
    replace_node(linear.node, linear.with_constants(linear.weight, bias, "shared"))


# -- one matrix per head


@dataclass(frozen=True)
class _Heads:
    """The heads in the channels of a linear: `count` heads of `size`, before the last dimension of `rows`.

    If they are `turned`, that dimension comes after the channels. A dimension is its step and its size.
    """

    moves: Sequence[Node]
    rows: Sequence[tuple[int, int]]
    count: int
    size: int
    turned: bool


def _heads(linear: Linear) -> _Heads | None:
    """Return the heads of a linear, or None if heads do not come before rows."""
    moves = _views_after(linear.node)
    value = torch.empty(shape_of(linear.node), device="meta")
    for move in moves:
        if move.target is aten.permute.default:
            value = value.permute(args_of(move)[1])
            continue
        try:
            value = value.view(shape_of(move))
        except RuntimeError:  # a view would copy
            return None
    dims = _factors(value, shape_of(linear.node)[-1])
    if len(dims) < 3:
        return None
    *outer, (span, count), row, (step, size) = dims
    turned = row[0] == 1
    if turned:
        row, (step, size) = (step, size), row
    rows = [*outer, row]
    features = shape_of(linear.node)[-1]
    if (step, span, span * count) != (1, size, features) or any(each % features for each, _ in rows):
        return None
    return _Heads(moves, [(each // features, length) for each, length in rows], count, size, turned)


def _factors(value: Tensor, features: int) -> list[tuple[int, int]]:
    """Return the steps and sizes of a value's dimensions; a dimension of both rows and channels is split."""
    found = []
    for step, size in zip(value.stride(), value.shape, strict=True):
        within = features // step if step < features < step * size else size
        found += [(step * within, size // within), (step, within)]
    return [(step, size) for step, size in found if size > 1]


def _split(linear: Linear, heads: _Heads) -> None:
    read, graph, end = args_of(linear.node)[0], linear.node.graph, heads.moves[-1]
    *outer, rows = [size for _, size in heads.rows]
    inputs, ones = linear.weight.shape[1], [1] * len(outer)
    with graph.inserting_before(end):
        x = reshaped(linear.node, _in_order(linear.node, read, heads.rows), [*outer, 1, rows, inputs])
        apart = linear.weight.reshape(*ones, heads.count, heads.size, inputs).transpose(-2, -1)
        y = add_predicted(linear.node, aten.matmul.default, x, linear.add_constant("heads", apart))
        if linear.bias is not None:
            bias = linear.add_constant("heads_bias", linear.bias.reshape(*ones, heads.count, 1, heads.size))
            y = add_predicted(linear.node, aten.add.Tensor, y, bias)
        if heads.turned:
            swap = [*range(len(outer) + 1), len(outer) + 2, len(outer) + 1]
            y = add_predicted(linear.node, aten.permute.default, y, swap)
        end.replace_all_uses_with(reshaped(linear.node, y, shape_of(end)))


def _in_order(like: Node, read: Node, rows: Sequence[tuple[int, int]]) -> Node:
    """Permute a value whose row dimensions are stored in another order than that of `rows`."""
    stored = sorted(range(len(rows)), key=lambda i: -rows[i][0])
    if stored == list(range(len(rows))):
        return read
    shape = [*(rows[i][1] for i in stored), shape_of(read)[-1]]
    dims = [*(stored.index(i) for i in range(len(rows))), len(rows)]
    return add_predicted(like, aten.permute.default, reshaped(like, read, shape), dims)


# -- views


def _views_after(node: Node) -> list[Node]:
    """Return the views and permutes after a value, as long as nothing else reads it."""
    moves = list[Node]()
    reader = only_reader(node)
    while reader is not None and is_relabel(reader):
        moves.append(reader)
        reader = only_reader(reader)
    return moves
