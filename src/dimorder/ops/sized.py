"""A constant of the largest size that a symbol may be, of which a program takes what the call's sizes ask.

`dimorder::slice_constant` reads a constant alone, and is none: the end of the slice is a symbol.
"""

from __future__ import annotations

import torch

from dimorder.graph.tracing import shape_of
from dimorder.ops.builder import Call
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.ops.operator import Implementation, Operator, Relation, args_of, dims_with_cut


def _relate(node: torch.fx.Node) -> Relation:
    """Where the dimension ends is a symbol, so that nothing can cut it."""
    table, dim = args_of(node)[:2]
    read, write = (dims_with_cut(shape_of(each), {dim: 1}) for each in (table, node))
    return Relation("indexed", (read,), (write,), blocks=frozenset({f"cut.{dim}"}))


def _lower(c: Call) -> None:
    """A physical dimension for each axis: what is one with the dimension that varies would vary with it."""
    groups = [[token] for token in c.arrangement.tokens]
    (cut,) = c.labelled("cut")
    (table,) = c.all_operands(groups)
    c.give(c.b.call(c.target, table, groups.index([cut]), *args_of(c.node)[2:]), groups)


OPERATORS = (
    Operator(
        (SLICE_CONSTANT,),
        _relate,
        (Implementation("of the outer axes", "*", _lower, (SLICE_CONSTANT,)),),
    ),
)
