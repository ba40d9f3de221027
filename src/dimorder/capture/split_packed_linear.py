"""Split a linear or convolution whose result is only sliced: into one per slice, with rows of the weight.

Examples are packed projections of attention. The split saves slices, which copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import GraphModule, Node, map_arg

from dimorder.capture.linears import Linear, is_relabel
from dimorder.capture.slice_attention_heads import reshaped
from dimorder.graph.nodes import args_of
from dimorder.graph.prediction import add_predicted
from dimorder.graph.tracing import shape_of
from dimorder.ops.table import elements_of

aten = torch.ops.aten


def split_packed_linear(module: GraphModule, fewest: int) -> None:
    """Replace a linear or convolution and the slices of its channels by one per piece, in place.

    All stay together if pieces share channels, or if one would have fewer than `fewest` of them.

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
    _, _, start, end, step = args_of(path[-1])
    parts = _parts(path)
    if not parts or parts[0].dim != linear.features:
        return None
    rows = torch.arange(shape_of(linear.node)[linear.features])
    return rows.reshape(-1, parts[0].size, parts[0].span)[:, start:end:step].reshape(-1)


def _parts(path: list[Node]) -> list[_Part]:
    """Return what a slice cuts, before the first move of its path and after each, or nothing."""
    *moves, cut = path
    source, dim, *_ = args_of(cut)
    parts = [_Part(dim, shape_of(source)[dim], 1)]
    for move in reversed(moves):
        part = _before(move, parts[0])
        if part is None:
            return []
        parts.insert(0, part)
    return parts


def _before(move: Node, part: _Part) -> _Part | None:
    """Return a factor of a dimension before a move, or None if it lies in several dimensions."""
    if move.target is aten.permute.default:
        return replace(part, dim=args_of(move)[1][part.dim])
    if move.target is not aten.reshape.default:
        return part
    before = shape_of(args_of(move)[0])
    span = math.prod(shape_of(move)[part.dim + 1 :]) * part.span
    for dim, size in enumerate(before):
        inner = math.prod(before[dim + 1 :])
        if span % inner == 0 and size * inner % (span * part.size) == 0:
            return _Part(dim, part.size, span // inner)
    return None


def _write(path: list[Node], piece: Node) -> None:
    """Write the same moves for one piece, in place of the slice."""
    *moves, cut = path
    count = shape_of(cut)[args_of(cut)[1]]
    with cut.graph.inserting_before(cut):
        for move, part in zip(moves, _parts(path)[1:], strict=True):
            if move.target is aten.reshape.default:
                shape = list(shape_of(move))
                shape[part.dim] = shape[part.dim] // part.size * count
                piece = reshaped(move, piece, shape)
            else:
                args, kwargs = map_arg((move.args, move.kwargs), {move.all_input_nodes[0]: piece}.__getitem__)
                piece = add_predicted(move, move.target, *args, **kwargs)
    cut.replace_all_uses_with(piece)
