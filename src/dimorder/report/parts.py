"""Build the parts of all pages: one document with its own CSS, tiles, sections, tables and bars.

A page needs nothing from the network, so it can be mailed, and opens anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from dimorder.report.colours import variables
from dimorder.text import html_table

_MAX_ROWS = 64  # of a strip: with more, modules are grouped one level higher


def document(title: str, sections: Iterable[str], style: str = "", script: str = "") -> str:
    """Return the whole page, without empty sections; `style` is added to the CSS of all pages."""
    css = variables() + Path(__file__).with_name("page.css").read_text() + style
    body = "\n".join(section for section in sections if section)
    run = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n{run}</body>\n</html>\n"
    )


def head(title: str, text: str, tiles: Iterable[tuple[str, str, str]]) -> str:
    """Return the head of a page: `text` is HTML; a tile is a value, its label, and good, bad or neither."""
    shown = "".join(
        f'<div class="tile {mood}"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for value, label, mood in tiles
    )
    return f'<header><h1>{escape(title)}</h1><p>{text}</p></header>\n<div class="tiles">{shown}</div>'


def section(title: str, text: str, content: str = "") -> str:
    """Return a section; `content` is HTML."""
    return f"<section><h2>{title}</h2><p>{escape(text)}</p>{content}</section>"


def strip(cells: Sequence[tuple[str, str, str]], families: Mapping[str, str], more: str = "") -> str:
    """Return cells (module, family, HTML) in rows by module, with a legend that `more` ends."""
    counts = Counter(family for _, family, _ in cells)
    legend = "".join(
        f'<li><i class="cell {name}"></i>{name} <small>{counts[name]} · {meaning}</small></li>'
        for name, meaning in families.items()
        if counts[name]
    )
    runs = _runs_of_modules(cells, 2)
    rows = "".join(
        f'<div class="row"><b>{escape(label)}</b><div class="cells">{html}</div></div>'
        for label, html in (runs if len(runs) <= _MAX_ROWS else _runs_of_modules(cells, 1))
    )
    return f'<ul class="legend">{legend}{more}</ul><div class="strip">{rows}</div>'


def cell(classes: str, lines: Iterable[str]) -> str:
    """Return a cell of a strip, with lines of HTML that show on hover."""
    tip = "".join(f"<span>{line}</span>" for line in lines if line)
    return f'<i class="cell {classes}" tabindex="0"><span class="tip">{tip}</span></i>'


def _runs_of_modules(cells: Sequence[tuple[str, str, str]], levels: int) -> list[tuple[str, str]]:
    keyed = groupby(cells, key=lambda cell: ".".join(cell[0].split(".")[:levels]))
    return [(label, "".join(html for _, _, html in run)) for label, run in keyed]


def table(rows: Iterable[Sequence[str]], titles: Sequence[str]) -> str:
    """Return a table of texts."""
    return f'<div class="scroll">{html_table(rows, titles)}</div>'


def grid(rows: Iterable[str], titles: Sequence[str]) -> str:
    """Return a table of rows from `row`."""
    top = "".join(f"<th>{title}</th>" for title in titles)
    return f'<div class="scroll"><table><tr>{top}</tr>{"".join(rows)}</table></div>'


def row(cells: Iterable[str], attributes: str = "") -> str:
    """Return a row of cells in HTML, with attributes such as a class of the page's CSS."""
    attributes = f" {attributes}" if attributes else ""
    return f"<tr{attributes}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def orders(before: str, after: str, shape: str = "") -> str:
    """Return the orders before and after a conversion."""
    return f'<p class="orders"><span>{escape(before)}</span> → <span>{escape(after)}</span>{shape}</p>'


def bar(share: float) -> str:
    """Return a bar with the share that is filled, between 0 and 1."""
    return f'<div class="bar"><i style="width:{100 * share:.1f}%"></i></div>'


def size(count: int) -> str:
    """Return bytes as a person would say them.

    >>> size(602112), size(0)
    ('602 kB', '0 B')
    """
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"
