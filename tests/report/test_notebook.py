"""Test what a notebook shows for plans, lowered networks, inspections and comparisons."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dimorder
from dimorder import text
from dimorder.report.plan_comparison import compare_plans
from tests.report.browser import PHONE
from tests.report.test_plan_page import Between, Page

X = torch.randn(2, 3, 5, 5)


@pytest.fixture(scope="module")
def lowered():
    torch.manual_seed(0)
    return dimorder.lower(Between(), (X,))


@pytest.fixture(scope="module")
def inspected():
    return dimorder.inspect(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1), nn.Conv2d(4, 2, 1)), X)


@pytest.fixture(scope="module")
def values(lowered, inspected):
    return lowered.plan, lowered, inspected, compare_plans({"one": lowered.plan, "other": lowered.plan})


def test_a_plan_has_a_row_for_each_conversion(lowered):
    read = Page(lowered.plan._repr_html_())
    assert len(lowered.plan.conversions) == 4
    for conversion in lowered.plan.conversions:
        for fact in conversion.facts.values():
            assert fact in read.text
    first, *_ = str(lowered.plan).splitlines()
    assert first in read.text and "row-major, having no rule or kernel for another order" in read.text


def test_a_lowered_network_has_its_error_and_its_plan(lowered):
    shown = lowered._repr_html_()
    assert f"max_rel_error={lowered.max_rel_error:.1e}" in shown and lowered.plan._repr_html_() in shown


def test_an_inspection_has_a_row_for_each_place(inspected):
    read = Page(inspected._repr_html_())
    (lost,) = inspected.of("lost")
    for fact in ("lost ×1", lost.operator, lost.before, lost.after, f"{lost.bytes:,}", lost.what_to_do):
        assert fact in read.text
    assert "orders    1 lost, " in read.text


def test_many_conversions_are_cut_and_counted(lowered, monkeypatch):
    monkeypatch.setattr(text, "NOTEBOOK_ROWS", 1)
    shown = lowered.plan._repr_html_()
    assert "and 3 more" in shown and shown.count("<tr>") == 2


def test_a_plan_without_conversions_has_no_table():
    plan = dimorder.plan(nn.ReLU(), (X,))
    assert "<table" not in plan._repr_html_() and "conversions  none" in plan._repr_html_()


def test_a_notebook_finds_them(values):
    formatters = pytest.importorskip("IPython.core.formatters")
    for value in values:
        assert formatters.HTMLFormatter()(value) == value._repr_html_()


# The colours of a dark notebook, and the paddings of a cell's output.
NOTEBOOK = '<!doctype html><meta charset="utf-8"><body style="background:#111;color:#eee">{}</body>'


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_a_browser_shows_them_in_the_notebooks_colours_without_overflow(values, width, page, tmp_path):
    path = tmp_path / "cell.html"
    path.write_text(NOTEBOOK.format("".join(value._repr_html_() for value in values)))
    page.open(path, width)
    rows = "document.querySelectorAll('tr').length"
    assert page.evaluate(rows) == 2 * (1 + 4) + (1 + len(values[2].places)) + (1 + 6)
    colours = "[...new Set([...document.querySelectorAll('td, pre')].map(x => getComputedStyle(x).color))]"
    assert page.evaluate(colours) == ["rgb(238, 238, 238)"]
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.faults == [] and page.requests == [path.as_uri()]
