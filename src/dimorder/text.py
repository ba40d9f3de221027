"""Write tables, shapes and costs as text, in one way for all commands, errors and pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def columns(rows: Iterable[Sequence[str]], numbers: bool = False) -> list[str]:
    """Return rows of cells as lines with aligned columns; `numbers` aligns all but the first to the right.

    >>> columns([("x", "2 x 3"), ("mask", "5")])
    ['x     2 x 3', 'mask  5']
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        if numbers:
            cells[1:] = [text.strip().rjust(len(text)) for text in cells[1:]]
        lines.append("  ".join(cells).rstrip())
    return lines


def shape_text(shape: Iterable[object], times: str = "×") -> str:
    """Return a shape as text.

    >>> shape_text((2, 3, 5)), shape_text((2, "N"), " x "), shape_text(())
    ('2×3×5', '2 x N', 'scalar')
    """
    return times.join(map(str, shape)) or "scalar"


def counted(value: int, unit: str) -> str:
    """Return a number with its unit, in the singular or the plural.

    >>> counted(1, "conversions"), counted(2000, "bytes")
    ('1 conversion', '2,000 bytes')
    """
    return f"{value:,} {unit.removesuffix('s') if value == 1 else unit}"


def html_table(rows: Iterable[Sequence[str]], titles: Sequence[str]) -> str:
    """Return a table of texts in HTML.

    >>> html_table([("x", "2 < 3")], ("name", "size"))
    '<table><tr><th>name</th><th>size</th></tr><tr><td>x</td><td>2 &lt; 3</td></tr></table>'
    """
    cells = ["".join(f"<td>{escape(text)}</td>" for text in row) for row in rows]
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


NOTEBOOK_ROWS = 40  # of a table: a notebook shows the whole of it


def notebook_html(text: str, rows: Sequence[Sequence[str]], titles: Sequence[str]) -> str:
    """Return a text and a table as a notebook shows them, in the notebook's own colours.

    >>> notebook_html("a < b", [], ("name",))
    '<div style="overflow-x:auto"><pre>a &lt; b</pre></div>'
    """
    left = len(rows) - NOTEBOOK_ROWS
    more = f"<p>and {left} more, with print</p>" if left > 0 else ""
    table = html_table(rows[:NOTEBOOK_ROWS], titles) if rows else ""
    return f'<div style="overflow-x:auto"><pre>{escape(text)}</pre>{table}{more}</div>'
