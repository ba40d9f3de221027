"""Define slices of constants that depend on a dynamic size.

The program has the constant of the largest size, and each call takes the slice that its sizes need.
`dimorder::slice_constant` only reads a constant, but it is not constant: the end of the slice is dynamic.
"""

from __future__ import annotations

import torch

from dimorder.graph.nodes import args_of
from dimorder.graph.tracing import shape_of
from dimorder.ops.call import Call
from dimorder.ops.dialect import ELEMENTS, SLICE_CONSTANT
from dimorder.ops.operator import Implementation, Operator, Relation, dims_with_cut


def _relate(node: torch.fx.Node) -> Relation:
    """Relate a slice whose end is dynamic, so that nothing can cut its dimension."""
    table, dim = args_of(node)[:2]
    read, write = (dims_with_cut(shape_of(each), {dim: 1}) for each in (table, node))
    return Relation("indexed", (read,), (write,), blocks=frozenset({f"cut.{dim}"}))


def _lower(c: Call) -> None:
    """Lower to one physical dimension per axis: an axis merged with the dynamic one would vary with it."""
    groups = [[token] for token in c.arrangement.tokens]
    (cut,) = c.labelled("cut")
    (table,) = c.all_operands(groups)
    c.give(c.b.call(c.target, table, groups.index([cut]), *args_of(c.node)[2:]), groups)


OPERATORS = (
    Operator(
        (SLICE_CONSTANT,),
        _relate,
        (Implementation("of the outer axes", "*", _lower, (SLICE_CONSTANT,)),),
        elements=ELEMENTS[SLICE_CONSTANT],
    ),
)
