"""List every operator of a plan with the orders that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from dimorder.algebra.dim_order import DimOrder
from dimorder.graph.nodes import module_of, operator_name, results, where
from dimorder.graph.tracing import shape_of
from dimorder.ops.problem_map import BufferInfo, layouts_of
from dimorder.ops.relation import AxisOrder
from dimorder.plans.network_plan import NetworkPlan
from dimorder.plans.order_names import order_name, whole_order
from dimorder.text import shape_text

Family = Literal["row-major", "channels-last", "permuted", "cut"]

FAMILIES: Mapping[str, str] = {
    "row-major": "as the shape is written",
    "channels-last": "dimension 1 fastest",
    "permuted": "whole dimensions in another order",
    "cut": "dimensions cut, their pieces apart",
}


@dataclass(frozen=True)
class OperatorRow:
    """One operator: the orders that it reads and writes, and the conversions that its operands need first."""

    operator: str
    source: str
    module: str
    shape: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    family: Family
    conversions: tuple[int, ...]
    note: str

    @property
    def facts(self) -> dict[str, str]:
        """The facts that a page shows of the operator, by title; a fact may be empty."""
        return {
            "at": self.source,
            "in": self.module,
            "shape": shape_text(self.shape, " × "),
            "reads": "; ".join(self.reads),
            "writes": "; ".join(self.writes),
            "note": self.note,
        }


def operator_rows(plan: NetworkPlan) -> Iterator[OperatorRow]:
    """Return every operator of a plan in sequence, with the orders that it reads and writes."""
    extracted, choice = plan.extracted, plan.layout_plan.choice
    first_consumer: dict[int, list[int]] = {}
    for number, conversion in enumerate(plan.layout_plan.conversions):
        first_consumer.setdefault(min(conversion.consumers), []).append(number)
    relations, blocked = extracted.annotated.relations, extracted.annotated.blocked
    module = ""
    for index, site in enumerate(extracted.sites):
        arrangement = extracted.arrangements[index][choice[index]]
        orders = layouts_of(site, arrangement)
        buffers = [extracted.buffers[view.buffer] for view in site.views]
        named = [order_name(*pair) for pair in zip(buffers, orders, strict=True)]
        contract = site.kind in ("input", "output", "state")
        module = "contract" if contract else module_of(site.node) or module
        relation = relations.get(site.node)
        note = f"row-major: {relation.reason}" if relation and relation.kind == "opaque" else ""
        yield OperatorRow(
            operator=f"{site.kind} {site.node.name}" if contract else operator_name(site.node),
            source="the last call"
            if site.kind == "state"
            else "the caller"
            if contract
            else where(site.node),
            module=module,
            shape=shape_of(results(site.node)[0]),
            reads=tuple(named[: len(site.reads)]),
            writes=tuple(named[len(site.reads) :]),
            # An operator whose results are no tensors writes no order, so its last operand's order counts.
            family=family_of(buffers[-1], orders[-1]) if orders else "row-major",
            conversions=tuple(first_consumer.get(index, ())),
            note=note
            or ("its cut dimensions stay together" if site.node in blocked and not contract else ""),
        )


def family_of(info: BufferInfo, order: AxisOrder) -> Family:
    """Return the kind of an order, for the value's own shape."""
    whole = whole_order(info, order)
    return "cut" if whole is None else dim_order_family(whole, info.shape)


def dim_order_family(order: DimOrder, shape: tuple[int, ...]) -> Family:
    """Return the kind of an order of whole dimensions, for a shape.

    >>> nhwc = DimOrder(0, 2, 3, 1)
    >>> dim_order_family(nhwc, (1, 3, 5, 7)), dim_order_family(nhwc, (1, 8, 1, 1))
    ('channels-last', 'row-major')
    """
    if order.equivalent(DimOrder.contiguous(len(shape)), shape):
        return "row-major"
    return "channels-last" if order.equivalent(DimOrder.channels_last(len(shape)), shape) else "permuted"
