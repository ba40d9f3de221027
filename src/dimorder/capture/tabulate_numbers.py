"""Write numbers that a network computes from dynamic sizes as slices of a constant: entries of a table.

A network may divide by its number of tokens, scale by `n ** -0.5`, or write `n` into a tensor. Such a number
is another constant at each size. It depends on one integer, and the table has an entry for each value of it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any, TypeAlias

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node, map_arg
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from dimorder.graph.exported import add_constants, copy_graph
from dimorder.graph.nodes import VALUE, args_of, call_before, replace_named, set_value, tensor_of
from dimorder.graph.prediction import computed_before
from dimorder.ops.dialect import SLICE_CONSTANT

aten = torch.ops.aten

Limits: TypeAlias = Mapping[sympy.Symbol, ValueRanges[Any]]

_MOST = 2**16  # entries of a table
_ARITHMETIC = (aten.add.Tensor, aten.sub.Tensor, aten.rsub.Scalar, aten.mul.Tensor, aten.div.Tensor)
_MADE = (aten.full.default, aten.scalar_tensor.default)  # a tensor of one number
_FLOATS = (torch.float32, torch.float64)  # beside a half, torch does not round a number to a half


def tabulate_numbers(exported: ExportedProgram, limits: Limits) -> ExportedProgram:
    """Write each number from sizes that scales or shifts floats, or becomes a tensor, as an entry of a table.

    `limits` are the ranges of torch's symbols.

    >>> class Scaled(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * x.shape[1] ** -0.5
    >>> length = torch.export.Dim("N", min=4, max=40)
    >>> exported = torch.export.export(Scaled(), (torch.ones(2, 9),), dynamic_shapes=({1: length},))
    >>> program = tabulate_numbers(exported, exported.range_constraints)
    >>> [len(table) for table in program.state_dict.values()]
    [37]
    """
    if not any(_integer_of(_number_of(node), limits) for node in exported.graph.nodes):
        return exported
    graph, tables = copy_graph(exported.graph), dict[Node, torch.Tensor]()
    first = next(iter(graph.nodes))
    for node in list(graph.nodes):
        number = _number_of(node)
        integer = _integer_of(number, limits)
        if number is None or integer is None:
            continue
        values = _values(integer.meta[VALUE], limits)
        assert values is not None
        entries = [_entry(number, {integer: value}) for value in values]
        table = torch.tensor(entries, dtype=tensor_of(node).dtype)
        with graph.inserting_before(first):
            constant = graph.placeholder(f"table_of_{node.name}")
        tables[set_value(constant, tensor_of(node).new_empty(table.shape))] = table
        place = computed_before(node, operator.sub, integer, values.start)
        end = computed_before(node, operator.add, place, 1)
        entry = computed_before(node, SLICE_CONSTANT, constant, 0, place, end)
        if node.target in _MADE:
            shape = _shape_of(node)
            target, value = (aten.expand_copy.default if shape else aten.view_copy.default), node.meta[VALUE]
            replace_named(node, call_before(node, target, (entry, shape), value=value))
            continue
        x = args_of(node)[0]
        if not tensor_of(x).dtype.is_floating_point:
            node.update_arg(0, computed_before(node, aten._to_copy.default, x, dtype=table.dtype))
        if node.target is aten.rsub.Scalar:
            replace_named(node, call_before(node, aten.sub.Tensor, (entry, x), value=node.meta[VALUE]))
        else:
            node.update_arg(1, entry)
    graph.eliminate_dead_code()
    return add_constants(exported, graph, tables)


def _number_of(node: Node) -> Node | None:
    """Return the number which a call reads, and which a table may replace; None if there is none."""
    if node.target in _MADE:
        number = args_of(node)[-1]
        kept = (*_FLOATS, torch.int64, torch.int32)
        return number if isinstance(number, Node) and tensor_of(node).dtype in kept else None
    if node.target not in _ARITHMETIC or node.kwargs or len(node.args) != 2:
        return None
    x, number = args_of(node)
    if not all(isinstance(each, Node) for each in (x, number)):
        return None
    value = x.meta[VALUE]
    if not isinstance(value, torch.Tensor) or not value.dim():
        return None
    divides = node.target is aten.div.Tensor and not value.dtype.is_floating_point  # integers, to a float
    return number if (tensor_of(node) if divides else value).dtype in _FLOATS else None


def _shape_of(node: Node) -> list[Any]:
    """Return the shape of a tensor that is made of one number."""
    shape: Any = [] if node.target is aten.scalar_tensor.default else args_of(node)[0]
    return list(shape)


def _integer_of(number: Node | None, limits: Limits) -> Node | None:
    """Return the integer that decides a number; None if a table does not replace it."""
    integers = set[Node]() if number is None else _integers(number)
    while len(integers) == 1:
        (found,) = integers
        integers = set[Node]().union(*map(_integers, found.all_input_nodes))
        if len(integers) != 1:
            return None if _values(found.meta[VALUE], limits) is None else found
    return None


def _integers(number: Node) -> set[Node]:
    """Return the integers from which a number is computed; none for a tensor."""
    if isinstance(number.meta.get(VALUE), torch.SymFloat):
        return set[Node]().union(*map(_integers, number.all_input_nodes))
    return {number} if isinstance(number.meta.get(VALUE), torch.SymInt) else set()


def _values(size: torch.SymInt, limits: Limits) -> range | None:
    """Return the values of an integer; None if they are too many."""
    found = bound_sympy(size.node.expr, dict(limits))
    if not (found.lower.is_Integer and found.upper.is_Integer and found.upper - found.lower < _MOST):
        return None
    return range(int(found.lower), int(found.upper) + 1)


def _entry(number: Node, known: Mapping[Node, int]) -> Any:
    try:
        return _evaluated(number, known)
    except (ArithmeticError, TypeError):  # a division by zero, a complex root
        return math.nan


def _evaluated(number: Node, known: Mapping[Node, int]) -> Any:
    if number in known:
        return known[number]
    target: Any = number.target
    return target(*map_arg(number.args, lambda node: _evaluated(node, known)))
