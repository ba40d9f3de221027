"""Open each page in a browser, on a desktop and on a phone, and use it as a reader does."""

from __future__ import annotations

import pytest
import torch

import dimorder
from dimorder.report.bench_page import bench_page
from dimorder.report.comparison_page import comparison_page
from dimorder.report.inspection_page import inspection_page
from dimorder.report.plan_comparison import Side, align_sides, compare_plans
from dimorder.report.plan_page import plan_page
from tests.report.browser import DESKTOP, PHONE
from tests.report.test_bench_page import BENCH
from tests.report.test_inspection_graph import Lossy
from tests.report.test_plan_comparison import Corners, X, wide
from tests.report.test_plan_page import Between

NAMES = ["plan", "both", "inspection", "kept", "bench"]

# A reader types into the search of the graph, and steps to the next result by Enter.
SEARCH = """(word => {
  const find = document.querySelector(".find");
  find.value = word;
  find.dispatchEvent(new Event("input"));
  const said = document.querySelector(".hits").textContent;
  find.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  return [said, shown()];
})"""
# The details that are shown, of each graph.
SHOWN = """window.shown = () => [...document.querySelectorAll(".picture")].map(picture =>
  [...picture.querySelectorAll(".about")].filter(each => !each.hidden).map(each => each.innerText).join())"""
STEP = "(document.querySelector('[data-step=\"1\"]').click(), shown())"
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def plans():
    torch.manual_seed(0)
    return {
        "plan": dimorder.plan(Between(), (torch.randn(2, 3, 5, 5),)),
        **{by: dimorder.plan(Corners(), (X,), objective=by) for by in ("bytes", "count")},
    }


@pytest.fixture(scope="module")
def inspected():
    return dimorder.inspect(Lossy(), torch.randn(2, 3, 5, 7))


@pytest.fixture(scope="module")
def files(plans, inspected, tmp_path_factory):
    both = compare_plans({by: plans[by] for by in ("bytes", "count")}, explained=True)
    pages = {
        "plan": plan_page(plans["plan"], "a network with a very_long_name_" + "x" * 40),
        "both": comparison_page(both, "two objectives"),
        "inspection": inspection_page(inspected),
        "kept": inspection_page(dimorder.inspect(torch.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 7))),
        "bench": bench_page(BENCH),
    }
    large = align_sides(Side("one", wide(2000, 20), "", "none"), Side("other", wide(2000, 30), "", "none"))
    pages["large"] = comparison_page(large)
    folder = tmp_path_factory.mktemp("pages")
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(page)
    return folder


@pytest.fixture
def opened(page, files):
    """Open one of the pages, and at the end see that it made no fault and asked for nothing."""
    asked = []

    def open_(name, width, dark=False):
        path = files / f"{name}.html"
        asked.append(path.as_uri())
        page.open(path, width, dark=dark)
        page.evaluate(SHOWN)
        return page

    yield open_
    assert page.faults == [] and page.requests == asked


WIDTHS = pytest.mark.parametrize("width", [PHONE, DESKTOP])


@WIDTHS
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wider_than_the_window(name, width, opened):
    page = opened(name, width)
    assert page.evaluate("innerWidth") == width and page.evaluate(OVERFLOW) <= 0
    # Also when every detail and every card is open.
    page.evaluate("document.querySelectorAll('.about').forEach(each => { each.hidden = false; })")
    assert page.evaluate(OVERFLOW) <= 0


def test_on_a_phone_no_cell_of_a_table_wraps_except_the_last(opened):
    page = opened("both", PHONE)
    rows = page.evaluate(
        "[...document.querySelectorAll('tr')].map(row => [...row.querySelectorAll('td')].map("
        "cell => getComputedStyle(cell).whiteSpace)).filter(cells => cells.length)"
    )
    assert rows and all(row == ["nowrap"] * (len(row) - 1) + ["normal"] for row in rows)


@pytest.mark.parametrize(("dark", "ground"), [(False, "rgb(251, 251, 250)"), (True, "rgb(21, 23, 27)")])
@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_light_or_dark_as_the_reader_wants(name, dark, ground, opened):
    page = opened(name, DESKTOP, dark=dark)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground


