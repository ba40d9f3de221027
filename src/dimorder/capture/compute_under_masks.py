"""Compute for all elements what a network computes of those under a mask, and choose by the mask.

`x[mask] = f(x[mask])` computes as many elements as the data decide, and no target has such sizes. If `f`
computes each place from itself alone, `torch.where(mask, f(x), x)` is the same. A sum or a mean of selected
places is one over all places, of zeros elsewhere. `rows, columns = torch.where(mask)` select the same places.
If `x[rows]` has a row for several of them, their values are added to it, or the last one is written to it.
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
from torch.export import ExportedProgram
from torch.fx import Node, map_arg
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols
from torch.utils._sympy.value_ranges import bound_sympy

from dimorder.capture.indexed_places import (
    READS,
    RESHAPES,
    SOURCES,
    WRITES,
    Indexed,
    Places,
    coordinates_in,
    gathered,
    indexed,
    spread,
    write_call,
)
from dimorder.capture.refusals import sized_by_data
from dimorder.graph.construct import replace_parts
from dimorder.graph.elements import AT_THEIR_PLACES
from dimorder.graph.exported import copy_graph
from dimorder.graph.half_numbers import HALVES
from dimorder.graph.nodes import (
    VALUE,
    are_equal_shapes,
    args_of,
    bound,
    equal_calls,
    is_getitem,
    replace_named,
    results,
    tensor_of,
    tensors_in,
)
from dimorder.ops.table import elements_of

aten = torch.ops.aten

# Operators that divide by zero only where the mask is false raise an error for integers.
_DIVIDE = ("div", "floor_divide", "remainder", "fmod")
# Operators along some dimensions, and the place of these among the arguments.
_ALONG: Mapping[Any, int] = MappingProxyType(
    {
        **dict.fromkeys((aten.softmax.int, aten.log_softmax.int, aten.slice.Tensor, aten.select.int), 1),
        **dict.fromkeys((aten.glu.default, aten.unbind.int, aten.max.dim, aten.min.dim), 1),
        **dict.fromkeys((aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.amin.default), 1),
        **dict.fromkeys((aten.std.dim, aten.std.correction, aten.var.dim, aten.var.correction), 1),
        **dict.fromkeys(
            (aten.split.Tensor, aten.split_with_sizes.default, aten.linalg_vector_norm.default), 2
        ),
    }
)
# Products of rows with one matrix, and the operators that compute them for any number of dimensions.
_OF_ROWS: Mapping[Any, Any] = MappingProxyType(
    {aten.linear.default: aten.linear.default, aten.mm.default: aten.matmul.default}
)
_EXACT = 2**24  # float32 has every integer up to this one
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
        return results(self.whole)[0].dim() - tensor_of(self.mask).dim() - self.dim


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
    if not any(node.target in SOURCES and sized_by_data(node) for node in program.graph.nodes):
        return program
    try:
        functional: ExportedProgram = program.run_decompositions({})
    except GuardOnDataDependentSymNode:  # an operator takes another way if no place is selected
        return program
    graph = copy_graph(functional.graph)
    coordinates = coordinates_in(graph)
    equal, selected = equal_calls(graph), dict[Node, _Selected]()
    for node in list(graph.nodes):
        found = indexed(node, coordinates, equal)
        if found is not None and node.target in READS:
            selected[node] = _Selected(spread(node, found), found.places.mask, found.dim)
        elif (computed := _computed(node, selected, equal)) is not None:
            selected[node] = computed
        elif found is not None and (written := _written(node, found, selected, equal)) is not None:
            replace_named(node, written)
        elif (total := _total(node, selected)) is not None:
            replace_named(node, total)
    places: dict[Node, Places | _Selected] = {**coordinates, **selected}
    masks = {each: found.mask for node, found in places.items() for each in _numbers(node)}
    ranges = {each: span for each, span in functional.range_constraints.items() if each not in masks}
    holds = partial(_holds, masks=masks, equal=equal, ranges=ranges)
    if not all(_erase(node, holds) for node in reversed(places)):
        return program
    return replace_parts(functional, graph=graph, range_constraints=ranges)


def _computed(node: Node, selected: Mapping[Node, _Selected], equal: Mapping[str, str]) -> _Selected | None:
    """Return what a node computes of selected places, with a call that computes it of all places."""
    read = [each for each in node.all_input_nodes if each in selected]
    if not read or not tensors_in(node.meta.get(VALUE)):
        return None
    first = selected[read[0]]
    if node.target in RESHAPES or node.target is aten.expand.default:
        return _reshaped(node, first)
    alike = {(equal[each.mask.name], each.dim, each.after) for each in map(selected.__getitem__, read)}
    others = [each.meta[VALUE] for each in node.all_input_nodes if each not in selected]
    if len(alike) > 1 or not _is_of_each_place(node, read, others, first.after):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: selected[n].whole if n in selected else n)
    place = _ALONG.get(node.target)
    if place is not None:
        args = (*args[:place], _from_end(_along(node), tensor_of(read[0]).dim()), *args[place + 1 :])
    target = _OF_ROWS.get(node.target, node.target)
    return _Selected(write_call(node, target, args, kwargs), first.mask, first.dim)


def _is_of_each_place(node: Node, read: Sequence[Node], others: Sequence[Any], after: int) -> bool:
    """Return whether a call computes each selected place from itself, and from what is the same for all."""
    target: Any = node.target
    args: Any = node.args
    if elements_of(target).is_pointwise and target.namespace == "aten":
        divides = not tensor_of(node).is_floating_point() and target._opname in _DIVIDE
        rank = tensor_of(read[0]).dim()
        return not divides and all(
            each.dim() <= rank and _are_units(each.shape[: max(each.dim() - after, 0)])
            if isinstance(each, Tensor)
            else not free_unbacked_symbols(each)
            for each in others
        )
    if [*read] != [args[0]]:
        return False
    if target in AT_THEIR_PLACES or is_getitem(node):
        return True
    if target in (aten.layer_norm.default, aten.rms_norm.default):
        return len(args[1]) <= after
    if target in _ALONG:
        along = _along(node)
        dims = along if isinstance(along, Sequence) else [along]
        return bool(dims) and None not in dims and min(_from_end(dims, tensor_of(read[0]).dim())) >= -after
    by_rows = target in _OF_ROWS or (target is aten.matmul.default and others[0].dim() == 2)
    return by_rows and after > 0


def _along(node: Node) -> Any:
    """Return the dimensions along which an operator computes, or the one."""
    return [*bound(node.target, node.args, node.kwargs).values()][_ALONG[node.target]]


def _from_end(dims: Any, rank: int) -> Any:
    """Return dimensions, or one, counted from the last one: -1 is the last one."""
    return [dim % rank - rank for dim in dims] if isinstance(dims, Sequence) else dims % rank - rank


def _reshaped(node: Node, found: _Selected) -> _Selected | None:
    """Return what a reshape or a repetition makes of all places, if it leaves each place apart."""
    old, new, after = tensor_of(node.all_input_nodes[0]).shape, tensor_of(node).shape, found.after
    dim, whole = found.dim, found.whole
    if _are_units(old[:dim]):  # such dimensions come and go
        dim = next((each for each, size in enumerate(new) if not _are_units([size])), len(new))
    last = list(new[dim + 1 :])
    is_apart = are_equal_shapes(new[dim : dim + 1], old[found.dim : found.dim + 1])
    is_apart = is_apart and (_are_units(new[:dim]) or are_equal_shapes(new[:dim], old[:dim]))
    if not is_apart or not all(isinstance(size, int) for size in last):
        return None
    for _ in range(dim, found.dim):
        whole = write_call(node, aten.squeeze.dim, (whole, 0))
    for _ in range(found.dim, dim):
        whole = write_call(node, aten.unsqueeze.default, (whole, 0))
    if node.target is aten.expand.default:
        kept = tensor_of(whole).dim() - after
        if len(last) != after:
            return None
        return _Selected(write_call(node, node.target, (whole, [-1] * kept + last)), found.mask, dim)
    whole = write_call(node, aten.unsqueeze.default, (whole, -1))
    if after:
        whole = write_call(node, aten.flatten.using_ints, (whole, -after - 1, -1))
    reshape, *sizes = (aten.unflatten.int, last) if last else (aten.squeeze.dim,)
    return _Selected(write_call(node, reshape, (whole, -1, *sizes)), found.mask, dim)


def _are_units(sizes: Sequence[Any]) -> bool:
    return are_equal_shapes(sizes, [1] * len(sizes))


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
    total = _sum(node, found.mask, found.whole, found.after, over, dtype)
    if node.target in _MEANS:
        count = write_call(node, aten.sum.default, (found.mask,), {"dtype": tensor_of(total).dtype})
        count = write_call(node, aten.mul.Tensor, (count, math.prod(others)))
        total = write_call(node, aten.div.Tensor, (total, count))
    total = _cast(node, total, dtype)
    for dim in dims if keeps else ():
        total = write_call(node, aten.unsqueeze.default, (total, dim))
    return total


def _written(
    node: Node, to: Indexed, selected: Mapping[Node, _Selected], equal: Mapping[str, str]
) -> Node | None:
    """Return what a call leaves that writes to places, if it writes what was computed of all places."""
    value, after, mask = args_of(node)[WRITES[node.target]], to.after, to.places.mask
    if value in selected:
        found = selected[value]
        is_there = (equal[found.mask.name], found.dim, found.after) == (equal[mask.name], to.dim, after)
        whole = found.whole
    else:
        is_there = node.target is not aten.masked_scatter.default and tensor_of(value).dim() <= after
        whole = value
    if not is_there:
        return None
    repeated = [dim - tensor_of(mask).dim() for dim in to.places.repeated]
    dims, dtype = [dim - after for dim in repeated], tensor_of(node).dtype
    call = bound(node.target, node.args, node.kwargs)
    if call.get("accumulate", node.target is aten.index_add.default):
        total = _cast(node, _sum(node, mask, whole, after, dims, dtype), dtype)
        total = gathered(node, to, total, after)
        return write_call(node, aten.add.Tensor, (to.x, total), {"alpha": call.get("alpha", 1)})
    if repeated and value in selected:
        if _are_units([tensor_of(whole).shape[dim] for dim in dims]):
            whole = write_call(node, aten.squeeze.dims, (whole, dims))
        elif (last := _last(node, mask, repeated)) is not None:
            whole = _cast(node, _sum(node, last, whole, after, dims, dtype), dtype)
        else:
            return None
    if repeated:
        mask = write_call(node, aten.any.dims, (mask, repeated))
    if value in selected:
        whole = gathered(node, to, whole, after)
    mask = _raised(node, gathered(node, to, mask, 0), after)
    return write_call(node, aten.where.self, (mask, whole, to.x))


def _last(place: Node, mask: Node, dims: Sequence[int]) -> Node | None:
    """Return the mask of the last place alone along some dimensions: torch writes this one last."""
    sizes = tensor_of(mask).shape
    shape = [sizes[dim] if dim in dims else 1 for dim in range(-len(sizes), 0)]
    if not all(isinstance(size, int) for size in shape) or math.prod(shape) > _EXACT:
        return None
    options = {"dtype": torch.float32, "device": tensor_of(mask).device}
    numbers = write_call(place, aten.arange.start, (1, math.prod(shape) + 1), options)
    numbers = write_call(place, aten.view.default, (numbers, shape))
    kept = write_call(place, aten.where.ScalarOther, (mask, numbers, 0))
    last = write_call(place, aten.eq.Tensor, (kept, write_call(place, aten.amax.default, (kept, dims, True))))
    return write_call(place, aten.logical_and.default, (mask, last))


def _sum(place: Node, mask: Node, whole: Node, after: int, dims: Sequence[int], dtype: torch.dtype) -> Node:
    """Return the sum of a value under a mask along some dimensions, in float32 for half precision."""
    kept = write_call(place, aten.where.ScalarOther, (_raised(place, mask, after), whole, 0))
    wide = {"dtype": torch.float32 if dtype in HALVES else dtype}
    return write_call(place, aten.sum.dim_IntList, (kept, dims, False), wide) if dims else kept


def _cast(place: Node, x: Node, dtype: torch.dtype) -> Node:
    return (
        x if tensor_of(x).dtype == dtype else write_call(place, aten._to_copy.default, (x,), {"dtype": dtype})
    )


def _raised(place: Node, mask: Node, after: int) -> Node:
    """Return the mask with the dimensions that follow the selected places."""
    for _ in range(after):
        mask = write_call(place, aten.unsqueeze.default, (mask, -1))
    return mask


def _numbers(node: Node) -> set[sympy.Symbol]:
    """Return the symbols of sizes that data decide."""
    return {symbol for value in tensors_in(node.meta[VALUE]) for symbol in free_unbacked_symbols(value)}


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
