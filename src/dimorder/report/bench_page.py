"""Render a bench as a page: a bar for each runtime, and the times of our operators and kernels."""

from __future__ import annotations

from html import escape

from dimorder.cpu import describe_machine
from dimorder.latency.bench import Bench, Timed
from dimorder.report import parts
from dimorder.report.parts import bar, grid, row, section
from dimorder.text import shape_text

_STYLE = """
.ours td{font-weight:600}
.ours .bar i{background:var(--conversion)}
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
    most = max((each.median or 0.0 for each in timed), default=0.0)
    rows = [_runtime(found, each, most) for each in timed]
    if found.limit_ms and timed:
        limit = ("the machine's limit", bar(found.limit_ms / most), _ms(found.limit_ms))
        rows.insert(0, row([*limit, "", "", "", "", ""]))
    text = (
        "Medians, from fastest to slowest. Below 1, ours takes less time; in brackets the interval of 95 %. "
        "An error is in shares of an output's largest value, against PyTorch."
    )
    titles = ("", "", "median", "ours / this", "made in", "file", "memory", "error")
    failed = parts.table(((each.title, each.error) for each in found.rows if each.error), ("fails", "why"))
    return section("Runtimes", text, grid(rows, titles) + (failed if len(timed) < len(found.rows) else ""))


def _runtime(found: Bench, timed: Timed, most: float) -> str:
    title, _, *others = found.cells(timed)
    median = timed.median or 0.0
    cells = [escape(title), bar(median / most), _ms(median), *others]
    return row(cells, 'class="ours"' if timed.is_ours else "")


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
