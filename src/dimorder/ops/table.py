"""Look up operators by name: the values of all families in one mapping."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from dimorder.graph.branches import Branches
from dimorder.graph.elements import Elements
from dimorder.graph.nodes import results
from dimorder.ops import (
    attention,
    contraction,
    convolution,
    fourier,
    indexed,
    lookup,
    masks,
    moments,
    moves,
    normalization,
    pointwise,
    pooling,
    positions,
    quantization,
    rearranging,
    recurrent,
    reduction,
    resize,
    row_major,
    softmax,
)
from dimorder.ops.dialect import ELEMENTS
from dimorder.ops.operator import Implementation, Operator, Spell, ordered_operands
from dimorder.ops.relation import Relation

aten = torch.ops.aten

_FAMILIES = (
    *(
        attention,
        contraction,
        convolution,
        fourier,
        indexed,
        lookup,
        masks,
        moments,
        moves,
        normalization,
        pointwise,
    ),
    *(pooling, positions, quantization, rearranging, recurrent, reduction, resize, softmax),
)


def _by_name() -> Mapping[Any, Operator]:
    found: dict[Any, Operator] = {}
    for family in _FAMILIES:
        for operator in family.OPERATORS:
            for name in operator.names:
                assert name not in found, f"{name} is in two families"
                found[name] = operator
    return MappingProxyType(found)


OPERATORS = _by_name()
SPELLINGS: Mapping[Any, Spell] = MappingProxyType(
    {name: operator.spelling for name, operator in OPERATORS.items() if operator.spelling is not None}
)


def _titles(operator: Operator, names: Iterable[str]) -> Iterator[str]:
    return (f"{str(own).removesuffix('.default')}/{name}" for own in operator.names for name in names)


# All implementations as `operator/implementation`, and of operators with several those that are plain.
IMPLEMENTATIONS = frozenset(
    title
    for operator in OPERATORS.values()
    for title in _titles(operator, (i.name for i in operator.implementations))
)
PLAIN = frozenset(title for operator in OPERATORS.values() for title in _titles(operator, operator.plain))
# Implementations in simpler operators, for targets that lack the operator itself.
BY_MATMUL = frozenset(title for title in IMPLEMENTATIONS if title.endswith("/by matmul"))
IN_SIMPLER = BY_MATMUL | {
    "aten.convolution/without outer taps",
    "aten.convolution/depth tap by tap",
    "aten.convolution/depth in channels",
    "aten.convolution/transposed depth tap by tap",
    "aten.max_pool2d/tap by tap",
    "aten.max_pool3d/tap by tap",
    "aten.slice.Tensor/step by view",
    "aten.flip/digit by digit",
    "aten.log_softmax.int/by halves",
    "aten.cumprod/by doubling",
}


@cache
def find(name: Any) -> Operator | None:
    """Return what is known about an overload, or None.

    An operator that torch tags as pointwise needs no entry.

    >>> [i.name for i in find(torch.ops.aten.softmax.int).implementations]
    ['last', 'any']
    >>> find(torch.ops.aten.sigmoid.default).implementations[0].form
    '*'
    """
    if name in OPERATORS:
        return OPERATORS[name]
    tagged = torch.Tag.pointwise in getattr(name, "tags", ()) and not name._schema.is_mutable
    return pointwise.pointwise(name) if tagged else None


@cache
def elements_of(target: Any) -> Elements:
    """Return what a node's target does to elements, an operator of torch or of the dialect.

    >>> [elements_of(op).name for op in (aten.flip.default, aten.exp.default, aten.lstm.input)]
    ['MOVES', 'POINTWISE', 'UNKNOWN']
    """
    if not isinstance(target, torch._ops.OpOverload):
        return Elements.UNKNOWN
    known = find(target)
    return ELEMENTS.get(target, Elements.UNKNOWN) if known is None else known.elements


def moved_operands(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the operands of a call that moves or selects elements: its first, or all of its first list."""
    first: Any = node.args[0]
    return [first] if isinstance(first, torch.fx.Node) else list(dict.fromkeys(first))


def operands(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the operands whose order matters: all but a contraction's constant weights."""
    known = find(node.target)
    return ordered_operands(node, known.weights if known else ())


def relate(node: torch.fx.Node) -> Relation:
    """Return the relation of a call by the table; an unknown operator is opaque."""
    known = find(node.target)
    if isinstance(node.target, Branches):
        return opaque(node, "data decide which of two branches runs")
    if known is None or known.relate is None or len(results(node)) != 1:
        return opaque(node, "no rule knows this operator")
    relation = known.relate(node)
    if isinstance(relation, str):
        return opaque(node, relation)
    return replace(relation, forms=tuple(i.form for i in known.implementations))


def opaque(node: torch.fx.Node, reason: str) -> Relation:
    """Return the relation of a call that runs row-major, with the reason."""
    return row_major.opaque(node, operands(node), reason)


def implementations(node: torch.fx.Node, relation: Relation) -> tuple[Implementation, ...]:
    """Return the implementations that a call may use, aligned with the forms of its relation."""
    known = find(node.target)
    offered = () if known is None else known.implementations
    if relation.kind != "opaque":
        return offered
    return tuple(i for i in offered if i.lower is row_major.ROW_MAJOR.lower) or (row_major.ROW_MAJOR,)
