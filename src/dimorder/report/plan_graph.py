"""Lay out a plan as a graph: operators in layers, wrapped into columns, and the path of every edge.

A column is read from top to bottom, and continues at the top of the next one, as a newspaper is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from dimorder.plans.network_plan import NetworkPlan

WIDTH, HEIGHT = 150, 36  # of an operator's box, in the units of the picture
_LANE, _LAYER, _GAP = 174, 62, 60  # distances between boxes, and between columns
_FEWEST_LAYERS = 10  # of a column
PAGE_RATIO = 1.7  # width over height of the only picture of a page
_MOST_LANES = 12  # that an edge goes aside to pass operators
_SLOTS = 8  # edges that pass beside each other in one lane

Position = tuple[float, float]


@dataclass(frozen=True)
class Edge:
    """One operator reads what another one wrote; `conversion` is the number of a conversion between them."""

    source: int
    target: int
    conversion: int | None


def edges_of(plan: NetworkPlan) -> Iterator[Edge]:
    """Return the edges between the operators of a plan, each pair once per value.

    A state is written after it is read, so its edge leads back.
    """
    sites = plan.extracted.sites
    written = {view.buffer: index for index, site in enumerate(sites) for view in site.writes}
    converted = {
        (each.buffer, consumer): number
        for number, each in enumerate(plan.layout_plan.conversions)
        for consumer in each.consumers
    }
    for index, site in enumerate(sites):
        for buffer in dict.fromkeys(view.buffer for view in site.reads):
            yield Edge(written[buffer], index, converted.get((buffer, index)))


@dataclass(frozen=True)
class GraphLayout:
    """The centres of the operators, the points that each edge passes, and the size of the picture."""

    nodes: tuple[Position, ...]
    paths: Mapping[Edge, tuple[Position, ...]]
    width: float
    height: float


def lay_out(count: int, edges: Sequence[Edge], ratio: float = PAGE_RATIO) -> GraphLayout:
    """Return the layout of a graph with `count` operators in program order, about `ratio` as wide as high.

    >>> lay_out(2, [Edge(0, 1, None)]).nodes
    ((87.0, 31.0), (87.0, 93.0))
    """
    forward = [edge for edge in edges if edge.source < edge.target]
    layers = _layers(count, forward)
    lanes, corridors = _lanes(layers, forward)
    most = max(layers, default=0) + 1
    used = [*lanes, *(round(corridor.lane) for corridor in corridors.values())]
    lane_count = max(used, default=0) - min(used, default=0) + 1
    rows = max(_FEWEST_LAYERS, math.ceil(math.sqrt(most * (lane_count * _LANE + _GAP) / _LAYER / ratio)))
    columns = _columns(layers, lanes, corridors, rows)

    def point(layer: int, lane: float) -> Position:
        return columns[layer // rows].lane_0 + lane * _LANE, (layer % rows + 0.5) * _LAYER

    nodes = tuple(point(*place) for place in zip(layers, lanes, strict=True))
    paths = {}
    for edge in edges:
        (x, y), (end_x, end_y) = nodes[edge.source], nodes[edge.target]
        between = range(layers[edge.source] + 1, layers[edge.target])
        turns = [layer for layer in between if _turns(layer, between, rows)]
        passed = [point(layer, corridors[edge.source].lane) for layer in turns]
        points = [(x, y + HEIGHT / 2), *passed, (end_x, end_y - HEIGHT / 2)]
        paths[edge] = tuple(_through_gaps(points, [column.left - _GAP / 2 for column in columns[1:]]))
    width = max((x for path in (nodes, *paths.values()) for x, _ in path), default=0.0) + _LANE / 2
    return GraphLayout(nodes, paths, width, min(rows, most) * _LAYER)


def _layers(count: int, edges: Sequence[Edge]) -> list[int]:
    """Return for each operator the length of the longest path to it.

    An operator that does not depend on the first one, such as a constant, lies just before its reader.

    >>> _layers(4, [Edge(0, 1, None), Edge(1, 3, None), Edge(2, 3, None)])
    [0, 1, 1, 2]
    """
    layers = [0] * count
    depends = {0}
    readers: list[list[int]] = [[] for _ in range(count)]
    for edge in sorted(edges, key=lambda edge: edge.target):
        layers[edge.target] = max(layers[edge.target], layers[edge.source] + 1)
        readers[edge.source].append(edge.target)
        if edge.source in depends:
            depends.add(edge.target)
    for source in reversed(range(count)):
        if readers[source] and source not in depends:
            layers[source] = min(layers[target] for target in readers[source]) - 1
    return layers


@dataclass(frozen=True)
class _Corridor:
    """The lane and the layers in which the results of an operator pass others on their way."""

    lane: float
    layers: range


def _lanes(layers: Sequence[int], edges: Sequence[Edge]) -> tuple[list[int], dict[int, _Corridor]]:
    """Return the lane of each operator, and the corridor of each one that is read beyond the next layer."""
    first: dict[int, int] = {}
    for edge in edges:
        first.setdefault(edge.target, edge.source)
    taken: set[tuple[int, int]] = set()
    lanes = [0] * len(layers)
    for index in sorted(range(len(layers)), key=lambda i: (layers[i], i)):
        wished = lanes[first[index]] if index in first else 0
        lanes[index] = next(lane for lane in _nearest(wished) if (layers[index], lane) not in taken)
        taken.add((layers[index], lanes[index]))
    last: dict[int, int] = {}
    for edge in edges:
        last[edge.source] = max(last.get(edge.source, 0), layers[edge.target])
    corridors: dict[int, _Corridor] = {}
    passed: set[tuple[int, float]] = set()
    for source in sorted(last, key=lambda source: last[source] - layers[source]):
        between = range(layers[source] + 1, last[source])
        if between:
            near = list(islice(_nearest(lanes[source]), 2 * _MOST_LANES))
            empty = [lane for lane in near if not any((layer, lane) in taken for layer in between)]
            slots = [lane + (slot + 0.5) / _SLOTS - 0.5 for lane in empty for slot in range(_SLOTS)]
            free = (slot for slot in slots if not any((layer, slot) in passed for layer in between))
            corridors[source] = _Corridor(next(free, float(near[-1])), between)
            passed |= {(layer, corridors[source].lane) for layer in between}
    return lanes, corridors


def _nearest(lane: int) -> Iterator[int]:
    """Yield the lanes by their distance from one: itself, right, left, farther right ..."""
    yield lane
    for distance in range(1, 10**6):
        yield from (lane + distance, lane - distance)


def _turns(layer: int, between: Sequence[int], rows: int) -> bool:
    """Return whether an edge may turn at a layer: its first or last one, or the end of a column."""
    return layer in (between[0], between[-1]) or layer % rows in (0, rows - 1)


def _through_gaps(points: Sequence[Position], gaps: Sequence[float]) -> Iterator[Position]:
    """Yield the points of an edge, with two more in the gap between two columns that it goes from and to."""
    yield points[0]
    for (x, y), (to_x, to_y) in pairwise(points):
        gap = next((gap for gap in gaps if x < gap < to_x), None)
        if gap is not None:
            yield from ((gap, y), (gap, to_y))
        yield to_x, to_y


def svg_path(points: Sequence[Position]) -> str:
    """Return points as the data of an SVG path, which is vertical at each of them.

    >>> svg_path([(0, 0), (0, 50), (20, 90)])
    'M0 0L0 50C0 70 20 70 20 90'
    """
    rises = [x == to_x and to_y < y for (x, y), (to_x, to_y) in pairwise(points)]
    text = "M{:g} {:g}".format(*points[0])
    for place, ((x, y), (to_x, to_y)) in enumerate(pairwise(points)):
        if x == to_x and (rises[place] or to_y > y):
            text += f"L{to_x:g} {to_y:g}"
            continue
        bend = min(max(abs(to_y - y) / 2, 16), 60)
        leaves = -bend if place and rises[place - 1] else bend
        reaches = -bend if rises[place + 1 : place + 2] == [True] else bend
        text += f"C{x:g} {y + leaves:g} {to_x:g} {to_y - reaches:g} {to_x:g} {to_y:g}"
    return text


@dataclass(frozen=True)
class _Column:
    """The left end of a column, and the x of its lane 0."""

    left: float
    lane_0: float


def _columns(
    layers: Sequence[int], lanes: Sequence[int], corridors: Mapping[int, _Corridor], rows: int
) -> list[_Column]:
    """Return the columns, such that they lie beside each other."""
    used: list[set[int]] = [set() for _ in range(max(layers, default=0) // rows + 1)]
    for layer, lane in zip(layers, lanes, strict=True):
        used[layer // rows].add(lane)
    for corridor in corridors.values():
        for layer in corridor.layers:
            used[layer // rows].add(round(corridor.lane))
    columns, left = list[_Column](), 0.0
    for found in used:
        least, most = min(found, default=0), max(found, default=0)
        columns.append(_Column(left, left - least * _LANE + _LANE / 2))
        left += (most - least + 1) * _LANE + _GAP
    return columns
