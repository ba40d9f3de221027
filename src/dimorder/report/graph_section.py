"""Draw graphs that can be zoomed and searched: operators by order, conversions on edges.

Two graphs of one network lie side by side, with each operator at the same position in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from dimorder.report.colours import COLOURS
from dimorder.report.drawing import Box, Drawing
from dimorder.report.parts import section, size
from dimorder.report.plan_graph import HEIGHT, PAGE_RATIO, WIDTH, Edge, GraphLayout, lay_out, svg_path

_HOVER = ("before", "after", "moves", "reason", "advice")  # facts of a conversion
_LETTERS = 22  # of a line in a box
_GUIDE = "A column continues at the top of the next one. Turn the wheel to zoom, and drag to move."


@dataclass(frozen=True)
class Picture:
    """A drawing in a section.

    Attributes:
        drawing: The drawing.
        title: Its title, if there are two.
        slots: The position of each box among those of all pictures; by default there is one picture.
        shared: The conversions that another picture has too, by their numbers.
    """

    drawing: Drawing
    title: str = ""
    slots: Sequence[int] = ()
    shared: frozenset[int] = frozenset()

    @property
    def places(self) -> Sequence[int]:
        """The slot of each box."""
        return self.slots or range(len(self.drawing.boxes))

    def slot_edge(self, edge: Edge) -> Edge:
        """Return an edge between slots."""
        return Edge(self.places[edge.source], self.places[edge.target], edge.conversion)


def script() -> str:
    """Return the script that zooms, searches and shows details."""
    return Path(__file__).with_name("graph.js").read_text()


def style() -> str:
    """Return the CSS of the graph."""
    ground = "color-mix(in srgb,var(--{0}) 16%,var(--panel))"
    families = "".join(
        f".graph .{name} rect{{stroke:var(--{name});fill:{ground.format(name)}}}\n" for name in COLOURS
    )
    return families + Path(__file__).with_name("graph.css").read_text()


def graph_section(text: str, families: Sequence[str], *pictures: Picture) -> str:
    """Return the section with one graph, or with two side by side.

    Args:
        text: what the graph shows.
        families: the kinds of orders, for the legend.
        pictures: the graphs.

    Returns:
        The section in HTML. `script` and `style` belong to its page.
    """
    edges = dict.fromkeys(picture.slot_edge(edge) for picture in pictures for edge in picture.drawing.edges)
    count = 1 + max((slot for picture in pictures for slot in picture.places), default=-1)
    layout = lay_out(count, list(edges), PAGE_RATIO / len(pictures))
    shown = "".join(_picture(number, picture, layout) for number, picture in enumerate(pictures))
    used = {box.family for picture in pictures for box in picture.drawing.boxes}
    keys = [f'<li><i class="cell {name}"></i>{name}</li>' for name in families if name in used]
    if len(pictures) > 1:
        keys += [f'<li><i class="mark {name}">0</i>{words}</li>' for name, words in _CONVERSIONS.items()]
    if any(box.finding for picture in pictures for box in picture.drawing.boxes):
        keys.append('<li><i class="cell finding"></i>lost, copied or mixed an order</li>')
    box = (
        f'<div class="tools">{_tools(pictures)}</div><ul class="legend">{"".join(keys)}</ul>'
        f'<div class="pictures">{shown}</div>'
    )
    return section("Graph", f"{text} {_GUIDE}", f'<div class="explorer">{box}</div>')


_CONVERSIONS = {"": "conversion in one of them", "shared": "conversion in both"}


def _tools(pictures: Sequence[Picture]) -> str:
    findings = sum(bool(box.finding) for each in pictures for box in each.drawing.boxes)
    both = len(pictures[-1].shared)  # counted once
    count = findings + sum(each.drawing.conversion_count for each in pictures) - both
    what = "finding" if findings else "conversion"
    steps = (
        f'<button data-step="-1" title="the {what} before">‹</button>'
        f'<span class="place">{count} {what}{"s" * (count != 1)}</span>'
        f'<button data-step="1" title="the next {what}">›</button>'
    )
    return (
        '<input class="find" type="search" placeholder="search: an operator, a file, an order" '
        'aria-label="search the graph"> <small class="hits"></small>'
        f'<span class="steps">{steps if count else ""}</span>'
        '<span class="zoom"><button data-zoom="0.7" title="larger">+</button>'
        '<button data-zoom="1.43" title="smaller">−</button>'
        '<button data-zoom="0" title="show everything">fit</button></span>'
    )


def _picture(number: int, picture: Picture, layout: GraphLayout) -> str:
    drawing = picture.drawing
    names = [f"about-{number}-{index}" for index in range(len(drawing.boxes))]
    badges = {conversion: f"about-{number}-c{conversion}" for conversion in drawing.marks}
    edges = sorted(drawing.edges, key=lambda edge: edge.conversion is not None)
    drawn = [
        *(_edge(edge, picture, layout) for edge in edges),
        *(_node(*each, layout) for each in zip(names, picture.places, drawing.boxes, strict=True)),
        *(_badge(edge, picture, badges, layout) for edge in edges if edge.conversion is not None),
    ]
    about = [
        *(
            _about(name, f"<code>{escape(box.title)}</code>", box.facts)
            for name, box in zip(names, drawing.boxes, strict=True)
        ),
        *(
            _about(name, _title(conversion, picture), drawing.marks[conversion].facts)
            for conversion, name in badges.items()
        ),
    ]
    name = picture.title or "the network"
    title = f"<figcaption>{escape(picture.title)}</figcaption>" if picture.title else ""
    return (
        f'<figure class="picture">{title}'
        f'<svg class="graph" viewBox="0 0 {layout.width:g} {layout.height:g}" role="img" '
        f'aria-label="the graph of {escape(name)}" tabindex="0">{"".join(drawn)}</svg>'
        '<div class="details" aria-live="polite"><p class="hint">Click on an operator or a conversion.</p>'
        f"{''.join(about)}</div></figure>"
    )


def _edge(edge: Edge, picture: Picture, layout: GraphLayout) -> str:
    kind = "" if edge.conversion is None else f" converts{_shared(edge.conversion, picture)}"
    return f'<path class="edge{kind}" d="{svg_path(layout.paths[picture.slot_edge(edge)])}"/>'


def _shared(conversion: int, picture: Picture) -> str:
    return " shared" if conversion in picture.shared else ""


def _node(about: str, slot: int, box: Box, layout: GraphLayout) -> str:
    x, y = layout.nodes[slot]
    lines = (box.title.removeprefix("aten."), box.line)
    texts = "".join(
        f'<text class="line{number}" y="{(-3, 11)[number]}">{escape(_shortened(line))}</text>'
        for number, line in enumerate(lines)
    )
    kinds = [box.family, "conversion" * (box.moved_bytes is not None), "found" * bool(box.finding)]
    hover = "\n".join(filter(None, [box.title, box.facts.get("at", ""), box.finding]))
    return (
        f'<g class="{" ".join(filter(None, ["node", *kinds]))}" data-about="{about}" data-slot="{slot}" '
        f'transform="translate({x:g} {y:g})"><title>{escape(hover)}</title><rect x="{-WIDTH / 2:g}" '
        f'y="{-HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>{texts}</g>'
    )


def _badge(edge: Edge, picture: Picture, abouts: Mapping[int, str], layout: GraphLayout) -> str:
    """Return the mark of a conversion, in the middle of the last piece of its edge."""
    number = edge.conversion
    assert number is not None
    placed = picture.slot_edge(edge)
    (x, y), (to_x, to_y) = layout.paths[placed][-2:]
    mark = picture.drawing.marks[number]
    label = f"{number} · {size(mark.bytes)}"
    hover = "\n".join(mark.facts[title] for title in _HOVER if mark.facts.get(title))
    return (
        f'<g class="badge{_shared(number, picture)}" data-about="{abouts[number]}" '
        f'data-slot="{placed.source}-{placed.target}" '
        f'transform="translate({(x + to_x) / 2:g} {(y + to_y) / 2:g})"><title>{escape(hover)}</title>'
        f'<rect x="-38" y="-8" width="76" height="16" rx="8"/><text y="4">{label}</text></g>'
    )


def _title(number: int, picture: Picture) -> str:
    """Return the title of a conversion; on the page of one plan it leads to the conversion's card."""
    link = "" if picture.title else f' href="#conversion-{number}"'
    return f'conversion <a class="mark{_shared(number, picture)}"{link}>{number}</a>'


def _about(name: str, title: str, facts: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{label}</dt><dd>{escape(text)}</dd>" for label, text in facts.items() if text)
    return f'<div class="about" id="{name}" hidden><h3>{title}</h3><dl>{rows}</dl></div>'


def _shortened(line: str) -> str:
    return line if len(line) <= _LETTERS else line[: _LETTERS - 1] + "…"
