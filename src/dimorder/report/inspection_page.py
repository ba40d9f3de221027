"""Render an inspection as a page: the run as a strip coloured by order, and searchable findings.

Like a plan's page it is self-contained. Its one script filters the findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from dimorder.eager.inspection.compare import Comparison
from dimorder.eager.inspection.findings import COSTLY, Finding
from dimorder.eager.inspection.inspection import FindingGroup, Inspection
from dimorder.eager.inspection.traced import TracedCall
from dimorder.report import graph_section as graph
from dimorder.report import parts
from dimorder.report.drawing import inspection_drawing, kind_family
from dimorder.report.parts import section, size, strip, table
from dimorder.text import shape_text

_FAMILIES = {
    "channels-last": "dimension 1 fastest",
    "row-major": "as the shape is written",
    "permuted": "dimensions in another order",
    "ambiguous": "both of the first two fit",
}
_STYLE = """
.ambiguous{background:repeating-linear-gradient(45deg,var(--row-major) 0 3px,var(--channels-last) 3px 6px)}
.cell.found{border-bottom:.3rem solid var(--conversion)}
.search{width:100%;max-width:32rem;font:inherit;padding:.45rem .7rem;margin-top:.5rem;color:inherit;
background:var(--panel);border:1px solid var(--line);border-radius:.5rem}
.verdict{display:inline-block;border-radius:.3rem;padding:0 .45rem;font-size:.8rem;background:var(--line)}
.verdict.costly{background:var(--conversion);color:var(--back)}
.card .bars{display:grid;grid-template-columns:auto 1fr auto;gap:0 .6rem;align-items:center;font-size:.85rem}
.card .bars .time i{background:var(--channels-last)}
"""
_SCRIPT = """{
const box = document.querySelector('.search'), cards = [...document.querySelectorAll('.card')];
const count = document.querySelector('.shown');
box?.addEventListener('input', () => {
  const words = box.value.toLowerCase().split(/\\s+/);
  for (const card of cards) {
    card.hidden = !words.every(word => card.textContent.toLowerCase().includes(word));
  }
  count.textContent = `${cards.filter(card => !card.hidden).length} of ${cards.length}`;
});
}
"""


def inspection_page(found: Inspection, title: str = "", comparison: Comparison | None = None) -> str:
    """Return the page of an inspection, in self-contained HTML.

    >>> import torch, dimorder
    >>> found = dimorder.inspect(torch.nn.Conv2d(3, 8, 3), torch.randn(2, 3, 5, 7))
    >>> inspection_page(found, "a convolution").startswith("<!doctype html>")
    True
    """
    name = title or found.name
    sections = [
        _head(found, name),
        _compared(comparison) if comparison else "",
        _graph(found),
        _strip(found),
        _findings(found),
    ]
    style, script = graph.style() + _STYLE, graph.script() + _SCRIPT
    return parts.document(f"{name} · dimorder inspect", sections, style, script)


def _head(found: Inspection, name: str) -> str:
    counts = Counter(f.verdict for f in found.findings)
    tiles = [
        *((str(counts[verdict]), verdict, "bad" if counts[verdict] else "good") for verdict in COSTLY),
        (size(found.moved_bytes), "moved for it", ""),
        (f"{found.model_us / 1000:,.1f} ms", f"{len(found.calls)} operators", ""),
    ]
    order = {"channels_last": "channels-last", "contiguous": "row-major", None: "the order it came in"}
    shapes = ", ".join(shape_text(shape, " × ") for shape in found.inputs) or "no tensors"
    text = f"{shapes}, run in <b>{order[found.order]}</b>, inspected by dimorder."
    return parts.head(name, text, tiles)


def _compared(comparison: Comparison) -> str:
    rows = [
        (name, f"{us / 1000:,.2f} ms", str(ratio), (ratio.order or "either").replace("_", "-"))
        for name, (ratio, us) in comparison.regions.items()
    ]
    whole = (
        f"{comparison.contiguous_us / 1000:,.1f} ms row-major, {comparison.channels_last_us / 1000:,.1f} ms "
        f"channels-last: {comparison.recommendation}. {comparison.rounds} rounds in turn; the bound is 95 %."
    )
    return section("Both orders", whole, table(rows, ["region", "row-major", "ratio", "faster"]))


def _graph(found: Inspection) -> str:
    text = (
        "The operators as they ran, without views, coloured by the order that they wrote. Hover for the "
        "source line, and for what was lost and why."
    )
    return graph.graph_section(text, tuple(_FAMILIES), graph.Picture(inspection_drawing(found)))


def _strip(found: Inspection) -> str:
    calls = [
        call for call in found.calls if call.results and len(call.results[0].shape) > 2 and not call.is_view
    ]
    by_call: dict[int, list[Finding]] = {}
    for finding in found.findings:
        by_call.setdefault(finding.call, []).append(finding)
    text = (
        f"{len(calls)} operators on values of 3 dims or more, in the order they ran, coloured by the order "
        "of what they wrote; underlined where something was lost, copied or mixed. Hover for more. Views are "
        "not shown."
    )
    cells = [
        (call.module or "(top)", kind_family(call.results[0].kind), _cell(call, by_call.get(call.index, [])))
        for call in calls
    ]
    return section("Operators", text, strip(cells, _FAMILIES))


def _cell(call: TracedCall, findings: Sequence[Finding]) -> str:
    costly = any(f.verdict in COSTLY for f in findings)
    result = call.results[0]
    lines = [
        f"<b>{escape(call.operator)}</b> {shape_text(result.shape, ' × ')}",
        escape(f"{call.module}, {Path(call.source).name}"),
        f"<em>writes</em> {escape(result.order_name)}, <em>in</em> {call.time_us:,.0f} µs",
        *(escape(f"{f.verdict}: {f.before} → {f.after}") for f in findings),
    ]
    return parts.cell(f"{kind_family(result.kind)}{' found' if costly else ''}", lines)


def _findings(found: Inspection) -> str:
    if not found.places:
        return section("Findings", "None: the order is kept throughout.", "")
    most_bytes = max(place.bytes for place in found.places) or 1
    most_us = max(place.time_us for place in found.places) or 1.0
    cards = "\n".join(_card(place, most_bytes, most_us) for place in found.places)
    count = len(found.places)
    text = f"{len(found.findings)} at {count} places; a line that repeats in several modules is one place."
    box = (
        '<input class="search" type="search" placeholder="search: a module, an operator, a file, a verdict" '
        f'aria-label="search findings"> <small class="shown">{count} of {count}</small>'
    )
    return section("Findings", text, f'{box}<div class="cards">{cards}</div>')


def _card(place: FindingGroup, most_bytes: int, most_us: float) -> str:
    found, count = place.findings[0], len(place.findings)
    costly = " costly" if found.verdict in COSTLY else ""
    times = f" <small>×{count}</small>" if count > 1 else ""
    modules = ", ".join(place.modules[:4]) + (
        f" and {len(place.modules) - 4} more" * (len(place.modules) > 4)
    )
    bars = "".join(
        f'<span>{label}</span><div class="bar {label}"><i style="width:{100 * share:.1f}%"></i></div>'
        f"<span>{value}</span>"
        for label, share, value in (
            ("bytes", place.bytes / most_bytes, f"{place.bytes:,}"),
            ("time", place.time_us / most_us, f"{place.time_us:,.0f} µs"),
        )
    )
    shape = f" <small>{shape_text(found.shape, ' × ')}</small>"
    function = f" <small>by {escape(found.function)}</small>" if found.function else ""
    return (
        f'<article class="card"><h3><span class="verdict{costly}">{found.verdict}</span>{times} '
        f"<code>{escape(found.operator)}</code>{function}</h3>"
        f"{parts.orders(found.before, found.after, shape)}"
        f'<div class="bars">{bars}</div>'
        f"<dl><dt>at</dt><dd>{escape(found.place)}</dd><dt>in</dt><dd>{escape(modules or '(top)')}</dd></dl>"
        f"<p>{escape(found.what_to_do)}</p></article>"
    )
