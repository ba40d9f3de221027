"""Render the report of a plan: one HTML page without a script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dimorder.lowered import Lowered
from dimorder.plans.network_plan import Explanation
from dimorder.report import parts
from dimorder.report.model import ConversionRow, OperatorRow, Report
from dimorder.report.parts import bar, section, size, strip, table
from dimorder.targets.npu_report import NpuReport

_FAMILIES = {
    "row-major": "as the shape is written",
    "channels-last": "dimension 1 fastest",
    "permuted": "whole dimensions in another order",
    "cut": "dimensions cut, their pieces apart",
}


def page(report: Report) -> str:
    """Return the whole page."""
    sections = [
        _head(report),
        _contract(report),
        _strip(report),
        _conversions(report),
        _left_over(report),
        _npu(report.lowered.artifact.npu) if report.lowered and report.lowered.artifact.npu else "",
        _seconds(report.lowered) if report.lowered else "",
        _proof(report),
    ]
    return parts.document(f"{report.title} · dimorder", sections)


def _head(report: Report) -> str:
    count = len(report.conversions)
    certificate = report.plan.certificate
    proven = "proven least" if certificate.optimal else "not proven least"
    bound = _unit(certificate.lower_bound, report.plan.units[0])
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


def _conversions(report: Report) -> str:
    if not report.conversions:
        return section("Conversions", "None: no value is ever copied into another order.", "")
    explained = [row for row in report.conversions if row.explanation]
    others = [row for row in report.conversions if not row.explanation]
    note = f" The {len(explained)} largest with their reasons, then the others." if others else ""
    text = f"Copies of a value into another order. All else about order is free, or done ahead of time.{note}"
    cards = "\n".join(map(_card, explained))
    return section(
        "Conversions", text, f'<div class="cards">{cards}</div>{_smaller(others) if others else ""}'
    )


def _smaller(rows: Sequence[ConversionRow]) -> str:
    head = "".join(f"<th>{title}</th>" for title in ("", "value", "orders", "bytes", "from", "for"))
    body = "".join(
        f'<tr id="conversion-{row.number}"><td><i class="number">{row.number}</i></td>'
        f"<td>{escape(made.value)}</td>"
        f'<td class="whole">{escape(made.from_order)}<br>→ {escape(made.to_order)}</td>'
        f'<td class="right">{made.bytes:,}</td><td>{escape(str(made.producer))}</td>'
        f"<td>{'<br>'.join(escape(str(place)) for place in made.consumers)}</td></tr>"
        for row in rows
        for made in [row.conversion]
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _card(row: ConversionRow) -> str:
    made = row.conversion
    consumers = "<br>".join(escape(str(place)) for place in made.consumers[:3])
    more = f"<br>and {len(made.consumers) - 3} more" if len(made.consumers) > 3 else ""
    reason = ""
    if row.explanation:
        found = row.explanation
        reason = f"<p>{escape(_without(found))}</p><p>{escape(found.advice)}</p>"
    shape = " × ".join(map(str, made.shape))
    return (
        f'<article class="card" id="conversion-{row.number}"><h3><i class="number">{row.number}</i>'
        f"<code>{escape(made.value)}</code> <small>{shape}</small></h3>"
        f'<p class="orders"><span>{escape(made.from_order)}</span> → <span>{escape(made.to_order)}</span></p>'
        f"{bar(row.share)}"
        f"<p><b>{made.bytes:,} bytes</b>, {row.share:.0%} of all that is converted</p>"
        f"<dl><dt>from</dt><dd>{escape(str(made.producer))}</dd><dt>for</dt><dd>{consumers}{more}</dd></dl>"
        f"{reason}</article>"
    )


def _without(found: Explanation) -> str:
    if found.cost_without is None:
        return "no plan does without it"
    if found.cost_without == found.cost:
        return "a plan without it costs the same"
    return f"a plan without it costs {_unit(found.cost_without, found.unit)}, not {found.cost:,}"


def _strip(report: Report) -> str:
    mark = '<li><i class="mark">0</i>conversion</li>' if report.conversions else ""
    text = (
        f"{len(report.operators)} operators in program order, coloured by the order that they write. "
        f"Hover for more. Views, permutes and reshapes ({report.relabels}) are free and not shown. An order "
        "is named by the shape that a value was made with: channels-last of N × C × H × W and row-major of "
        "N × H × W × C are the same memory."
    )
    cells = [(row.module, row.family, _cell(row)) for row in report.operators]
    return section("Operators", text, strip(cells, _FAMILIES, mark))


def _cell(row: OperatorRow) -> str:
    marks = "".join(
        f'<a class="mark" href="#conversion-{number}" title="conversion {number}">{number}</a>'
        for number in row.conversions
    )
    reads = "; ".join(row.reads) if len(set(row.reads)) > 1 else row.reads[0] if row.reads else ""
    writes = "; ".join(dict.fromkeys(row.writes))
    lines = [
        ("", f"<b>{escape(row.operator)}</b> {' × '.join(map(str, row.shape))}"),
        ("", escape(row.source)),
        ("reads", escape(reads)),
        ("writes", escape(writes)),
        ("", escape(row.note)),
    ]
    told = "".join(
        f"<span>{f'<em>{label}</em> ' if label else ''}{text}</span>" for label, text in lines if text
    )
    noted = " noted" if row.note else ""
    return f'{marks}<i class="cell {row.family}{noted}" tabindex="0"><span class="tip">{told}</span></i>'


def _left_over(report: Report) -> str:
    parts = []
    if report.lowered and report.lowered.artifact.outside:
        rows = ((name, str(count)) for name, count in report.lowered.artifact.outside.items())
        parts.append(
            section(
                "Outside of the delegates",
                "Run by the runtime's portable kernels, row-major.",
                table(rows, ["operator", "calls"]),
            )
        )
    if report.plan.opaque:
        rows3 = ((place.operator, place.source, reason) for place, reason in report.plan.opaque)
        parts.append(
            section(
                "Row-major for want of a rule or a kernel",
                "They read and write their shape row-major; the conversions beside them are theirs.",
                table(rows3, ["operator", "source", "why"]),
            )
        )
    if report.plan.blocks:
        places = ((place.operator, place.source) for place in dict.fromkeys(report.plan.blocks))
        parts.append(
            section(
                "Kept in blocks",
                "They cut dimensions where another operator does not, so the pieces stay together. "
                "Other sizes would avoid it.",
                table(places, ["operator", "source"]),
            )
        )
    return "\n".join(parts)


def _npu(npu: NpuReport) -> str:
    found = npu.by_place()
    most = max((count for _, count in found), default=1) or 1
    rows = "".join(
        f"<tr><td>{escape(place.operator)}</td><td>{escape(place.source)}</td>"
        f'<td class="right">{count:,}</td>'
        f'<td class="wide">{bar(count / most)}</td></tr>'
        for place, count in found
    )
    held = ", ".join(f"{size(count)} of {name}" for name, count in npu.memories.items())
    text = (
        f"Vela {npu.vela} estimates {npu.cycles:,} cycles ({npu.milliseconds:.3g} ms) and {held} for "
        f"{npu.accelerator} ({npu.system_config}, {npu.memory_mode}); {npu.cpu_operators or 'no'} operators "
        "are left to the CPU. Cycles by operator, which overlap:"
    )
    return section("NPU", text, f"<table>{rows}</table>")


def _seconds(lowered: Lowered) -> str:
    total = sum(lowered.seconds.values()) or 1.0
    rows = "".join(
        f'<tr><td>{escape(step)}</td><td class="right">{seconds:.2f} s</td>'
        f'<td class="wide">{bar(seconds / total)}</td>'
        "</tr>"
        for step, seconds in lowered.seconds.items()
    )
    rows += f'<tr><td><b>total</b></td><td class="right"><b>{total:.2f} s</b></td><td></td></tr>'
    added = f"{lowered.constant_bytes_added:,} bytes of constants were added"
    facts = f"The program has {len(lowered.artifact.data):,} bytes; {added}."
    return section("Time", facts, f"<table>{rows}</table>")


def _proof(report: Report) -> str:
    plan, certificate = report.plan, report.plan.certificate
    costs = ", ".join(_unit(value, unit) for value, unit in zip(plan.cost, plan.units, strict=True))
    verdict = (
        "The two meet: this plan is proven to be the cheapest"
        if certificate.optimal
        else "The two differ: a cheaper plan may exist"
    )
    truncated = (
        "" if certificate.candidates == "complete" else " Some candidates were left out for their number."
    )
    return (
        f"<footer><p>The plan costs {costs}. The bound is {_unit(certificate.lower_bound, plan.units[0])}. "
        f"{verdict} over {certificate.candidates} candidates ({escape(certificate.solver)})."
        f"{truncated}</p></footer>"
    )


def _unit(value: int, unit: str) -> str:
    return f"{value:,} {unit[:-1] if value == 1 and unit.endswith('s') else unit}"
