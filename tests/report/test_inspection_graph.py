"""Test the graph of an inspection: who reads whom, and which operators are marked, with reason and line."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dimorder
from dimorder.report.drawing import inspection_drawing
from dimorder.report.inspection_page import inspection_page


class Lossy(nn.Module):
    """The softmax over channels loses their order, and the sum reads one operand in each order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        z = F.softmax(y, 1).view(2, 4, 35).view(2, 4, 5, 7)
        z = z.mul_(2)
        return y + z


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    return dimorder.inspect(Lossy(), torch.randn(2, 3, 5, 7))


@pytest.fixture(scope="module")
def drawing(found):
    return inspection_drawing(found)


def test_views_are_left_out_and_edges_lead_to_the_last_writer(drawing):
    names = [box.title for box in drawing.boxes]
    assert names == ["aten.convolution", "aten._softmax", "aten.mul_", "aten.add"]
    assert {(edge.source, edge.target) for edge in drawing.edges} == {(0, 1), (1, 2), (0, 3), (2, 3)}


def test_boxes_have_the_colour_of_their_order(drawing):
    families = [box.family for box in drawing.boxes]
    assert families == ["channels-last", "row-major", "row-major", "channels-last"]


def test_what_lost_the_order_is_marked_with_the_line_and_the_advice(found, drawing):
    (lost,), (mixed,) = found.of("lost"), found.of("mixed operands")
    marked = {box.title: box for box in drawing.boxes if box.finding}
    assert set(marked) == {lost.operator, mixed.operator} == {"aten._softmax", "aten.add"}
    page = inspection_page(found)
    hover = dict(re.findall(r'class="node [^"]*found"[^>]*><title>(\S+)\n(.*?)</title>', page, re.DOTALL))
    for finding in (lost, mixed):
        for fact in (
            finding.place,
            f"{finding.verdict}: {finding.before} → {finding.after}",
            finding.what_to_do,
        ):
            assert fact in hover[finding.operator]
        moved = sum(each.bytes for each in found.findings if each.call == finding.call)
        assert marked[finding.operator].facts["moves"] == f"{moved:,} bytes"
    assert "2 findings" in page


def test_a_run_that_keeps_the_order_marks_nothing():
    page = inspection_page(
        dimorder.inspect(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(2, 3, 5, 7))
    )
    assert 'class="node channels-last"' in page and "found" not in re.findall(r'class="node ([^"]*)"', page)
    assert "finding</span>" not in page and "data-step" not in page.split("<script>")[0]
