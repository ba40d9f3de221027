"""Decompose adaptive pools of dynamic sizes: their windows are other ones at each size.

1. A dimension that is pooled to one element is reduced.
2. A dimension that the number of windows divides at every size is cut into windows, which are reduced.
3. Dimensions of fixed sizes are pooled afterwards.
4. If windows overlap at some sizes alone, the pool stays, with a note that no kernel fits all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._sympy.functions import PythonMod

from dimorder.capture.claims import holds
from dimorder.graph.construct import replace_parts
from dimorder.graph.exported import copy_graph
from dimorder.graph.nodes import UNEVEN, VALUE, args_of, replace_named, set_meta
from dimorder.graph.prediction import computed_before
from dimorder.graph.tracing import quotient

aten = torch.ops.aten

# What each adaptive pool computes of a window.
_POOLS: Mapping[Any, Any] = MappingProxyType(
    {
        aten.adaptive_avg_pool1d.default: aten.mean.dim,
        aten.adaptive_avg_pool2d.default: aten.mean.dim,
        aten._adaptive_avg_pool2d.default: aten.mean.dim,
        aten.adaptive_avg_pool3d.default: aten.mean.dim,
        aten._adaptive_avg_pool3d.default: aten.mean.dim,
        aten.adaptive_max_pool1d.default: aten.amax.default,
        aten.adaptive_max_pool2d.default: aten.amax.default,
        aten.adaptive_max_pool3d.default: aten.amax.default,
    }
)


def decompose_dynamic_pool(exported: ExportedProgram) -> ExportedProgram:
    """Write adaptive pools of dynamic sizes as reductions.

    >>> height = torch.export.Dim("H", min=2, max=40)
    >>> pool = torch.nn.AdaptiveMaxPool2d((1, 3))
    >>> exported = torch.export.export(pool, (torch.ones(2, 4, 8, 9),), dynamic_shapes=({2: height},))
    >>> program = decompose_dynamic_pool(exported)
    >>> for node in program.graph.find_nodes(op="call_function", target=aten.amax.default):
    ...     print(*node.args[1:])
    [-2] True
    """
    if not any(map(_is_dynamic, exported.graph.nodes)):
        return exported
    graph = copy_graph(exported.graph)
    for node in list(filter(_is_dynamic, graph.nodes)):
        _rewrite(node, exported.range_constraints)
    graph.eliminate_dead_code()
    return replace_parts(exported, graph=graph)


def _is_dynamic(node: Node) -> bool:
    return node.target in _POOLS and any(
        isinstance(size, torch.SymInt) for pair in _pairs(node) for size in pair
    )


def _pairs(node: Node) -> list[tuple[Any, Any]]:
    """Return the size of each pooled dimension, before and after."""
    x, sizes = args_of(node)
    new = [each.meta[VALUE] if isinstance(each, Node) else each for each in sizes]
    return list(zip(x.meta[VALUE].shape[-len(new) :], new, strict=True))


def _rewrite(node: Node, ranges: Mapping[Any, Any]) -> None:
    """Replace a pool by reductions along the dimensions that are cut into equal windows at every size."""
    pairs, (x, sizes) = _pairs(node), args_of(node)
    equal = [_is_divided(*pair, ranges) for pair in pairs]
    rest = [pair for each, pair in zip(equal, pairs, strict=True) if not each]
    results = _results(node)
    if not any(equal) or (1 in results and any(new != 1 for _, new in pairs)):
        set_meta(node, UNEVEN, any(_is_uneven(*pair) for pair in pairs))
        return
    y = _reduce(node, x, [new for _, new in pairs], equal)
    if any(quotient(*pair) != 1 for pair in rest):
        y = computed_before(node, node.target, y, sizes)
        set_meta(y, UNEVEN, any(_is_uneven(*pair) for pair in rest))
        y = y if node in results.values() else computed_before(node, getitem, y, 0)
    for i, result in results.items():
        replace_named(result, y if i == 0 else _place(node, x, len(pairs)))


def _results(node: Node) -> dict[int, Node]:
    """Return the results of a pool that are read, by their place: the largest elements and their places."""
    if isinstance(node.meta[VALUE], torch.Tensor):
        return {0: node}
    return {int(args_of(user)[1]): user for user in node.users if user.users}


def _is_divided(old: Any, new: Any, ranges: Mapping[Any, Any]) -> bool:
    """Return whether a dimension is cut into a fixed number of equal windows, at every size."""
    if not isinstance(new, int) or not isinstance(old, torch.SymInt):
        return bool(new == 1)
    return new == 1 or holds(sympy.Eq(PythonMod(old.node.expr, sympy.Integer(new)), 0), ranges)


def _is_uneven(old: Any, new: Any) -> bool:
    """Return whether the windows of a dimension have other sizes at other sizes of the dimension."""
    return not quotient(old, new).is_number


def _reduce(node: Node, x: Node, new: Sequence[int], equal: Sequence[bool]) -> Node:
    """Reduce each window of those dimensions that are cut into equal ones."""
    reduction = _POOLS[node.target]
    dims = [dim for dim, is_equal in enumerate(equal, -len(equal)) if is_equal]
    if all(new[dim] == 1 for dim in dims):
        return computed_before(node, reduction, x, dims, True)
    for dim in dims:  # what follows keeps its place, counted from the end
        x = computed_before(node, aten.unflatten.int, x, dim, [new[dim], -1])
    windows = [dim - sum(other > dim for other in dims) for dim in dims]
    return computed_before(node, reduction, x, windows, False)


def _place(node: Node, x: Node, rank: int) -> Node:
    """Return the place in its plane of the largest element."""
    plane = computed_before(node, aten.flatten.using_ints, x, -rank, -1)
    place = computed_before(node, aten.argmax.default, plane, -1, True)
    for _ in range(rank - 1):
        place = computed_before(node, aten.unsqueeze.default, place, -1)
    return place
