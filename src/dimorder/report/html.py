"""Render the report of a plan: one HTML page without a script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from dimorder.plans.network_plan import Explanation
from dimorder.report import parts
from dimorder.report.model import ConversionRow, Lowering, OperatorRow, Report
from dimorder.report.parts import bar, section, size, table
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
        _npu(report.lowering.npu) if report.lowering and report.lowering.npu else "",
        _seconds(report.lowering) if report.lowering else "",
        _proof(report),
    ]
    return parts.document(f"{report.title} · dimorder", sections)


def _head(report: Report) -> str:
    count = len(report.conversions)
    proven = "proven least" if report.optimal else "not proven least"
    bound = _unit(report.lower_bound, report.units[0])
    tiles = [
        (str(count), "conversion" if count == 1 else "conversions", ""),
        (size(report.converted_bytes), "moved by them", ""),
        (proven, f"no plan costs less than {bound}", "good" if report.optimal else "bad"),
    ]
    if report.lowering:
        outside = sum(report.lowering.outside.values())
        delegates = f"{report.lowering.delegates} delegate{'s' * (report.lowering.delegates != 1)}"
        tiles += [
            (f"{report.lowering.max_rel_error:.1e}", "largest relative error", ""),
            (delegates, f"{outside or 'no'} operator{'s' * (outside != 1)} outside", ""),
        ]
    text = f"Memory orders for target <b>{escape(report.target)}</b>, planned by dimorder."
    return parts.head(report.title, text, tiles)


def _contract(report: Report) -> str:
    return section(
        "Contract",
        "What the program promises, and checks on every call.",
        table(report.contract.rows(" × "), ["", "name", "shape", "type", "order"]),
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
    counts = Counter(row.family for row in report.operators)
    legend = "".join(
        f'<li><i class="cell {name}"></i>{name} <small>{counts[name]} · {told}</small></li>'  # type: ignore[index]
        for name, told in _FAMILIES.items()
        if counts[name]  # type: ignore[index]
    )
    legend += '<li><i class="mark">0</i>conversion</li>' if report.conversions else ""
    rows = "".join(
        f'<div class="row"><b>{escape(label)}</b><div class="cells">{"".join(map(_cell, group))}</div></div>'
        for label, group in _grouped(report.operators)
    )
    text = (
        f"{len(report.operators)} operators in program order, coloured by the order that they write. "
        f"Hover for more. Views, permutes and reshapes ({report.relabels}) are free and not shown. An order "
        "is named by the shape that a value was made with: channels-last of N × C × H × W and row-major of "
        "N × H × W × C are the same memory."
    )
    return section("Operators", text, f'<ul class="legend">{legend}</ul><div class="strip">{rows}</div>')


def _grouped(operators: Sequence[OperatorRow]) -> Iterator[tuple[str, list[OperatorRow]]]:
    """Return runs of operators by module, to a depth of two levels, or of one if there are too many runs."""

    def rows(levels: int) -> list[tuple[str, list[OperatorRow]]]:
        keyed = groupby(operators, key=lambda row: ".".join(row.module.split(".")[:levels]))
        return [(label, list(group)) for label, group in keyed]

    fine = rows(2)
    yield from fine if len(fine) <= parts.MAX_ROWS else rows(1)


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
    if report.lowering and report.lowering.outside:
        rows = ((name, str(count)) for name, count in report.lowering.outside.items())
        parts.append(
            section(
                "Outside of the delegates",
                "Run by the runtime's portable kernels, row-major.",
                table(rows, ["operator", "calls"]),
            )
        )
    if report.opaque:
        rows3 = ((place.operator, place.source, reason) for place, reason in report.opaque)
        parts.append(
            section(
                "Row-major for want of a rule or a kernel",
                "They read and write their shape row-major; the conversions beside them are theirs.",
                table(rows3, ["operator", "source", "why"]),
            )
        )
    if report.blocks:
        places = ((place.operator, place.source) for place in dict.fromkeys(report.blocks))
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


def _seconds(lowering: Lowering) -> str:
    total = sum(lowering.seconds.values()) or 1.0
    rows = "".join(
        f'<tr><td>{escape(step)}</td><td class="right">{seconds:.2f} s</td>'
        f'<td class="wide">{bar(seconds / total)}</td>'
        "</tr>"
        for step, seconds in lowering.seconds.items()
    )
    rows += f'<tr><td><b>total</b></td><td class="right"><b>{total:.2f} s</b></td><td></td></tr>'
    added = f"{lowering.constant_bytes_added:,} bytes of constants were added"
    facts = f"The program has {lowering.artifact_bytes:,} bytes; {added}."
    return section("Time", facts, f"<table>{rows}</table>")


def _proof(report: Report) -> str:
    costs = ", ".join(_unit(value, unit) for value, unit in zip(report.cost, report.units, strict=True))
    verdict = (
        "The two meet: this plan is proven to be the cheapest"
        if report.optimal
        else "The two differ: a cheaper plan may exist"
    )
    truncated = "" if report.candidates == "complete" else " Some candidates were left out for their number."
    return (
        f"<footer><p>The plan costs {costs}. The bound is {_unit(report.lower_bound, report.units[0])}. "
        f"{verdict} over {report.candidates} candidates ({escape(report.solver)}).{truncated}</p></footer>"
    )


def _unit(value: int, unit: str) -> str:
    return f"{value:,} {unit[:-1] if value == 1 and unit.endswith('s') else unit}"
