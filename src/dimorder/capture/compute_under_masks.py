"""Compute for all elements what a network computes of those under a mask, and choose by the mask.

`x[mask] = f(x[mask])` computes as many elements as the data decide, and no target has such sizes. If `f`
computes each place from itself alone, `torch.where(mask, f(x), x)` is the same. A sum or a mean of selected
places is one over all places, of zeros elsewhere.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.fx import Node, map_arg
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols
from torch.utils._sympy.value_ranges import bound_sympy

from dimorder.capture.refusals import sized_by_data
from dimorder.graph.construct import replace_parts
from dimorder.graph.elements import COPIES
from dimorder.graph.exported import copy_graph
from dimorder.graph.half_numbers import HALVES
from dimorder.graph.nodes import VALUE, add_call, are_equal_shapes, equal_calls, replace_named, tensor_of
from dimorder.ops.table import elements_of

aten = torch.ops.aten

# Operators that divide by zero only where the mask is false raise an error for integers.
_DIVIDE = ("div", "floor_divide", "remainder", "fmod")
# Operators along some dimensions, and the place of these among the arguments.
_ALONG: Mapping[Any, int] = MappingProxyType(
    {
        **dict.fromkeys((aten.softmax.int, aten.log_softmax.int, aten.slice.Tensor, aten.select.int), 1),
        **dict.fromkeys((aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.amin.default), 1),
        **dict.fromkeys((aten.std.dim, aten.std.correction, aten.var.dim, aten.var.correction), 1),
        aten.linalg_vector_norm.default: 2,
    }
)
_RESHAPES = frozenset(
    {
        *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints),
        *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unflatten.int),
    }
)
_SUMS = (aten.sum.default, aten.sum.dim_IntList)
_MEANS = (aten.mean.default, aten.mean.dim)
# What torch writes of the number of elements, to assert that it is one.
_NUMBERS = (aten.sym_size.int, operator.ge, operator.le, operator.gt, operator.lt, operator.eq)


@dataclass(frozen=True)
class _Selected:
    """A value of the places that a mask selects.

    Attributes:
        whole: The same value of all places: it has the mask's dimensions in place of the dimension `dim`.
        mask: The mask.
        dim: The dimension of the selected places.
    """

    whole: Node
    mask: Node
    dim: int

    @property
    def after(self) -> int:
        """The number of dimensions after that of the selected places."""
        return tensor_of(self.whole).dim() - tensor_of(self.mask).dim() - self.dim


def compute_under_masks(program: ExportedProgram) -> ExportedProgram:
    """Return the program without selections by masks, if it writes what it computes of them under the masks.

    >>> class Leaky(torch.nn.Module):
    ...     def forward(self, x):
    ...         y = x.clone()
    ...         y[x < 0] = x[x < 0] * 0.1
    ...         return y
    >>> program = compute_under_masks(torch.export.export(Leaky(), (torch.randn(2, 3),)))
    >>> [node.name for node in program.graph.nodes if "index" in str(node.target)]
    []
    """
    if not any(map(_selection, program.graph.nodes)):
        return program
    try:
        functional: ExportedProgram = program.run_decompositions({})
    except GuardOnDataDependentSymNode:  # an operator takes another way if no place is selected
        return program
    graph = copy_graph(functional.graph)
    equal, selected = equal_calls(graph), dict[Node, _Selected]()
    for node in list(graph.nodes):
        found = _selection(node) or _computed(node, selected, equal)
        if found is not None:
            selected[node] = found
        elif (put := _put(node, selected, equal)) is not None:
            _choose(node, put)
        elif (total := _total(node, selected)) is not None:
            replace_named(node, total)
    masks = {each: found.mask for node, found in selected.items() for each in _numbers(node)}
    ranges = {each: span for each, span in functional.range_constraints.items() if each not in masks}
    holds = partial(_holds, masks=masks, equal=equal, ranges=ranges)
    if not all(_erase(node, holds) for node in reversed(selected)):
        return program
    return replace_parts(functional, graph=graph, range_constraints=ranges)


def _selection(node: Node) -> _Selected | None:
    """Return what a node selects by a mask alone."""
    if node.target not in (aten.index.Tensor, aten.masked_select.default) or not sized_by_data(node):
        return None
    args: Any = node.args
    x, (*before, mask) = args if isinstance(args[1], list) else (args[0], args[1:])
    if node.target is aten.masked_select.default and tensor_of(x).shape != tensor_of(mask).shape:
        return None
    if any(each is not None for each in before) or tensor_of(mask).dtype != torch.bool:
        return None
    return _Selected(x, mask, len(before))


def _computed(node: Node, selected: Mapping[Node, _Selected], equal: Mapping[str, str]) -> _Selected | None:
    """Return what a node computes of selected places, with a call that computes it of all places."""
    read = [each for each in node.all_input_nodes if each in selected]
    if not read or not isinstance(node.meta.get(VALUE), Tensor):
        return None
    first = selected[read[0]]
    if node.target in _RESHAPES or node.target is aten.expand.default:
        whole = _reshaped(node, first)
        return None if whole is None else _Selected(whole, first.mask, first.dim)
    alike = {(equal[each.mask.name], each.dim, each.after) for each in map(selected.__getitem__, read)}
    others = [each.meta[VALUE] for each in node.all_input_nodes if each not in selected]
    if len(alike) > 1 or not _is_of_each_place(node, read, others, first.after):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: selected[n].whole if n in selected else n)
    place = _ALONG.get(node.target)
    if place is not None:
        args = (*args[:place], _from_end(args[place], tensor_of(read[0]).dim()), *args[place + 1 :])
    return _Selected(_call(node, node.target, args, kwargs), first.mask, first.dim)


def _is_of_each_place(node: Node, read: Sequence[Node], others: Sequence[Any], after: int) -> bool:
    """Return whether a call computes each selected place from itself, and from what is the same for all."""
    target: Any = node.target
    args: Any = node.args
    if elements_of(target).is_pointwise and target.namespace == "aten":
        divides = not tensor_of(node).is_floating_point() and target._opname in _DIVIDE
        return not divides and all(
            each.dim() <= after if isinstance(each, Tensor) else not free_unbacked_symbols(each)
            for each in others
        )
    if [*read] != [args[0]]:
        return False
    if target in COPIES or target is aten.to.dtype:
        return True
    if target is aten.layer_norm.default:
        return len(args[1]) <= after
    if target in _ALONG:
        dims = next(iter(args[_ALONG[target] :]), None)
        dims = dims if isinstance(dims, Sequence) else [dims]
        return bool(dims) and None not in dims and min(_from_end(dims, tensor_of(read[0]).dim())) >= -after
    by_rows = target is aten.linear.default or (target is aten.matmul.default and others[0].dim() == 2)
    return by_rows and after > 0


def _from_end(dims: Any, rank: int) -> Any:
    """Return dimensions, or one, counted from the last one: -1 is the last one."""
    return [dim % rank - rank for dim in dims] if isinstance(dims, Sequence) else dims % rank - rank


def _reshaped(node: Node, found: _Selected) -> Node | None:
    """Return what a reshape or a repetition makes of all places, if it leaves each place apart."""
    old, new, lead = tensor_of(node.all_input_nodes[0]).shape, tensor_of(node).shape, found.dim + 1
    after, last = found.after, list(new[lead:])
    is_apart = len(new) >= lead and are_equal_shapes(old[:lead], new[:lead])
    if not is_apart or not all(isinstance(size, int) for size in last):
        return None
    if node.target is aten.expand.default:
        kept = tensor_of(found.whole).dim() - after
        return _call(node, node.target, (found.whole, [-1] * kept + last)) if len(last) == after else None
    row = _call(node, aten.unsqueeze.default, (found.whole, -1))
    if after:
        row = _call(node, aten.flatten.using_ints, (row, -after - 1, -1))
    if not last:
        return _call(node, aten.squeeze.dim, (row, -1))
    return _call(node, aten.unflatten.int, (row, -1, last))


def _total(node: Node, selected: Mapping[Node, _Selected]) -> Node | None:
    """Return the sum or the mean over the places that a mask selects as one over all places."""
    args: Any = node.args
    if node.target not in (*_SUMS, *_MEANS) or args[0] not in selected:
        return None
    found, shape, dtype = selected[args[0]], tensor_of(args[0]).shape, tensor_of(node).dtype
    dims, keeps = [*args[1:], None, False][:2] if len(args) < 3 else args[1:3]
    dims = sorted(dim % len(shape) for dim in dims or range(len(shape)))
    others = [shape[dim] for dim in dims if dim != found.dim]
    if found.dim not in dims or not all(isinstance(size, int) for size in others):
        return None
    more = tensor_of(found.mask).dim() - 1
    own = range(found.dim, found.dim + more + 1)
    over = [*own, *(dim + more * (dim > found.dim) for dim in dims if dim != found.dim)]
    kept = _call(node, aten.where.ScalarOther, (_raised(node, found), found.whole, 0))
    wide = torch.float32 if dtype in HALVES else dtype
    total = _call(node, aten.sum.dim_IntList, (kept, over, False), {"dtype": wide})
    if node.target in _MEANS:
        count = _call(node, aten.sum.default, (found.mask,), {"dtype": wide})
        count = _call(node, aten.mul.Tensor, (count, math.prod(others)))
        total = _call(node, aten.div.Tensor, (total, count))
    if wide != dtype:
        total = _call(node, aten._to_copy.default, (total,), {"dtype": dtype})
    for dim in dims if keeps else ():
        total = _call(node, aten.unsqueeze.default, (total, dim))
    return total


def _put(node: Node, selected: Mapping[Node, _Selected], equal: Mapping[str, str]) -> _Selected | None:
    """Return what a node writes at the places that a mask selects, if it was computed of all these places."""
    args: Any = node.args
    if node.target not in (aten.index_put.default, aten.masked_scatter.default) or args[2] not in selected:
        return None
    x, places, value, *accumulates = args
    found = selected[value]
    *before, mask = places if isinstance(places, list) else [places]
    is_there = len(before) == found.dim and all(each is None for each in before) and not any(accumulates)
    if not is_there or not isinstance(mask, Node) or equal[mask.name] != equal[found.mask.name]:
        return None
    is_whole = isinstance(places, list) or tensor_of(mask).shape == tensor_of(x).shape
    return found if is_whole and tensor_of(x).shape == tensor_of(found.whole).shape else None


def _choose(node: Node, found: _Selected) -> None:
    """Let a choice by the mask take the place of a write."""
    replace_named(node, _call(node, aten.where.self, (_raised(node, found), found.whole, node.args[0])))


def _raised(node: Node, found: _Selected) -> Node:
    """Return the mask with the dimensions that follow the selected places."""
    mask = found.mask
    for _ in range(found.after):
        mask = _call(node, aten.unsqueeze.default, (mask, -1))
    return mask


def _call(place: Node, target: Any, args: Any, kwargs: Any = None) -> Node:
    """Write a call before a node, with its value."""
    values: Any = map_arg((args, kwargs or {}), lambda node: node.meta[VALUE])
    mode = detect_fake_mode(values)
    assert mode is not None
    with mode:
        value = target(*values[0], **values[1])
    with place.graph.inserting_before(place):
        return add_call(place.graph, target, args, kwargs, like=place, value=value)


def _numbers(node: Node) -> set[sympy.Symbol]:
    """Return the symbols of sizes that data decide."""
    return {*free_unbacked_symbols(tensor_of(node))}


def _erase(node: Node, holds: Callable[[Any], bool]) -> bool:
    """Erase a node that is read only to assert what holds. Return whether it is one."""
    for user in list(node.users):
        if user.target is aten._assert_scalar.default:
            if not holds(node.meta[VALUE].node.expr):
                return False
        elif user.target not in (*_NUMBERS, aten._assert_tensor_metadata.default):
            return False
        if not _erase(user, holds):
            return False
    node.graph.erase_node(node)
    return True


def _holds(
    condition: Any, masks: Mapping[sympy.Symbol, Node], equal: Mapping[str, str], ranges: dict[Any, Any]
) -> bool:
    """Return whether a condition holds for all numbers of places that one mask may select.

    Args:
        condition: the condition.
        masks: the mask by which each number is selected.
        equal: for each mask the first one that is the same, by name.
        ranges: the ranges of the dynamic sizes.
    """
    numbers = [symbol for symbol in condition.free_symbols if symbol in masks]
    if len({equal[masks[symbol].name] for symbol in numbers}) != 1:
        return False
    count = numbers[0]
    condition = condition.subs(dict.fromkeys(numbers, count))
    if condition == sympy.true:
        return True
    if not isinstance(condition, (sympy.Ge, sympy.Le)):
        return False
    above = condition.gts - condition.lts
    if above.diff(count).has(count):  # its least value is not at an end
        return False
    places = tensor_of(masks[count]).numel()
    ends = (0, places if isinstance(places, int) else places.node.expr)
    return all(bound_sympy(above.subs(count, end), ranges).lower >= 0 for end in ends)
