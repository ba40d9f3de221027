"""Define operators that read and write row-major tensors.

No relation knows them, or they access computed positions.
"""

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
from dimorder.ops.operator import Implementation, Operator, Relation, Spell, dims_of

aten = torch.ops.aten


def opaque(node: torch.fx.Node, operands: Sequence[torch.fx.Node], reason: str) -> Relation:
    """Return a relation whose operands and results are row-major.

    Args:
        node: The call.
        operands: Its tensor operands whose order matters.
        reason: Why the call is row-major.
    """
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


def row_major(name: Any, elements: Elements, reason: str, spelling: Spell | None = None) -> Operator:
    """Return an operator that some target computes on row-major tensors.

    Args:
        name: The overload.
        elements: What it does to elements; unknown for one that is listed as moving them.
        reason: Why no other order is known.
        spelling: The function that writes the operator in others.
    """
    implementation = Implementation("row-major", "*", _lower, (name,))
    return Operator((name,), lambda node: reason, (implementation,), spelling, elements=elements)
