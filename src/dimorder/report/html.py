"""Decides how a report looks: one HTML page with its own CSS, light or dark as the reader's system is; no script, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from dimorder.program.contract import describe
from dimorder.report.model import ConversionRow, Lowering, OperatorRow, Report

_FAMILIES = {
    "row-major": "as the shape is written",
    "channels-last": "dimension 1 fastest",
    "permuted": "whole dimensions in another order",
    "cut": "dimensions cut, their pieces apart",
}
_MAX_ROWS = 64  # of the strip: with more, modules are grouped one level higher


def page(report: Report) -> str:
    """The whole page."""
    sections = [
        _head(report),
        _contract(report),
        _conversions(report),
        _strip(report),
        _left_over(report),
        _seconds(report.lowering) if report.lowering else "",
        _proof(report),
    ]
    body = "\n".join(section for section in sections if section)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)} · dimorder</title>\n<style>{_CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _head(report: Report) -> str:
    count = len(report.conversions)
    proven = "proven least" if report.optimal else "not proven least"
    bound = _unit(report.lower_bound, report.units[0])
    tiles = [
        (str(count), "conversion" if count == 1 else "conversions", ""),
        (_size(report.converted_bytes), "moved by them", f"{report.converted_bytes:,} bytes"),
        (proven, f"no plan costs less than {bound}", "good" if report.optimal else "bad"),
    ]
    if report.lowering:
        outside = sum(report.lowering.outside.values())
        delegates = f"{report.lowering.delegates} delegate{'s' * (report.lowering.delegates != 1)}"
        tiles += [
            (f"{report.lowering.max_rel_error:.1e}", "largest relative error", "against the network, random inputs"),
            (delegates, f"{outside or 'no'} operator{'s' * (outside != 1)} outside", ""),
        ]
    shown = "".join(
        f'<div class="tile {kind if kind in ("good", "bad") else ""}"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for value, label, kind in tiles
    )
    return (
        f"<header><h1>{escape(report.title)}</h1>"
        f"<p>Memory orders for target <b>{escape(report.target)}</b>, planned by dimorder.</p></header>\n"
        f'<div class="tiles">{shown}</div>'
    )


def _contract(report: Report) -> str:
    rows = [("input", spec) for spec in report.contract.inputs]
    rows += [("output", spec) for spec in report.contract.outputs]
    cells = (
        (kind, spec.name, " × ".join(map(str, spec.shape)) or "scalar", spec.dtype, describe(spec.dim_order))
        for kind, spec in rows
    )
    return _section("Contract", "What the program promises, and checks on every call.", _table(cells, ["", "name", "shape", "type", "order"]))


def _conversions(report: Report) -> str:
    if not report.conversions:
        return _section("Conversions", "None: no value is ever copied into another order.", "")
    cards = "\n".join(_card(row) for row in report.conversions)
    hidden = sum(row.explanation is None for row in report.conversions)
    note = f" The reasons of the {len(report.conversions) - hidden} largest are given." if hidden else ""
    text = f"Copies of a value into another order. Everything else about order is free, or done ahead of time.{note}"
    return _section("Conversions", text, f'<div class="cards">{cards}</div>')


def _card(row: ConversionRow) -> str:
    made = row.conversion
    consumers = "<br>".join(escape(str(place)) for place in made.consumers[:3])
    more = f"<br>and {len(made.consumers) - 3} more" if len(made.consumers) > 3 else ""
    reason = ""
    if row.explanation:
        found = row.explanation
        without = (
            "No plan does without it."
            if found.cost_without is None
            else f"Without it the best plan costs {_unit(found.cost_without, found.unit)} instead of {_unit(found.cost, found.unit)}."
        )
        advice = found.advice[:1].upper() + found.advice[1:]
        reason = f"<p>{escape(without)}</p><p>{escape(advice)}.</p>"
    shape = " × ".join(map(str, made.shape))
    return (
        f'<article class="card" id="conversion-{row.number}"><h3><i class="number">{row.number}</i>'
        f"<code>{escape(made.value)}</code> <small>{shape}</small></h3>"
        f'<p class="orders"><span>{escape(made.from_order)}</span> → <span>{escape(made.to_order)}</span></p>'
        f'<div class="bar" title="{row.share:.0%} of all bytes converted"><i style="width:{100 * row.share:.1f}%"></i></div>'
        f"<p><b>{made.bytes:,} bytes</b>, {row.share:.0%} of all that is converted</p>"
        f"<dl><dt>from</dt><dd>{escape(str(made.producer))}</dd><dt>for</dt><dd>{consumers}{more}</dd></dl>{reason}</article>"
    )


def _strip(report: Report) -> str:
    counts = Counter(row.family for row in report.operators)
    legend = "".join(
        f'<li><i class="cell {name}"></i>{name} <small>{counts[name]} · {told}</small></li>'  # type: ignore[index]
        for name, told in _FAMILIES.items()
        if counts[name]  # type: ignore[index]
    )
    legend += '<li><i class="mark">0</i>conversion</li>' if report.conversions else ""
    rows = "".join(
        f'<div class="row"><b>{escape(label)}</b><div class="cells">{"".join(map(_cell, operators))}</div></div>'
        for label, operators in _grouped(report.operators)
    )
    text = (
        f"{len(report.operators)} operators in program order, coloured by the order of the memory they write. Hover for more. "
        f"{report.relabels} views, permutes and reshapes are free and not shown. An order is named by the shape that a value "
        "was made with: channels-last of N × C × H × W and row-major of N × H × W × C are the same memory."
    )
    return _section("Operators", text, f'<ul class="legend">{legend}</ul><div class="strip">{rows}</div>')


def _grouped(operators: Sequence[OperatorRow]) -> Iterator[tuple[str, list[OperatorRow]]]:
    """Runs of operators by the module they lie in, cut to two levels, or to one where there are many."""

    def rows(levels: int) -> list[tuple[str, list[OperatorRow]]]:
        keyed = groupby(operators, key=lambda row: ".".join(row.module.split(".")[:levels]))
        return [(label, list(group)) for label, group in keyed]

    fine = rows(2)
    yield from fine if len(fine) <= _MAX_ROWS else rows(1)


def _cell(row: OperatorRow) -> str:
    marks = "".join(
        f'<a class="mark" href="#conversion-{number}" title="conversion {number}">{number}</a>' for number in row.conversions
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
    told = "".join(f"<span>{f'<em>{label}</em> ' if label else ''}{text}</span>" for label, text in lines if text)
    noted = " noted" if row.note else ""
    return f'{marks}<i class="cell {row.family}{noted}" tabindex="0"><span class="tip">{told}</span></i>'


def _left_over(report: Report) -> str:
    parts = []
    if report.lowering and report.lowering.outside:
        rows = ((name, str(count)) for name, count in report.lowering.outside.items())
        parts.append(
            _section(
                "Outside of the delegates",
                "Run by the runtime's portable kernels, row-major.",
                _table(rows, ["operator", "calls"]),
            )
        )
    if report.opaque:
        rows3 = ((place.operator, place.source, reason) for place, reason in report.opaque)
        parts.append(
            _section(
                "Row-major for want of a rule or a kernel",
                "These operators read and write the order that their shape is written in; conversions around them are theirs.",
                _table(rows3, ["operator", "source", "why"]),
            )
        )
    if report.blocks:
        places = ((place.operator, place.source) for place in dict.fromkeys(report.blocks))
        parts.append(
            _section(
                "Kept in blocks",
                "They cut dimensions where another operator does not, so the pieces stay together. Other sizes would avoid it.",
                _table(places, ["operator", "source"]),
            )
        )
    return "\n".join(parts)


def _seconds(lowering: Lowering) -> str:
    total = sum(lowering.seconds.values()) or 1.0
    rows = "".join(
        f'<tr><td>{escape(step)}</td><td class="right">{seconds:.2f} s</td>'
        f'<td class="wide"><div class="bar"><i style="width:{100 * seconds / total:.1f}%"></i></div></td></tr>'
        for step, seconds in lowering.seconds.items()
    )
    rows += f'<tr><td><b>total</b></td><td class="right"><b>{total:.2f} s</b></td><td></td></tr>'
    facts = f"The program has {lowering.artifact_bytes:,} bytes; {lowering.constant_bytes_added:,} bytes of constants were added."
    return _section("Time", facts, f"<table>{rows}</table>")


def _proof(report: Report) -> str:
    costs = ", ".join(_unit(value, unit) for value, unit in zip(report.cost, report.units, strict=True))
    verdict = (
        "The two meet: this plan is proven to be the cheapest"
        if report.optimal
        else "The two differ: a cheaper plan may exist"
    )
    truncated = "" if report.candidates == "complete" else " Some candidates were left out for their number."
    return (
        f"<footer><p>The plan costs {escape(costs)}. The bound is {escape(_unit(report.lower_bound, report.units[0]))}. "
        f"{verdict} over {escape(report.candidates)} candidates ({escape(report.solver)}).{truncated}</p></footer>"
    )


def _section(title: str, text: str, content: str) -> str:
    return f"<section><h2>{title}</h2><p>{escape(text)}</p>{content}</section>"


def _table(rows: Iterable[Sequence[str]], head: Sequence[str]) -> str:
    titles = "".join(f"<th>{title}</th>" for title in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{titles}</tr>{body}</table></div>'


def _unit(value: int, unit: str) -> str:
    return f"{value:,} {unit[:-1] if value == 1 and unit.endswith('s') else unit}"


def _size(count: int) -> str:
    """Bytes as a person would say them.

    >>> _size(602112), _size(0)
    ('602 kB', '0 B')
    """
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


_CSS = """
:root{color-scheme:light dark;--back:#fbfbfa;--panel:#fff;--text:#1d1f23;--soft:#62676f;--line:#e2e3e6;--accent:#c2410c;
--row:#9aa5b4;--last:#2f7fd1;--perm:#8b5cc9;--cut:#1f9d78;--good:#15803d;--bad:#b45309}
@media (prefers-color-scheme:dark){:root{--back:#15171b;--panel:#1d2025;--text:#e6e7ea;--soft:#9aa0aa;--line:#30343b;
--accent:#fb923c;--row:#6f7a89;--last:#4b9bea;--perm:#a883e0;--cut:#34b890;--good:#4ade80;--bad:#fbbf24}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:68rem;margin:0 auto;padding:2.5rem 1.5rem 7rem}
h1{font-size:1.75rem;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.75rem 0 .25rem}
h3{font-size:1rem;margin:0 0 .4rem;overflow-wrap:anywhere}
p{margin:0 0 .6rem}
header p,section>p,footer{color:var(--soft);max-width:52rem}
code,.orders,dd,td,.tip,.row>b{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.86em}
small{color:var(--soft);font-weight:400}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.75rem;margin-top:1.25rem}
.tile{background:var(--panel);border:1px solid var(--line);border-radius:.6rem;padding:.8rem 1rem}
.tile b{display:block;font-size:1.35rem;line-height:1.3}
.tile span{color:var(--soft);font-size:.88rem}
.tile.good b{color:var(--good)}.tile.bad b{color:var(--bad)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;margin-top:.5rem}
th{font-weight:500;text-align:left;color:var(--soft);font-size:.85rem}
th,td{padding:.3rem 1.5rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.right{text-align:right}td.wide{width:24rem;vertical-align:middle}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(21rem,1fr));gap:.75rem;margin-top:.75rem}
.card{background:var(--panel);border:1px solid var(--line);border-radius:.6rem;padding:1rem;font-size:.92rem;scroll-margin-top:1rem}
.card:target{border-color:var(--accent);box-shadow:0 0 0 1px var(--accent)}
.card p:last-child{margin:0}
.orders span{white-space:nowrap;background:color-mix(in srgb,var(--last) 13%,transparent);border-radius:.3rem;padding:.1rem .35rem}
.number,.mark{display:inline-flex;align-items:center;justify-content:center;min-width:1.35rem;height:1.35rem;padding:0 .25rem;
border-radius:1rem;background:var(--accent);color:var(--back);font:600 .75rem/1 system-ui,sans-serif;text-decoration:none}
.number{margin-right:.5rem}
.bar{height:.4rem;border-radius:.2rem;background:var(--line);overflow:hidden;margin:.35rem 0}
.bar i{display:block;height:100%;min-width:2px;background:var(--accent)}
td .bar{margin:0}td .bar i{background:var(--last)}
dl{display:grid;grid-template-columns:auto 1fr;gap:.1rem .7rem;margin:.5rem 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.4rem 1.5rem;padding:0;margin:.75rem 0}
.legend li{display:flex;align-items:center;gap:.5rem}
.strip{background:var(--panel);border:1px solid var(--line);border-radius:.6rem;padding:.75rem 1rem}
.row{display:grid;grid-template-columns:11rem 1fr;gap:1rem;align-items:center;padding:.18rem 0}
.row>b{font-weight:400;color:var(--soft);text-align:right;overflow-wrap:anywhere}
.cells{display:flex;flex-wrap:wrap;gap:3px;align-items:center}
.cell{width:.95rem;height:1.35rem;border-radius:.2rem;display:inline-block;flex:none;outline-offset:2px}
.cell.noted{border-bottom:.3rem solid var(--bad)}
.strip .cell:hover,.strip .cell:focus{outline:2px solid var(--text)}
.row-major{background:var(--row)}.channels-last{background:var(--last)}.permuted{background:var(--perm)}.cut{background:var(--cut)}
.tip{display:none;position:fixed;z-index:1;left:50%;bottom:1.25rem;transform:translateX(-50%);width:max-content;max-width:calc(100vw - 2rem);
background:var(--text);color:var(--back);border-radius:.5rem;padding:.7rem 1rem;font-style:normal;pointer-events:none;box-shadow:0 .3rem 1.2rem #0005}
.tip span{display:block}.tip em{opacity:.65;font-style:normal}
.cell:hover .tip,.cell:focus .tip{display:block}
.cells:hover .cell:not(:hover) .tip{display:none}
footer{margin-top:3rem;border-top:1px solid var(--line);padding-top:1rem;font-size:.9rem}
@media (max-width:40rem){.row{grid-template-columns:1fr;gap:.1rem}.row>b{text-align:left}td.wide{width:8rem}}
"""
