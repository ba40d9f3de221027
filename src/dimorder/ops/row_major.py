"""Operators that take and give row-major tensors: no rule knows them, or they read computed positions."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dimorder.graph.tracing import shape_of
from dimorder.ops.builder import Call
from dimorder.ops.operator import (
    Implementation,
    Operator,
    Relation,
    Spell,
    args_of,
    dims_of,
    results,
)

aten = torch.ops.aten


def opaque(node: torch.fx.Node, operands: Sequence[torch.fx.Node], reason: str) -> Relation:
    """Row-major in, row-major out, and why."""
    reads = [dims_of((f"x{i}", size) for size in shape_of(operand)) for i, operand in enumerate(operands)]
    writes = [dims_of((f"y{i}", size) for size in value.shape) for i, value in enumerate(results(node))]
    names = [name for dims in (*reads, *writes) for dim in dims for name, _ in dim]
    return Relation("opaque", tuple(reads), tuple(writes), blocks=frozenset(names), reason=reason)


def _lower(c: Call) -> None:
    """Row-major operands in their logical shapes, the operator as it is."""
    dynamic = iter(range(len(c.site.reads)))

    def take(source: torch.fx.Node) -> torch.fx.Node:
        if source.op == "get_attr":
            return c.b.constant(str(source.target), c.b.value_of(source))
        i = next(dynamic)
        view = c.site.views[i]
        return c.b.shaped(view.buffer, c.dynamic[i], c.b.dimensions(view, shape_of(source)))

    args, kwargs = pytree.tree_map_only(torch.fx.Node, take, (args_of(c.node), c.node.kwargs))
    node = c.b.call(c.target, *args, **kwargs)
    several = isinstance(c.node.meta["val"], (list, tuple))
    for index, value in enumerate(results(c.node)):
        view = c.site.writes[index]
        picked = c.b.call(operator.getitem, node, index) if several else node
        dense = c.b.call(aten.clone.default, picked, memory_format=torch.contiguous_format)
        c.b.store(view.buffer, c.orders[c.result + index], dense, tuple(c.b.dimensions(view, value.shape)))


ROW_MAJOR = Implementation("row-major", "*", _lower, ())


def row_major(name: Any, reason: str, spelling: Spell | None = None) -> Operator:
    """An operator that some target computes on row-major tensors, and why no other order is known."""
    implementation = Implementation("row-major", "*", _lower, (name,))
    return Operator((name,), lambda node: reason, (implementation,), spelling)