@WIDTHS
def test_a_plan_is_searched_and_a_conversion_opened(width, opened, plans):
    page, plan = opened("plan", width), plans["plan"]
    count = len(plan.extracted.sites)
    said, (details,) = page.evaluate(f"{SEARCH}('linalg_inv')")
    assert said == f"1 of {count}" and "linalg_inv" in details and "test_plan_page.py:" in details
    for step in range(len(plan.conversions)):
        (details,) = page.evaluate(STEP)
        assert page.evaluate("document.querySelector('.place').textContent") == f"{step + 1} of 4"
    numbers = [number for number in range(4) if f"conversion {number}" in details.replace("\n", " ")]
    conversion, reason = plan.conversions[numbers[0]], plan.explain(numbers[0])
    for fact in (f"{conversion.bytes:,} bytes", conversion.from_order, conversion.to_order, reason.advice):
        assert fact in details


@WIDTHS
def test_in_two_plans_an_operator_is_chosen_in_both_and_a_conversion_only_where_it_is(width, opened, plans):
    page = opened("both", width)
    said, details = page.evaluate(f"{SEARCH}('convolution')")
    assert said == f"1 of {len(plans['bytes'].extracted.sites)}"
    assert all("aten.convolution" in each and "test_plan_comparison.py:" in each for each in details)
    views = "[...document.querySelectorAll('svg.graph')].map(each => each.getAttribute('viewBox'))"
    assert len(set(page.evaluate(views))) == 1
    steps = [page.evaluate(STEP) for _ in range(4)]  # the shared one, two of the first, one of the second
    assert page.evaluate("document.querySelector('.place').textContent") == "4 of 4"
    alone = [tuple(bool(each) for each in details) for details in steps]
    assert sorted(alone) == [(False, True), (True, False), (True, False), (True, True)]
    ((*_, large),) = [details for details, own in zip(steps, alone, strict=True) if own == (False, True)]
    (moved,) = (each for each in plans["count"].conversions if each.bytes == 2 * 4 * 11 * 13 * 4)
    assert f"{moved.bytes:,} bytes" in large and moved.from_order in large and "advice" in large


@WIDTHS
def test_an_inspection_is_searched_and_a_finding_opened(width, opened, inspected):
    page = opened("inspection", width)
    said, (details,) = page.evaluate(f"{SEARCH}('softmax')")
    (lost,) = inspected.of("lost")
    assert said == "1 of 4" and lost.place in details
    (details,) = page.evaluate(STEP)
    for fact in (lost.operator, "2,240 bytes", lost.what_to_do, f"{lost.before} → {lost.after}"):
        assert fact in details
    cards = "[...document.querySelectorAll('.card')].filter(each => each.offsetParent).length"
    before = page.evaluate(cards)
    page.evaluate(
        "(box => { box.value = 'mixed'; box.dispatchEvent(new Event('input')); })"
        "(document.querySelector('.search'))"
    )
    assert page.evaluate(cards) == 1 < before


@WIDTHS
def test_the_bars_of_a_bench_are_as_long_as_its_medians_and_its_texts_do_not_collide(width, opened):
    page = opened("bench", width)
    lengths = page.evaluate(
        "[...document.querySelectorAll('.chart rect')].map(x => x.getBoundingClientRect().width)"
    )
    assert [round(length / lengths[-1], 3) for length in lengths] == [0.125, 0.25, 1]
    gaps = page.evaluate(
        """[...document.querySelectorAll(".chart svg")].map(row => {
          const [title, value] = [...row.querySelectorAll("text")].map(x => x.getBoundingClientRect());
          return value.left - title.right;
        })"""
    )
    assert len(gaps) == 3 and min(gaps) > 0


def test_two_graphs_of_two_thousand_operators_are_searched(opened):
    page = opened("large", DESKTOP)
    said, details = page.evaluate(f"{SEARCH}('net.py:1999')")
    assert said == "1 of 2000" and all("net.py:1999" in each for each in details)
    page.evaluate(f"{SEARCH}('net.py:19')")
    page.evaluate(STEP)
    assert page.evaluate("document.querySelector('.place').textContent") == "1 of 133"  # 100 + 67 - 34
