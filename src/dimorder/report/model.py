"""Collect the content of a report: the plan's own words, with every operator's order.

Nothing is measured or decided here, and nothing says how the page looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from dimorder.algebra.dim_order import DimOrder
from dimorder.graph.nodes import operator_name, where
from dimorder.lowered import Lowered
from dimorder.ops.problem_map import BufferInfo, layout_of
from dimorder.ops.tokens import AxisOrder
from dimorder.plans.network_plan import Explanation, NetworkPlan, PlannedConversion, order_name

Family = Literal["row-major", "channels-last", "permuted", "cut"]

EXPLAINED = 12  # conversions with reasons, largest first: each reason solves a plan anew


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


@dataclass(frozen=True)
class ConversionRow:
    """A conversion; `explanation` is None for those beyond the `EXPLAINED` largest."""

    number: int
    conversion: PlannedConversion
    share: float
    explanation: Explanation | None


@dataclass(frozen=True)
class Report:
    """Everything on the page; `lowered` is None for a plan alone."""

    title: str
    plan: NetworkPlan
    conversions: tuple[ConversionRow, ...]
    operators: tuple[OperatorRow, ...]
    lowered: Lowered | None

    @property
    def relabels(self) -> int:
        """The number of views and permutes, which cost nothing and have no row."""
        rows = sum(row.module != "contract" for row in self.operators)
        return len(self.plan.extracted.annotated.calls) - rows

    @property
    def converted_bytes(self) -> int:
        return sum(row.conversion.bytes for row in self.conversions)


def build(
    result: Lowered | NetworkPlan, title: str = "", progress: Callable[[str], None] = lambda step: None
) -> Report:
    """Return the report of a lowered network, or of a plan alone."""
    lowered = result if isinstance(result, Lowered) else None
    plan = lowered.plan if lowered else result
    assert isinstance(plan, NetworkPlan)
    conversions, operators = tuple(_conversions(plan, progress)), tuple(_operators(plan))
    return Report(title or "network", plan, conversions, operators, lowered)


def _conversions(plan: NetworkPlan, progress: Callable[[str], None]) -> Iterator[ConversionRow]:
    conversions = plan.conversions
    total = sum(conversion.bytes for conversion in conversions)
    largest = sorted(range(len(conversions)), key=lambda i: -conversions[i].bytes)[:EXPLAINED]
    for number, conversion in enumerate(conversions):
        if number in largest:
            progress(f"explaining conversion {number} of {len(conversions)}")
        explanation = plan.explain(number) if number in largest else None
        yield ConversionRow(number, conversion, conversion.bytes / total, explanation)


def _operators(plan: NetworkPlan) -> Iterator[OperatorRow]:
    extracted, choice = plan.extracted, plan.layout_plan.choice
    first_consumer: dict[int, list[int]] = {}
    for number, conversion in enumerate(plan.layout_plan.conversions):
        first_consumer.setdefault(min(conversion.consumers), []).append(number)
    relations, blocked = extracted.annotated.relations, extracted.annotated.blocked
    module = ""
    for index, site in enumerate(extracted.sites):
        arrangement = extracted.arrangements[index][choice[index]]
        orders = [layout_of(i, site, arrangement) for i in range(len(site.views))]
        buffers = [extracted.buffers[view.buffer] for view in site.views]
        named = [order_name(*pair) for pair in zip(buffers, orders, strict=True)]
        contract = site.kind in ("input", "output", "state")
        module = "contract" if contract else _module(site.node) or module
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
            shape=_shape(site.node),
            reads=tuple(named[: len(site.reads)]),
            writes=tuple(named[len(site.reads) :]),
            # An operator whose results are no tensors writes no order, so its last operand's order counts.
            family=_family(buffers[-1], orders[-1]) if orders else "row-major",
            conversions=tuple(first_consumer.get(index, ())),
            note=note
            or ("its cut dimensions stay together" if site.node in blocked and not contract else ""),
        )


def _family(info: BufferInfo, order: AxisOrder) -> Family:
    """Return the kind of an order, for the value's own shape: the first kind that fits."""
    shape = _shape(info.root)
    if list(order) == sorted(order):
        return "row-major"
    owners = [info.tensor.dims[axis] for axis in order]
    runs = [dim for i, dim in enumerate(owners) if i == 0 or owners[i - 1] != dim]
    split = any(a > b for a, b in pairwise(order) if info.tensor.dims[a] == info.tensor.dims[b])
    if split or len(set(runs)) < len(runs):
        return "cut"
    ones = [dim for dim, size in enumerate(shape) if size == 1]
    last = DimOrder.channels_last(len(shape))
    return "channels-last" if DimOrder(*ones, *runs).equivalent(last, shape) else "permuted"


def _module(node: Any) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def _shape(node: Any) -> tuple[int, ...]:
    value = node.meta["val"]
    first = value[0] if isinstance(value, (list, tuple)) else value
    return tuple(int(size) for size in first.shape)
