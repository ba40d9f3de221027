"""Test that a report has everything that the plan says, in a page that stands alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import dimorder
from dimorder.ops.problem_map import BufferInfo
from dimorder.ops.relation import AxedTensor
from dimorder.plans.order_names import order_name
from dimorder.report import drawing
from dimorder.report.operator_rows import family_of
from dimorder.report.plan_page import build, plan_page

VOID = {"meta", "br", "input"}


class Between(nn.Module):
    """A row-major operator between two convolutions: conversions of every kind. Its names need escaping."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.linalg.inv(self.first(x) + torch.eye(5) * 50)
        return self.second(x)


class Page(HTMLParser):
    """Fails on tags that do not match; collects text, ids and links."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.ids: list[str] = []
        self.links: list[str] = []
        self.classes: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        self.classes += (found.get("class") or "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def lowered():
    torch.manual_seed(0)
    return dimorder.lower(Between(), (torch.randn(2, 3, 5, 5),), target="torch")


@pytest.fixture(scope="module")
def page(lowered):
    return plan_page(lowered, "a <net> & more")


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(page):
    read = Page(page)
    assert all(link.startswith("#") for link in read.links)
    assert not re.search(r"https?:|<script src|<link|<img|@import|url\(|fetch\(", page)
    assert "prefers-color-scheme:dark" in page


def test_names_are_escaped(page):
    assert "a &lt;net&gt; &amp; more" in page
    assert "a <net>" not in page


def test_every_conversion_is_there_with_its_reason(lowered, page):
    read = Page(page)
    conversions = lowered.plan.conversions
    assert len(conversions) == 4
    for number, conversion in enumerate(conversions):
        reason = lowered.plan.explain(number)
        assert f"conversion-{number}" in read.ids and f"#conversion-{number}" in read.links
        for text in (conversion.value, conversion.from_order, f"{conversion.bytes:,} bytes", reason.advice):
            assert text in read.text


def test_every_operator_has_a_cell_with_its_source_line(lowered, page):
    built = build(lowered)
    assert len(built.operators) == len(lowered.plan.extracted.sites)
    legends = 2 * len({row.family for row in built.operators})
    assert Page(page).classes.count("cell") == len(built.operators) + legends
    families = {row.operator: row.family for row in built.operators}
    assert families["input x"] == "row-major" and families["aten.convolution"] == "channels-last"
    (inverse,) = (row for row in built.operators if "linalg_inv" in row.operator)
    assert inverse.family == "row-major" and inverse.note and inverse.source.startswith("test_plan_page.py:")


def test_what_a_conversion_is_made_for_carries_its_mark(lowered):
    built = build(lowered)
    marked = {number: row for row in built.operators for number in row.conversions}
    for number, conversion in enumerate(lowered.plan.conversions):
        consumer = conversion.consumers[0]
        assert consumer.is_contract or marked[number].operator == consumer.operator
    assert len(marked) == len(lowered.plan.conversions)


def test_a_lowered_network_shows_its_error_and_seconds_and_a_plan_does_not(lowered, page):
    assert f"{lowered.max_rel_error:.1e}" in page and "<h2>Time</h2>" in page
    alone = plan_page(lowered.plan)
    assert "<h2>Time</h2>" not in alone and "<h2>Conversions</h2>" in alone


def test_beyond_the_largest_conversions_only_the_facts_are_given(lowered, monkeypatch):
    monkeypatch.setattr(drawing, "EXPLAINED", 1)
    read = Page(plan_page(lowered))
    assert {f"conversion-{number}" for number in range(4)} <= set(read.ids)
    (explained,) = build(lowered).explanations.values()
    assert explained.conversion.bytes == max(made.bytes for made in lowered.plan.conversions)


def test_a_plan_without_conversions_says_so():
    conv = nn.Conv2d(3, 4, 3)
    plan = dimorder.plan(conv, (torch.randn(2, 3, 5, 7),), input_orders="NHWC", output_orders="NHWC")
    assert "no value is ever copied" in Page(plan_page(plan)).text


@pytest.mark.parametrize(
    ("shape", "order", "family"),
    [
        ((2, 3, 5, 7), "NCHW", "row-major"),
        ((2, 3, 5, 7), "NHWC", "channels-last"),
        ((2, 3, 5, 7), "CHWN", "permuted"),
        ((2, 1, 5, 7), "NHWC", "row-major"),
        ((2, 3, 5), "NLC", "channels-last"),
    ],
)
def test_families_of_orders(shape, order, family):
    plan = dimorder.plan(nn.ReLU(), (torch.randn(shape),), input_orders=order, output_orders=order)
    assert {row.family for row in build(plan).operators} == {family}


@pytest.mark.parametrize(
    ("order", "family"),
    [
        ((0, 1, 2, 3, 4), "row-major"),
        ((0, 3, 4, 1, 2), "channels-last"),
        ((0, 3, 4, 2, 1), "cut"),
        ((0, 2, 3, 4, 1), "cut"),
        ((1, 2, 0, 3, 4), "permuted"),
    ],
)
def test_families_where_a_dimension_is_cut(order, family):
    root = torch.fx.Graph().placeholder("x")
    root.meta["val"] = torch.empty(2, 6, 5, 7)
    tensor = AxedTensor((2, 2, 3, 5, 7), (0, 1, 1, 2, 3), {})
    assert family_of(BufferInfo(0, root, tensor, root.meta["val"]), order) == family


@pytest.mark.parametrize(
    ("order", "of_an_image", "of_any_other"),
    [
        ((0, 1, 2, 3, 4), "NCHW (0, 1, 2, 3)", "(0, 1, 2, 3)"),
        ((0, 3, 4, 1, 2), "NHWC (0, 2, 3, 1)", "(0, 2, 3, 1)"),
        ((0, 3, 4, 2, 1), "N H W C1 C0, where C = 2·3", "0 2 3 1b 1a, where 1 = 2·3"),
    ],
)
def test_only_the_dims_of_an_image_have_letters(order, of_an_image, of_any_other):
    root = torch.fx.Graph().placeholder("x")
    value = torch.empty(2, 6, 5, 7)
    for spatial, name in (({2, 3}, of_an_image), ({2}, of_any_other), ((), of_any_other)):
        tensor = AxedTensor((2, 2, 3, 5, 7), (0, 1, 1, 2, 3), {}, frozenset(spatial))
        assert order_name(BufferInfo(0, root, tensor, value), order) == name


class Tokens(nn.Module):
    """Tokens, which a convolution reads as a signal: only its result has channels in dim 1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.transpose(1, 2)).relu()


def test_what_a_convolution_moves_along_makes_an_image():
    buffers = dimorder.plan(Tokens(), (torch.randn(2, 9, 4),)).extracted.buffers
    names = [order_name(info, range(3)) for info in buffers]
    assert names == ["(0, 1, 2)", "NCL (0, 1, 2)", "NCL (0, 1, 2)"]
