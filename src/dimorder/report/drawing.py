"""Define what a graph on a page shows: boxes, edges between them, and conversions on edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dimorder.algebra.dim_order import describe
from dimorder.clock import Progress, report_each
from dimorder.eager.inspection.findings import COSTLY, Finding
from dimorder.eager.inspection.inspection import Inspection
from dimorder.eager.inspection.traced import Kind, TracedCall
from dimorder.plans.explanation import Explanation
from dimorder.plans.network_plan import NetworkPlan
from dimorder.report.operator_rows import OperatorRow, dim_order_family, operator_rows
from dimorder.report.plan_graph import Edge, edges_of
from dimorder.text import shape_text

if TYPE_CHECKING:
    from dimorder.executorch.file_graph import FileNode

EXPLAINED = 12  # conversions with reasons


@dataclass(frozen=True)
class Box:
    """One operator.

    Attributes:
        title: The name of the operator.
        line: The second line in the box.
        family: The kind of its result's order, which gives its colour; empty if it is not known.
        facts: The facts that a reader can open, by title; a fact may be empty.
        place: The line that it comes from. Boxes of two drawings with the same place are one operator.
        moved_bytes: The bytes that it moves into another order; None if it is no conversion.
        finding: The fault that was found in it, or nothing.
    """

    title: str
    line: str
    family: str
    facts: Mapping[str, str]
    place: str = ""
    moved_bytes: int | None = None
    finding: str = ""


@dataclass(frozen=True)
class Mark:
    """A conversion on one or more edges, with the facts that a reader can open."""

    bytes: int
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Drawing:
    """A graph: boxes in program order, the edges between them, and the conversion of each number."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    marks: Mapping[int, Mark]

    @property
    def conversion_count(self) -> int:
        return len(self.marks) + sum(box.moved_bytes is not None for box in self.boxes)

    @property
    def converted_bytes(self) -> int:
        return sum(mark.bytes for mark in self.marks.values()) + sum(
            box.moved_bytes or 0 for box in self.boxes
        )


def plan_drawing(plan: NetworkPlan, explanations: Mapping[int, Explanation]) -> Drawing:
    """Return the drawing of a plan; `explanations` are the reasons of conversions by their numbers."""
    marks = {}
    for number, conversion in enumerate(plan.conversions):
        reason = explanations.get(number)
        why = {"alternative": reason.alternative, "advice": reason.advice} if reason else {}
        marks[number] = Mark(conversion.bytes, {**conversion.facts, **why})
    return Drawing(tuple(map(_plan_box, operator_rows(plan))), tuple(edges_of(plan)), marks)


def explain_largest(plan: NetworkPlan, progress: Progress = lambda step: None) -> dict[int, Explanation]:
    """Return the reasons of the largest conversions of a plan, by number: each reason solves a plan anew."""
    moved = [conversion.bytes for conversion in plan.conversions]
    reasons = {}
    largest = sorted(sorted(range(len(moved)), key=lambda i: -moved[i])[:EXPLAINED])
    for number in report_each(largest, "explaining conversions", progress):
        reasons[number] = plan.explain(number)
    return reasons


def _plan_box(row: OperatorRow) -> Box:
    order = next(iter(row.writes or row.reads), "").split(" (")[0]
    place = row.operator.split()[0] if row.module == "contract" else row.source
    line = f"{order} {shape_text(row.shape, '×')}".strip()
    return Box(row.operator, line, row.family, row.facts, place)


def file_drawing(nodes: Iterable[FileNode]) -> Drawing:
    """Return the drawing of a file. A conversion is a mark on edges, unless it reads another conversion."""
    boxes: list[Box] = []
    edges: list[Edge] = []
    marks: dict[int, Mark] = {}
    written: dict[str, tuple[int, int | None]] = {}  # of a node: the box that it is or reads, and its mark
    for node in nodes:
        reads = [written[name] for name in dict.fromkeys(node.reads)]
        if node.converted_bytes is not None and [mark for _, mark in reads] == [None]:
            written[node.name] = reads[0][0], len(marks)
            reason = f"at {node.source}" if node.source else "inserted by the lowering"
            facts = {**node.facts, "moves": f"{node.converted_bytes:,} bytes", "reason": reason}
            marks[len(marks)] = Mark(node.converted_bytes, facts)
            continue
        written[node.name] = len(boxes), None
        edges += [Edge(source, len(boxes), mark) for source, mark in reads]
        boxes.append(_file_box(node))
    return Drawing(tuple(boxes), tuple(edges), marks)


def _file_box(node: FileNode) -> Box:
    value = next((fact for title, fact in node.facts.items() if title.startswith(("output", "writes"))), "")
    line, family = value.split()[0] if value else "", ""
    facts = {"at": node.source, "in": node.group, **node.facts}
    if node.order is not None:
        line = f"{node.order.name} {shape_text(node.shape, '×')}"
        family = dim_order_family(node.order, node.shape)
        facts["order"] = describe(node.order)
    if node.converted_bytes is not None:
        facts["moves"] = f"{node.converted_bytes:,} bytes"
    place = node.source or (node.operator if node.operator in ("input", "output") else "")
    return Box(node.operator, line, family, facts, place, node.converted_bytes)


def inspection_drawing(found: Inspection) -> Drawing:
    """Return the drawing of a run: the operators that are no views, by the order of what they wrote.

    An edge leads to the operator that wrote last into the memory that is read.
    """
    findings: dict[int, list[Finding]] = {}
    for finding in found.findings:
        findings.setdefault(finding.call, []).append(finding)
    boxes: list[Box] = []
    edges: list[Edge] = []
    writers: dict[int, int] = {}  # of a storage: the box that wrote into it last
    for call in found.calls:
        if call.is_view or not any(result.bytes for result in call.results):
            continue
        sources = dict.fromkeys(writers[x.storage] for x in call.operands if x.storage in writers)
        edges += [Edge(source, len(boxes), None) for source in sources]
        writers |= {result.storage: len(boxes) for result in call.results}
        boxes.append(_call_box(call, findings.get(call.index, [])))
    return Drawing(tuple(boxes), tuple(edges), {})


def _call_box(call: TracedCall, findings: Sequence[Finding]) -> Box:
    result = call.results[0]
    costly = [each for each in findings if each.verdict in COSTLY]
    facts = {
        "at": Path(call.source).name,
        "in": call.module,
        "shape": shape_text(result.shape, " × "),
        "reads": "; ".join(dict.fromkeys(x.order_name for x in call.operands if len(x.shape) > 2)),
        "writes": result.order_name,
        "time": f"{call.time_us:,.0f} µs",
        "found": "; ".join(f"{each.verdict}: {each.before} → {each.after}" for each in findings),
        "moves": f"{sum(each.bytes for each in costly):,} bytes" if costly else "",
        "advice": "; ".join(dict.fromkeys(each.what_to_do for each in costly)),
    }
    line = f"{result.order_name} {shape_text(result.shape, '×')}"
    finding = "\n".join(filter(None, [facts["found"], facts["advice"]])) if costly else ""
    return Box(call.operator, line, kind_family(result.kind), facts, facts["at"], finding=finding)


def kind_family(kind: Kind) -> str:
    """Return the family of a traced value's order."""
    return "permuted" if kind == "overlapping" else kind
