"""Render a plan as a page: its graph, its conversions with their reasons, and every operator's order.

Nothing is measured or decided here: `build` collects the plan's own words, and the rest shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape

from dimorder.lowered import Lowered
from dimorder.plans.explanation import Explanation, PlannedConversion
from dimorder.plans.network_plan import NetworkPlan
from dimorder.report import graph_section as graph
from dimorder.report import parts
from dimorder.report.drawing import explain_largest, plan_drawing
from dimorder.report.operator_rows import FAMILIES, OperatorRow, operator_rows
from dimorder.report.parts import bar, grid, row, section, size, strip, table
from dimorder.targets.npu_report import NpuReport
from dimorder.text import counted, shape_text


def plan_page(
    result: Lowered | NetworkPlan, title: str = "", progress: Callable[[str], None] = lambda step: None
) -> str:
    """Return the page of a plan, in self-contained HTML. The plan is solved anew for each reason on it.

    >>> import torch, dimorder
    >>> plan = dimorder.plan(torch.nn.Conv2d(3, 8, 3), (torch.randn(2, 3, 5, 7),))
    >>> plan_page(plan, title="a convolution").startswith("<!doctype html>")
    True
    """
    report = build(result, title, progress)
    sections = [
        _head(report),
        _contract(report),
        _graph(report),
        _conversions(report),
        _strip(report),
        *_leftovers(report),
        _npu(report.lowered.artifact.npu) if report.lowered and report.lowered.artifact.npu else "",
        _seconds(report.lowered) if report.lowered else "",
        _proof(report),
    ]
    return parts.document(f"{report.title} · dimorder", sections, graph.style(), graph.script())


@dataclass(frozen=True)
class Report:
    """Everything on the page; `lowered` is None for a plan alone.

    `explanations` has the reasons of the largest conversions, by their numbers.
    """

    title: str
    plan: NetworkPlan
    explanations: Mapping[int, Explanation]
    operators: tuple[OperatorRow, ...]
    lowered: Lowered | None

    @property
    def relabels(self) -> int:
        """The number of views and permutes, which cost nothing and have no row."""
        rows = sum(row.module != "contract" for row in self.operators)
        return len(self.plan.extracted.annotated.calls) - rows

    @property
    def converted_bytes(self) -> int:
        return sum(conversion.bytes for conversion in self.plan.conversions)


def build(
    result: Lowered | NetworkPlan, title: str = "", progress: Callable[[str], None] = lambda step: None
) -> Report:
    """Return the content of the page of a lowered network, or of a plan alone."""
    lowered = result if isinstance(result, Lowered) else None
    plan = lowered.plan if lowered else result
    assert isinstance(plan, NetworkPlan)
    explanations = explain_largest(plan, progress)
    return Report(title or "network", plan, explanations, tuple(operator_rows(plan)), lowered)


# The sections of the page


def _head(report: Report) -> str:
    count = len(report.plan.conversions)
    certificate = report.plan.certificate
    proven = "proven least" if certificate.optimal else "not proven least"
    bound = counted(certificate.lower_bound, report.plan.units[0])
    tiles = [
        (str(count), "conversion" if count == 1 else "conversions", ""),
        (size(report.converted_bytes), "moved by them", ""),
        (proven, f"no plan costs less than {bound}", "good" if certificate.optimal else "bad"),
    ]
    if report.lowered:
        outside, count = sum(report.lowered.artifact.outside.values()), report.lowered.artifact.delegates
        delegates = f"{count} delegate{'s' * (count != 1)}"
        tiles += [
            (f"{report.lowered.max_rel_error:.1e}", "largest relative error", ""),
            (delegates, f"{outside or 'no'} operator{'s' * (outside != 1)} outside", ""),
        ]
    text = f"Memory orders for target <b>{escape(report.plan.target)}</b>, planned by dimorder."
    return parts.head(report.title, text, tiles)


def _contract(report: Report) -> str:
    return section(
        "Contract",
        "What the program promises, and checks on every call.",
        table(report.plan.contract.rows(" × "), ["", "name", "shape", "type", "order"]),
    )


def _graph(report: Report) -> str:
    text = "The network as the plan computes it."
    drawing = plan_drawing(report.plan, report.explanations)
    return graph.graph_section(text, tuple(FAMILIES), graph.Picture(drawing))


def _conversions(report: Report) -> str:
    explained, others = list[str](), list[str]()
    for number, conversion in enumerate(report.plan.conversions):
        if number in report.explanations:
            explained.append(_card(number, report.explanations[number]))
        else:
            others.append(_smaller(number, conversion))
    if not explained:
        return section("Conversions", "None: no value is ever copied into another order.", "")
    note = f" The {len(explained)} largest with their reasons, then the others." if others else ""
    text = f"Copies of a value into another order. All else about order is free, or done ahead of time.{note}"
    cards = "\n".join(explained)
    rest = grid(others, ("", "value", "orders", "bytes", "from", "for")) if others else ""
    return section("Conversions", text, f'<div class="cards">{cards}</div>{rest}')


def _smaller(number: int, conversion: PlannedConversion) -> str:
    orders = f"{escape(conversion.from_order)}<br>→ {escape(conversion.to_order)}"
    cells = [
        f'<i class="number">{number}</i>',
        escape(conversion.value),
        f'<span class="whole">{orders}</span>',
        f"{conversion.bytes:,}",
        escape(str(conversion.producer)),
        "<br>".join(escape(str(place)) for place in conversion.consumers),
    ]
    return row(cells, f'id="conversion-{number}"')


def _card(number: int, found: Explanation) -> str:
    conversion = found.conversion
    consumers = "<br>".join(escape(str(place)) for place in conversion.consumers[:3])
    more = f"<br>and {len(conversion.consumers) - 3} more" if len(conversion.consumers) > 3 else ""
    return (
        f'<article class="card" id="conversion-{number}"><h3><i class="number">{number}</i>'
        f"<code>{escape(conversion.value)}</code> <small>{shape_text(conversion.shape, ' × ')}</small></h3>"
        f"{parts.orders(conversion.from_order, conversion.to_order)}{bar(found.share)}"
        f"<p><b>{conversion.bytes:,} bytes</b>, {found.share:.0%} of all that is converted</p>"
        f"<dl><dt>from</dt><dd>{escape(str(conversion.producer))}</dd><dt>for</dt><dd>{consumers}{more}</dd></dl>"
        f"<p>{escape(found.alternative)}</p><p>{escape(found.advice)}</p></article>"
    )


def _strip(report: Report) -> str:
    mark = '<li><i class="mark">0</i>conversion</li>' if report.plan.conversions else ""
    text = (
        f"{len(report.operators)} operators in program order, coloured by the order that they write. "
        f"Hover for more. Views, permutes and reshapes ({report.relabels}) are free and not shown. An order "
        "is named by the shape that a value was made with: channels-last of N × C × H × W and row-major of "
        "N × H × W × C are the same memory."
    )
    cells = [(row.module, row.family, _cell(row)) for row in report.operators]
    return section("Operators", text, strip(cells, FAMILIES, mark))


def _cell(row: OperatorRow) -> str:
    marks = "".join(
        f'<a class="mark" href="#conversion-{number}" title="conversion {number}">{number}</a>'
        for number in row.conversions
    )
    reads = "; ".join(row.reads) if len(set(row.reads)) > 1 else row.reads[0] if row.reads else ""
    writes = "; ".join(dict.fromkeys(row.writes))
    lines = [
        f"<b>{escape(row.operator)}</b> {shape_text(row.shape, ' × ')}",
        escape(row.source),
        f"<em>reads</em> {escape(reads)}" if reads else "",
        f"<em>writes</em> {escape(writes)}" if writes else "",
        escape(row.note),
    ]
    return marks + parts.cell(f"{row.family}{' noted' if row.note else ''}", lines)


def _leftovers(report: Report) -> Iterator[str]:
    outside = report.lowered.artifact.outside if report.lowered else {}
    rows = [(name, str(count)) for name, count in outside.items()]
    text = "Run by the runtime's portable kernels, row-major."
    yield section("Outside of the delegates", text, table(rows, ("operator", "calls"))) if rows else ""
    reasons = [(place.operator, place.source, reason) for place, reason in report.plan.opaque]
    text = "They read and write their shape row-major; the conversions beside them are theirs."
    title = "Row-major, having no rule or kernel for another order"
    yield section(title, text, table(reasons, ("operator", "source", "why"))) if reasons else ""
    places = [(place.operator, place.source) for place in dict.fromkeys(report.plan.blocks)]
    text = (
        "They cut a dimension at another place than another operator does, so its parts stay together. "
        "Channel counts with more factors of 2 would avoid it."
    )
    yield section("Kept in blocks", text, table(places, ("operator", "source"))) if places else ""


def _npu(npu: NpuReport) -> str:
    found = npu.by_place()
    most = max((count for _, count in found), default=1) or 1
    rows = (
        row([escape(place.operator), escape(place.source), f"{count:,}", bar(count / most)])
        for place, count in found
    )
    memory = ", ".join(f"{size(count)} of {name}" for name, count in npu.memories.items())
    text = (
        f"Vela {npu.vela} estimates {npu.cycles:,} cycles ({npu.milliseconds:.3g} ms) and {memory} for "
        f"{npu.accelerator} ({npu.system_config}, {npu.memory_mode}); {npu.cpu_operators or 'no'} operators "
        "are left to the CPU. Cycles by operator, which overlap:"
    )
    return section("NPU", text, grid(rows, ("operator", "source", "cycles", "")))


def _seconds(lowered: Lowered) -> str:
    total = sum(lowered.seconds.values()) or 1.0
    rows = [
        row([escape(step), f"{seconds:.2f} s", bar(seconds / total)])
        for step, seconds in lowered.seconds.items()
    ]
    rows.append(row(["<b>total</b>", f"<b>{total:.2f} s</b>", ""]))
    added = f"{lowered.constant_bytes_added:,} bytes of constants were added"
    facts = f"The program has {len(lowered.artifact.data):,} bytes; {added}."
    return section("Time", facts, grid(rows, ("step", "", "")))


def _proof(report: Report) -> str:
    plan, certificate = report.plan, report.plan.certificate
    costs = ", ".join(map(counted, plan.cost, plan.units))
    verdict = (
        "The two meet: this plan is proven to be the cheapest"
        if certificate.optimal
        else "The two differ: a cheaper plan may exist"
    )
    truncated = (
        "" if certificate.candidates == "complete" else " Some candidates were left out for their number."
    )
    return (
        f"<footer><p>The plan costs {costs}. The bound is {counted(certificate.lower_bound, plan.units[0])}. "
        f"{verdict} over {certificate.candidates} candidates ({escape(certificate.solver)})."
        f"{truncated}</p></footer>"
    )
