"""Define operators that read and write row-major tensors: unknown ones, and those that return positions."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import args_of, results
from dimorder.graph.tracing import shape_of
from dimorder.ops.call import Call
from dimorder.ops.operator import Implementation, Operator, Spell
from dimorder.ops.problem_map import dimension_axes
from dimorder.ops.relation import Relation, dims_of

# Operators that return a copy of their first operand: dense if that is dense. Others may return a view.
_COPIES = frozenset({torch.ops.aten.index_put.default})


def opaque(node: torch.fx.Node, operands: Sequence[torch.fx.Node], reason: str) -> Relation:
    """Return the relation of a call whose operands and results are row-major, with the reason."""
    reads = [dims_of((f"x{i}", size) for size in shape_of(operand)) for i, operand in enumerate(operands)]
    writes = [dims_of((f"y{i}", size) for size in value.shape) for i, value in enumerate(results(node))]
    names = [name for dims in (*reads, *writes) for dim in dims for name, _ in dim]
    return Relation("opaque", tuple(reads), tuple(writes), blocks=frozenset(names), reason=reason)


def _lower(c: Call) -> None:
    """Lower an operator to itself, on row-major operands in their logical shapes."""
    dynamic = iter(range(len(c.site.reads)))

    def take(source: torch.fx.Node) -> torch.fx.Node:
        if source.op == "get_attr":
            return c.b.constant(str(source.target), c.b.value_of(source))
        i = next(dynamic)
        view = c.site.views[i]
        return c.b.shaped(view.buffer, c.dynamic[i], dimension_axes(view, shape_of(source), c.b.buffers))

    args, kwargs = pytree.tree_map_only(torch.fx.Node, take, (args_of(c.node), c.node.kwargs))
    node = c.b.call(c.target, *args, **kwargs)
    several = isinstance(c.node.meta["val"], (list, tuple))
    for index, value in enumerate(results(c.node)):
        view = c.site.writes[index]
        picked = c.b.call(operator.getitem, node, index) if several else node
        runs = tuple(dimension_axes(view, value.shape, c.b.buffers))
        dense = picked if c.target in _COPIES else c.b.dense(picked)
        c.b.store(view.buffer, c.orders[c.result + index], dense, runs)


ROW_MAJOR = Implementation("row-major", "*", _lower, ())


def row_major(name: Any, elements: Elements, reason: str, spell: Spell | None = None) -> Operator:
    """Return an operator that some target computes on row-major tensors alone, for a reason."""
    implementation = Implementation("row-major", "*", _lower, (name,))
    return Operator((name,), lambda node: reason, (implementation,), spell, elements=elements)
