"""Render a bench as a page: a bar for each runtime, and the times of our operators and kernels."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from dimorder.cpu import describe_machine
from dimorder.latency.bench import Bench, Timed
from dimorder.report import parts
from dimorder.report.parts import bar, grid, row, section
from dimorder.text import shape_text

_BAR = 44  # pixels from one bar to the next
_STYLE = """
td{white-space:nowrap}.ours td{font-weight:600}
.chart{display:block;width:100%;max-width:52rem;margin:.75rem 0 1.5rem}
.chart text{font-size:.88rem;fill:var(--text)}.chart .value{text-anchor:end;fill:var(--soft)}
.chart .own{fill:var(--conversion)}.chart .other{fill:var(--channels-last)}
.chart .limit{fill:var(--row-major)}
.chart line{stroke:var(--text);stroke-width:2}
"""


def bench_page(found: Bench, title: str = "") -> str:
    """Return the page of a bench, in self-contained HTML."""
    name = title or found.network
    sections = [
        _head(found, name),
        _runtimes(found),
        *(_kernels(each) for each in found.rows if each.kernels),
        _operators(found),
        f"<footer><p>{escape(describe_machine(found.environment))}</p></footer>",
    ]
    return parts.document(f"{name} · dimorder bench", sections, _STYLE)


def _head(found: Bench, name: str) -> str:
    first, tiles = found.rows[0], list[tuple[str, str, str]]()
    if first.median is not None:
        tiles.append((_ms(first.median), first.title, ""))
        others = [each for each in found.rows[1:] if each.median is not None]
        if others:
            best = min(others, key=lambda each: each.median or 0.0)
            ratio = found.ratio(best)
            assert ratio is not None, "both are timed"
            mood = "good" if ratio[2] < 1 else "bad" if ratio[1] > 1 else ""
            tiles.append((f"{ratio[0]:.2f}", f"of {best.title}, the fastest other", mood))
        if found.limit_ms:
            tiles.append((f"{first.median / found.limit_ms:.2f}", "times the machine's limit", ""))
    shapes = ", ".join(shape_text(shape, " × ") for shape in found.inputs)
    text = f"{shapes or 'no tensors'}, {found.run}, timed by dimorder."
    return parts.head(name, text, tiles)


def _runtimes(found: Bench) -> str:
    timed = sorted((each for each in found.rows if each.ms), key=lambda each: each.median or 0.0)
    rows = [row(map(escape, found.cells(each)), 'class="ours"' if each.is_ours else "") for each in timed]
    text = (
        "Medians, from fastest to slowest, with a line from the first to the last decile of the rounds. "
        "Below 1, ours takes less time; in brackets the interval of 95 %. An error is in shares of an "
        "output's largest value, against PyTorch."
    )
    titles = ("", "ms", "ours / this", "made in", "file", "memory", "error")
    failed = parts.table(((each.title, each.error) for each in found.rows if each.error), ("fails", "why"))
    chart = _chart(found, timed) if timed else ""
    content = chart + grid(rows, titles) + (failed if len(timed) < len(found.rows) else "")
    return section("Runtimes", text, content)


def _chart(found: Bench, timed: Sequence[Timed]) -> str:
    """Return a chart with a bar for each runtime, and one for the machine's limit if it is known.

    Lengths are shares of the width, so that the text keeps its size on a phone.
    """
    deciles = {each.name: (min(each.ms), max(each.ms)) for each in timed}
    for each in timed:
        if len(each.ms) > 1:
            cuts = statistics.quantiles(each.ms, n=10, method="inclusive")
            deciles[each.name] = cuts[0], cuts[-1]
    most = max(last for _, last in deciles.values())
    bars = (
        [_bar("limit", "the machine's limit", _ms(found.limit_ms), found.limit_ms / most)]
        if found.limit_ms
        else []
    )
    for each in timed:
        ratio = found.ratio(each)
        value = _ms(each.median or 0.0) + (f", ours / this {ratio[0]:.2f}" if ratio else "")
        first, last = (100 * cut / most for cut in deciles[each.name])
        line = f'<line x1="{first:.1f}%" x2="{last:.1f}%" y1="27" y2="27"/>'
        bars.append(
            _bar("own" if each.is_ours else "other", each.title, value, (each.median or 0.0) / most, line)
        )
    drawn = "".join(f'<svg y="{_BAR * place}" height="{_BAR}">{bar}</svg>' for place, bar in enumerate(bars))
    return f'<svg class="chart" role="img" aria-label="medians" height="{_BAR * len(bars)}">{drawn}</svg>'


def _bar(kind: str, title: str, value: str, share: float, line: str = "") -> str:
    return (
        f'<text y="15">{escape(title)}</text><text class="value" x="100%" y="15">{escape(value)}</text>'
        f'<rect class="{kind}" y="20" width="{100 * share:.1f}%" height="14" rx="3"/>{line}'
    )


def _kernels(timed: Timed) -> str:
    kernels = timed.kernels or ()
    most = max(each.ms for each in kernels) or 1.0
    text = (
        f"What the table of times predicts for {timed.title}, {_ms(timed.predicted_ms or 0.0)} in all, by "
        "kind of kernel; and what the machine takes at least."
    )
    rows = (
        row([escape(each.name), bar(each.ms / most), _ms(each.ms), _ms(each.least_ms), str(each.count)])
        for each in kernels
    )
    return section("Kernels", text, grid(rows, ("kernel", "", "predicted", "at least", "runs")))


def _operators(found: Bench) -> str:
    if not found.operators:
        return ""
    most = max(each.ms for each in found.operators) or 1.0
    text = (
        "Each operator of the program for XNNPACK, measured alone, those first that are farthest above what "
        "the machine takes at least."
    )
    rows = []
    for each in found.operators:
        times = [bar(each.ms / most), _ms(each.ms), _ms(each.limit_ms)]
        rows.append(row([escape(str(each.place)), *times, str(each.count), shape_text(each.shape, " × ")]))
    return section("Operators", text, grid(rows, ("", "", "measured", "at least", "runs", "result")))


def _ms(value: float) -> str:
    return f"{value:,.3f} ms"
