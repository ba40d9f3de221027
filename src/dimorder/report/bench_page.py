"""Render a bench as a page: a bar for each runtime, and the times of our operators and kernels."""

from __future__ import annotations

from html import escape

from dimorder.latency.bench import Bench, Timed
from dimorder.latency.machine import described
from dimorder.report import parts
from dimorder.report.parts import bar, grid, row, section, size

_STYLE = """
.ours td{font-weight:600}td .bar{min-width:12rem;margin-top:.45rem}
.ours .bar i{background:var(--accent)}
"""


def bench_page(found: Bench, title: str = "") -> str:
    """Return the whole page."""
    name = title or found.network
    sections = [
        _head(found, name),
        _runtimes(found),
        *(_kernels(each) for each in found.rows if each.kernels),
        _operators(found),
        f"<footer><p>{escape(described(found.environment))}</p></footer>",
    ]
    return parts.document(f"{name} · dimorder bench", sections, _STYLE)


def _head(found: Bench, name: str) -> str:
    first, tiles = found.rows[0], list[tuple[str, str, str]]()
    if first.median is not None:
        tiles.append((_ms(first.median), first.title, ""))
        others = [each for each in found.rows[1:] if each.median is not None]
        if others:
            best = min(others, key=lambda each: each.median or 0.0)
            told = found.ratio(best)
            assert told is not None, "both are timed"
            mood = "good" if told[2] < 1 else "bad" if told[1] > 1 else ""
            tiles.append((f"{told[0]:.2f}", f"of {best.title}, the fastest other", mood))
        if found.limit_ms:
            tiles.append((f"{first.median / found.limit_ms:.2f}", "times the machine's limit", ""))
    shapes = ", ".join(" × ".join(map(str, shape)) or "scalar" for shape in found.inputs)
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
    told = found.ratio(timed)
    cells = [
        escape(timed.title),
        bar((timed.median or 0.0) / most),
        _ms(timed.median or 0.0),
        "" if told is None else f"{told[0]:.2f} ({told[1]:.2f} to {told[2]:.2f})",
        "" if timed.seconds is None else f"{timed.seconds:,.1f} s",
        "" if timed.file_bytes is None else size(timed.file_bytes),
        "" if timed.peak_bytes is None else size(timed.peak_bytes),
        "" if timed.max_rel_error is None else f"{timed.max_rel_error:.0e}",
    ]
    return row(cells, "ours" if timed.is_ours else "")


def _kernels(timed: Timed) -> str:
    kernels = timed.kernels or ()
    most = max(each.ms for each in kernels) or 1.0
    text = (
        f"What the table of times foretells for {timed.title}, {_ms(timed.foretold_ms or 0.0)} in all, by "
        "kind of kernel; and what the machine takes at least."
    )
    rows = (
        row([escape(each.name), bar(each.ms / most), _ms(each.ms), _ms(each.least_ms), str(each.count)])
        for each in kernels
    )
    return section("Kernels", text, grid(rows, ("kernel", "", "foretold", "at least", "runs")))


def _operators(found: Bench) -> str:
    if not found.operators:
        return ""
    most = max(each.ms for each in found.operators) or 1.0
    text = (
        "Each operator of the program for XNNPACK, measured alone, those first that are farthest above what "
        "the machine takes at least."
    )
    rows = [
        row(
            [
                escape(str(each.place)),
                bar(each.ms / most),
                _ms(each.ms),
                _ms(each.limit_ms),
                str(each.count),
                " × ".join(map(str, each.shape)),
            ]
        )
        for each in found.operators
    ]
    return section("Operators", text, grid(rows, ("", "", "measured", "at least", "runs", "result")))


def _ms(value: float) -> str:
    return f"{value:,.3f} ms"
