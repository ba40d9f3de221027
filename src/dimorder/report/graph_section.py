"""Draw a plan as a graph that can be zoomed and searched: operators by order, conversions on edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from dimorder.plans.network_plan import Explanation, PlannedConversion
from dimorder.report.operator_rows import FAMILIES, OperatorRow
from dimorder.report.parts import section, size
from dimorder.report.plan_graph import HEIGHT, WIDTH, Edge, GraphLayout, lay_out, svg_path
from dimorder.text import counted, shape_text

_LETTERS = 22  # of a line in a box

# A conversion, and its reason if one was asked for.
Converted = tuple[PlannedConversion, Explanation | None]


def script() -> str:
    """Return the script that zooms, searches and shows details."""
    return Path(__file__).with_name("graph.js").read_text()


def style() -> str:
    """Return the CSS of the graph."""
    return Path(__file__).with_name("graph.css").read_text()


def graph_section(
    rows: Sequence[OperatorRow], edges: Sequence[Edge], conversions: Mapping[int, Converted]
) -> str:
    """Return the section with the graph of a plan.

    Args:
        rows: the operators, in program order.
        edges: what each of them reads.
        conversions: each conversion by its number.

    Returns:
        The section in HTML. `script` and `style` belong to its page.
    """
    layout = lay_out(len(rows), edges)
    marked = [edge for edge in edges if edge.conversion is not None]
    drawing = [
        *(_edge(edge, layout) for edge in sorted(edges, key=lambda edge: edge.conversion is not None)),
        *(_node(index, row, layout) for index, row in enumerate(rows)),
        *(_badge(edge, layout, conversions) for edge in marked),
    ]
    steps = (
        '<button data-step="-1" title="the conversion before">‹</button>'
        f'<span class="place">{len(conversions)} conversion{"s" * (len(conversions) != 1)}</span>'
        '<button data-step="1" title="the next conversion">›</button>'
    )
    tools = (
        '<input class="find" type="search" placeholder="search: an operator, a file, an order" '
        'aria-label="search the graph"> <small class="hits"></small>'
        f'<span class="steps">{steps if conversions else ""}</span>'
        '<span class="zoom"><button data-zoom="0.7" title="larger">+</button>'
        '<button data-zoom="1.43" title="smaller">−</button>'
        '<button data-zoom="0" title="show everything">fit</button></span>'
    )
    about = [
        *(_about_node(index, row) for index, row in enumerate(rows)),
        *(_about_conversion(number, *found) for number, found in conversions.items()),
    ]
    legend = "".join(
        f'<li><i class="cell {family}"></i>{family}</li>'
        for family in FAMILIES
        if any(row.family == family for row in rows)
    )
    box = (
        f'<div class="tools">{tools}</div><ul class="legend">{legend}</ul>'
        f'<svg class="graph" viewBox="0 0 {layout.width:g} {layout.height:g}" role="img" '
        f'aria-label="the graph of the plan" tabindex="0">{"".join(drawing)}</svg>'
        f'<div class="details" aria-live="polite"><p class="hint">Click on an operator or a conversion.</p>'
        f"{''.join(about)}</div>"
    )
    text = (
        "The network as the plan computes it. A column continues at the top of the next one. "
        "Turn the wheel to zoom, and drag to move."
    )
    return section("Graph", text, f'<div class="explorer">{box}</div>')


def _edge(edge: Edge, layout: GraphLayout) -> str:
    converts = "" if edge.conversion is None else " converts"
    return f'<path class="edge{converts}" d="{svg_path(layout.paths[edge])}"/>'


def _node(index: int, row: OperatorRow, layout: GraphLayout) -> str:
    x, y = layout.nodes[index]
    order = next(iter(row.writes or row.reads), "").split(" (")[0]
    lines = (row.operator.removeprefix("aten."), f"{order} {shape_text(row.shape, '×')}".strip())
    texts = "".join(
        f'<text class="line{number}" y="{(-3, 11)[number]}">{escape(_shortened(line))}</text>'
        for number, line in enumerate(lines)
    )
    return (
        f'<g class="node {row.family}" id="node-{index}" data-about="about-node-{index}" '
        f'transform="translate({x:g} {y:g})"><rect x="{-WIDTH / 2:g}" y="{-HEIGHT / 2:g}" width="{WIDTH}" '
        f'height="{HEIGHT}" rx="6"/>{texts}</g>'
    )


def _badge(edge: Edge, layout: GraphLayout, conversions: Mapping[int, Converted]) -> str:
    """Return the mark of a conversion, in the middle of the last piece of its edge."""
    number = edge.conversion
    assert number is not None
    (x, y), (to_x, to_y) = layout.paths[edge][-2:]
    moved = size(conversions[number][0].bytes)
    return (
        f'<g class="badge" data-about="about-conversion-{number}" data-conversion="{number}" '
        f'transform="translate({(x + to_x) / 2:g} {(y + to_y) / 2:g})"><rect x="-38" y="-8" width="76" '
        f'height="16" rx="8"/><text y="4">{number} · {moved}</text></g>'
    )


def _about_node(index: int, row: OperatorRow) -> str:
    return _about(f"about-node-{index}", f"<code>{escape(row.operator)}</code>", row.facts.items())


def _about_conversion(number: int, conversion: PlannedConversion, reason: Explanation | None) -> str:
    facts = [
        ("value", f"{conversion.value} {shape_text(conversion.shape, ' × ')}"),
        ("before", conversion.from_order),
        ("after", conversion.to_order),
        ("moves", f"{conversion.bytes:,} bytes"),
        ("from", str(conversion.producer)),
        ("for", "; ".join(map(str, conversion.consumers))),
        ("without it", alternative(reason) if reason else ""),
        ("advice", reason.advice if reason else ""),
    ]
    title = f'conversion <a class="mark" href="#conversion-{number}">{number}</a>'
    return _about(f"about-conversion-{number}", title, facts)


def _about(name: str, title: str, facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{label}</dt><dd>{escape(text)}</dd>" for label, text in facts if text)
    return f'<div class="about" id="{name}" hidden><h3>{title}</h3><dl>{rows}</dl></div>'


def alternative(found: Explanation) -> str:
    """Return what a plan without a conversion would cost."""
    if found.cost_without is None:
        return "no plan does without it"
    if found.cost_without == found.cost:
        return "a plan without it costs the same"
    return f"a plan without it costs {counted(found.cost_without, found.unit)}, not {found.cost:,}"


def _shortened(line: str) -> str:
    return line if len(line) <= _LETTERS else line[: _LETTERS - 1] + "…"
