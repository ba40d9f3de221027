"""Split a linear or convolution whose results are only cut into one per piece, each with rows of the weight.

Packed projections of attention are such linears. So are convolutions whose channels are halved afterwards,
with or without an activation between. The split saves slices that copy. If a slice is a view, one linear is
better than several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from dimorder.capture.linears import Linear, is_relabel
from dimorder.graph.nodes import args_of, copy_meta
from dimorder.graph.tracing import shape_of
from dimorder.ops.table import elements_of

aten = torch.ops.aten


def split_packed_linear(module: GraphModule, fewest: int) -> None:
    """Replace a linear or convolution and the slices of its channels by one per piece, in place.

    The pieces must share no channels, so that nothing is computed twice. Channels that no piece has are not
    computed. All stay together if a piece would have fewer than `fewest` channels.

    >>> class Halved(torch.nn.Module):
    ...     def forward(self, x, w=torch.ones(48, 5)):
    ...         a, b = torch.nn.functional.linear(x, w).chunk(2, -1)
    ...         return a * b.sigmoid()
    >>> from dimorder.capture.captured import capture
    >>> module = capture(Halved(), (torch.ones(3, 5),)).module
    >>> split_packed_linear(module, 16)
    >>> [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    ['aten.linear.default', 'aten.linear.default', 'aten.sigmoid.default', 'aten.mul.Tensor']
    """
    todo = list(module.graph.nodes)
    while todo:
        linear = Linear.of(module, todo.pop())
        if linear is not None and linear.groups == 1 and not linear.transposed:
            todo += _split(linear, fewest)
    module.graph.eliminate_dead_code()


@dataclass(frozen=True)
class _Part:
    """A factor of a dimension: its size, and how many elements of that dimension one step of it spans."""

    dim: int
    size: int
    span: int


def _split(linear: Linear, fewest: int) -> list[Node]:
    """Split a packed linear or convolution, and return its pieces."""
    paths = list(_paths(linear.node, []))
    rows = [None if path is None else _rows(linear, path) for path in paths]
    taken = [each for each in rows if each is not None]
    if len(taken) < len(paths) or min(map(len, taken), default=0) < fewest:
        return []
    if len(torch.cat(taken).unique()) < sum(map(len, taken)):
        return []
    pieces = []
    for path, each in zip(paths, taken, strict=True):
        assert path is not None
        bias = None if linear.bias is None else linear.bias[each]
        pieces.append(linear.with_constants(linear.weight[each], bias, "piece"))
        _write(path, pieces[-1])
    return pieces


def _paths(node: Node, moves: list[Node]) -> Iterator[list[Node] | None]:
    """Yield the path to each slice, the slice included; None for a reader that leads to no slice."""
    for user in node.users:
        if is_relabel(user) or _is_elementwise(user):
            yield from _paths(user, [*moves, user])
        else:
            yield [*moves, user] if user.target is aten.slice.Tensor else None


def _is_elementwise(node: Node) -> bool:
    """Return whether a call computes each element from the one at the same place in its only operand."""
    if not elements_of(node.target).is_pointwise:
        return False
    return [shape_of(each) for each in node.all_input_nodes] == [shape_of(node)]


def _rows(linear: Linear, path: list[Node]) -> Tensor | None:
    """Return the channels of a slice in its own sequence, or None if it cuts anything else."""
    *moves, cut = path
    _, _, start, end, step = args_of(cut)
    part: _Part | None = _cut_part(cut)
    for move in reversed(moves):
        part = part and _before(move, part)
    features = shape_of(linear.node)[linear.features]
    if part is None or part.dim != linear.features:
        return None
    return torch.arange(features).reshape(-1, part.size, part.span)[:, start:end:step].reshape(-1)


def _cut_part(cut: Node) -> _Part:
    source, dim, *_ = args_of(cut)
    return _Part(dim, shape_of(source)[dim], 1)


def _before(move: Node, part: _Part) -> _Part | None:
    """Return a factor of a dimension before a move, or None if it lies in several dimensions."""
    if move.target is aten.permute.default:
        return replace(part, dim=args_of(move)[1][part.dim])
    if move.target is not aten.reshape.default:
        return part
    given, made = shape_of(args_of(move)[0]), shape_of(move)
    span = math.prod(made[part.dim + 1 :]) * part.span
    for dim, size in enumerate(given):
        inner = math.prod(given[dim + 1 :])
        if span % inner == 0 and size * inner % (span * part.size) == 0:
            return _Part(dim, part.size, span // inner)
    return None


def _write(path: list[Node], made: Node) -> None:
    """Write the same moves for one piece, in place of the slice."""
    *moves, cut = path
    graph = cut.graph
    with graph.inserting_before(cut):
        for move, shape in zip(moves, _shapes(path), strict=True):
            if move.target is aten.reshape.default:
                if shape == shape_of(made):
                    continue
                made = graph.call_function(move.target, (made, list(shape)))
            else:
                (read,) = move.all_input_nodes
                made = graph.node_copy(move, {read: made}.__getitem__)
            copy_meta(made, move, move.meta["val"].new_empty(shape))
    cut.replace_all_uses_with(made)


def _shapes(path: list[Node]) -> list[tuple[int, ...]]:
    """Return the shape that each move gives for the piece of a slice."""
    *moves, cut = path
    part: _Part | None = _cut_part(cut)
    count, shapes = shape_of(cut)[args_of(cut)[1]], []
    for move in reversed(moves):
        assert part is not None
        shape = list(shape_of(move))
        shape[part.dim] = shape[part.dim] // part.size * count
        shapes.append(tuple(shape))
        part = _before(move, part)
    return shapes[::-1]
