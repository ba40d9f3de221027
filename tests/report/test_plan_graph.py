"""Test the graph of a plan: where its operators and edges lie, and what it does in a real browser."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dimorder
from dimorder.report.plan_graph import HEIGHT, WIDTH, Edge, edges_of, lay_out, svg_path
from dimorder.report.plan_page import plan_page
from tests.report.browser import DESKTOP, PHONE
from tests.report.test_plan_page import Between
from tests.zoo.stateful import StreamingConv1d


@st.composite
def graphs(draw):
    """Operators in program order, each of which reads earlier ones."""
    count = draw(st.integers(1, 60))
    pairs = {(draw(st.integers(0, target - 1)), target) for target in range(1, count)}
    for _ in range(draw(st.integers(0, 20))):
        target = draw(st.integers(1, count)) - 1
        if target:
            pairs.add((draw(st.integers(0, target - 1)), target))
    return count, [Edge(*pair, None) for pair in sorted(pairs)]


@given(graphs())
def test_no_two_boxes_touch_and_each_edge_leads_from_its_source_to_its_target(graph):
    count, edges = graph
    layout = lay_out(count, edges)
    assert len(layout.nodes) == count and set(layout.paths) == set(edges)
    for (x, y), (other_x, other_y) in combinations(layout.nodes, 2):
        assert abs(x - other_x) > WIDTH or abs(y - other_y) > HEIGHT
    for edge, path in layout.paths.items():
        (x, y), (to_x, to_y) = layout.nodes[edge.source], layout.nodes[edge.target]
        assert path[0] == (x, y + HEIGHT / 2) and path[-1] == (to_x, to_y - HEIGHT / 2)
    inside = [*layout.nodes, *(point for path in layout.paths.values() for point in path)]
    assert all(0 <= x <= layout.width and 0 <= y <= layout.height for x, y in inside)


def test_an_edge_into_the_next_column_goes_up_through_the_gap():
    chain = [Edge(i, i + 1, None) for i in range(40)]
    layout = lay_out(41, chain)
    (turn,) = (i for i in range(12) if layout.nodes[i + 1][1] < layout.nodes[i][1])
    start, before, after, end = layout.paths[chain[turn]]
    assert start[0] < before[0] == after[0] < end[0]
    assert re.fullmatch(r"M\S+ \S+C[^CL]+L\S+ \S+C[^CL]+", svg_path(layout.paths[chain[turn]]))


def test_constants_lie_just_before_what_reads_them():
    chain = [Edge(i, i + 1, None) for i in range(7)]
    constant = [Edge(8, 9, None), Edge(9, 10, None), Edge(7, 10, None)]
    layout = lay_out(11, [*chain, *constant])
    heights = [y for _, y in layout.nodes]
    assert heights[9] == heights[7] and heights[8] == heights[6] > heights[0]


def test_a_state_leads_back_to_what_reads_it():
    plan = dimorder.plan(StreamingConv1d(3, 8, 5), (torch.randn(2, 3, 4),), target="xnnpack")
    edges = list(edges_of(plan))
    assert any(edge.source > edge.target for edge in edges)
    assert 'class="graph"' in plan_page(plan)


# A reader's actions, and what the page shows after each of them.
ACTIONS = """(() => {
const svg = document.querySelector("svg.graph");
const box = () => svg.getAttribute("viewBox").split(" ").map(Number);
const press = (type, x, y) => svg.dispatchEvent(
  new PointerEvent(type, { clientX: x, clientY: y, pointerId: 1, bubbles: true }));
const said = { nodes: svg.querySelectorAll(".node").length, all: box() };
svg.setPointerCapture = () => {};  // invented pointers cannot be captured
const { left, top, width, height } = svg.getBoundingClientRect();
const [clientX, clientY] = [left + width / 2, top + height / 2];
svg.dispatchEvent(new WheelEvent("wheel", { deltaY: -1, clientX, clientY }));
said.zoomed = box();
press("pointerdown", left + 50, top + 50);
press("pointermove", left + 90, top + 70);
press("pointerup", left + 90, top + 70);
svg.querySelector(".node").dispatchEvent(new MouseEvent("click", { bubbles: true }));
said.after_drag = document.querySelectorAll(".about:not([hidden])").length;
said.dragged = box();
document.querySelector('[data-zoom="0"]').click();
said.fit = box();
svg.querySelector(".badge").dispatchEvent(new MouseEvent("click", { bubbles: true }));
said.conversion = [...document.querySelectorAll(".about:not([hidden])")].map((each) => each.innerText);
return said;
})()"""


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_browser_zooms_drags_and_opens_a_conversion(width, page, tmp_path):
    torch.manual_seed(0)
    plan = dimorder.plan(Between(), (torch.randn(2, 3, 5, 5),), target="torch")
    path = tmp_path / "page.html"
    path.write_text(plan_page(plan))
    page.open(path, width)
    said = page.evaluate(ACTIONS)
    assert said["nodes"] == len(plan.extracted.sites)
    assert said["zoomed"][2] < said["all"][2] and said["dragged"][0] < said["zoomed"][0]
    assert said["fit"] == said["all"] and said["after_drag"] == 0
    (shown,) = said["conversion"]
    assert f"{plan.conversions[0].bytes:,} bytes" in shown and plan.explain(0).advice in shown
