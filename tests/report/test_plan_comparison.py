"""Test two plans side by side: what differs, where operators lie, and what ExecuTorch's lowering inserts."""

from __future__ import annotations

import json
import re
import time

import pytest
import torch
from torch import nn

import dimorder
from dimorder.cli import main
from dimorder.report.comparison_page import comparison_page
from dimorder.report.drawing import Box, Drawing, Mark
from dimorder.report.plan_comparison import Side, align_sides, compare_plans
from dimorder.report.plan_graph import Edge
from tests.cli.commands import refused
from tests.report.test_plan_page import Page


class Corners(nn.Module):
    """Two small pieces of a channels-last value are read row-major: two small conversions, or a large one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        eye = 50 * torch.eye(5)
        return torch.linalg.inv(y[:, :, :5, :5] + eye) @ torch.linalg.inv(y[:, :, 6:11, 8:13] + eye)


class Shuffled(nn.Module):
    """The channels of a convolution's result are shuffled before the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = y.reshape(2, 2, 3, 11, 13).transpose(1, 2).reshape(2, 6, 11, 13)
        return self.second(y)


class Plain(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(3, 4, 3)


X = torch.randn(2, 3, 13, 15)
COMMAND = ["plan", f"{__name__}:Corners", "--input", "2x3x13x15"]


@pytest.fixture(scope="module")
def plans():
    return {f"by {by}": dimorder.plan(Corners(), (X,), objective=by) for by in ("bytes", "count")}


@pytest.fixture(scope="module")
def found(plans):
    return compare_plans(plans, explained=True)


def test_two_objectives_differ_where_one_plan_converts_pieces_and_the_other_the_whole(plans, found):
    first, second = found.totals(0), found.totals(1)
    assert (first["conversion_count"], second["conversion_count"]) == (3, 2)
    for number, plan in enumerate(plans.values()):
        assert found.totals(number)["converted_bytes"] == sum(each.bytes for each in plan.conversions)
    # Both convert the input for the convolution.
    assert first["conversion_count_here_alone"] == 2 and second["conversion_count_here_alone"] == 1
    assert first["converted_bytes_here_alone"] == 2 * 2 * 4 * 5 * 5 * 4
    assert second["converted_bytes_here_alone"] == 2 * 4 * 11 * 13 * 4


def test_plans_of_one_network_have_each_operator_at_one_position(plans, found):
    count = len(plans["by bytes"].extracted.sites)
    assert found.slots == (tuple(range(count)),) * 2


def test_the_page_has_both_graphs_and_the_totals_and_needs_nothing_from_elsewhere(plans, found):
    page = comparison_page(found, "a <net>")
    read = Page(page)
    assert not re.search(r"https?:|<script src|<link|<img|@import|url\(|fetch\(", page)
    assert "a &lt;net&gt;" in page and "a <net>" not in page
    assert read.classes.count("graph") == 2
    assert read.classes.count("node") == 2 * len(plans["by bytes"].extracted.sites)
    for plan in plans.values():
        for number in range(len(plan.conversions)):
            assert plan.explain(number).advice in read.text
    large = max(plans["by count"].conversions, key=lambda each: each.bytes)
    assert f"<title>{large.from_order}\n{large.to_order}\n{large.bytes:,} bytes\n" in page
    badges = re.findall(r'<g class="badge( shared)?"', page)
    edges = sum(len(each.consumers) for plan in plans.values() for each in plan.layout_plan.conversions)
    assert len(badges) == edges and badges.count(" shared") == 2


def test_boxes_of_one_side_alone_lie_between_those_of_both():
    sides = [
        Side(name, Drawing(tuple(Box(place, "", "", {}, place) for place in places), edges, {}), "", "")
        for name, places, edges in (
            ("one", ("input", "a", "b", "output"), (Edge(0, 1, None), Edge(1, 2, None), Edge(2, 3, None))),
            ("other", ("input", "", "b", "output"), (Edge(0, 1, None), Edge(1, 2, None), Edge(2, 3, None))),
        )
    ]
    assert align_sides(*sides).slots == ((0, 1, 3, 4), (0, 2, 3, 4))


def test_it_takes_two_sides(plans):
    with pytest.raises(dimorder.DimorderError, match="give two"):
        compare_plans({"alone": plans["by bytes"]})


def wide(count: int, period: int) -> Drawing:
    """A network of `count` operators with skips, in which every `period`-th edge converts."""
    boxes = tuple(
        Box("aten.relu", "NHWC 1×24×56×56", "channels-last", {"at": f"net.py:{i}"}, f"net.py:{i}")
        for i in range(count)
    )
    edges = [Edge(i, i + 1, i // period if i % period == 0 else None) for i in range(count - 1)]
    edges += [Edge(i, i + 7, None) for i in range(0, count - 7, 11)]
    return Drawing(
        boxes, tuple(edges), {i: Mark(1000, {"moves": "1,000 bytes"}) for i in range(-(-count // period))}
    )


def test_two_thousand_operators_are_one_page():
    start = time.perf_counter()
    found = align_sides(Side("one", wide(2000, 20), "", "none"), Side("other", wide(2000, 30), "", "none"))
    page = comparison_page(found, "large")
    assert time.perf_counter() - start < 20
    assert len(page) < 4e6 and page.count('class="node channels-last"') == 4000
    assert len(found.shared[0]) == len(found.shared[1]) == 34  # every 60th edge converts in both


def test_the_command_compares_two_objectives(tmp_path, capfd):
    path, data = tmp_path / "both.html", tmp_path / "both.json"
    given = ["--compare-with", "count", "--report", str(path), "--json", str(data)]
    assert main([*COMMAND, *given]) == 0
    assert re.search(r"^conversions +3 +2$", capfd.readouterr().out, re.MULTILINE)
    assert Page(path.read_text()).classes.count("graph") == 2
    compared = json.loads(data.read_text())["compared"]
    assert [(each["name"], each["conversion_count"]) for each in compared] == [
        ("by bytes", 3),
        ("by count", 2),
    ]


def test_each_side_of_the_page_has_the_totals_of_its_plan_and_its_cost(plans, found):
    rows = {title: (first, second) for title, first, second in found.rows()}
    first, second = plans.values()
    assert rows["conversions"] == (str(len(first.conversions)), str(len(second.conversions)))
    assert rows["cost by its objective"] == (f"{first.cost[0]:,} bytes", f"{second.cost[0]:,} conversions")
    text = Page(comparison_page(found)).text
    for row in found.rows():
        assert all(cell in text for cell in row)


def test_the_command_compares_with_executorch(tmp_path, capfd):
    pytest.importorskip("executorch")
    from dimorder.executorch.file_conversions import conversions_in
    from dimorder.executorch.lowering_paths import stock

    path, data = tmp_path / "both.html", tmp_path / "both.json"
    files = ["--report", str(path), "--json", str(data)]
    given = ["--target", "xnnpack", "--compare-with", "executorch", *files]
    assert main(["plan", f"{__name__}:Shuffled", "--input", "2x3x13x15", *given]) == 0
    in_file = conversions_in(stock("xnnpack")(torch.export.export(Shuffled().eval(), (X,))))
    found = json.loads(data.read_text())
    ours, theirs = found["compared"]
    assert (ours["name"], ours["conversion_count"]) == ("dimorder, by bytes", found["conversion_count"])
    assert ours["converted_bytes"] == sum(each["bytes"] for each in found["conversions"])
    assert (theirs["name"], theirs["conversion_count"]) == ("ExecuTorch", in_file.conversion_count)
    assert theirs["converted_bytes"] == in_file.bytes
    page = Page(path.read_text())
    assert page.classes.count("graph") == 2
    assert "no objective" in page.text and f"{in_file.bytes:,}" in page.text
    assert "no objective" in capfd.readouterr().out


def test_the_command_refuses_dynamic_sizes_beside_executorch(capfd):
    given = ["--target", "xnnpack", "--compare-with", "executorch"]
    argv = ["plan", f"{__name__}:Shuffled", "--input", "Nx3x13x15", *given]
    assert refused(capfd, argv, 2).splitlines() == [
        "--compare-with executorch",
        "  found: dynamic sizes",
        "  fix: give --input numbers alone",
    ]


def test_the_command_compares_two_objectives_over_a_range(capfd):
    argv = ["plan", f"{__name__}:Plain", "--input", "Nx3x13x15", "--compare-with", "count"]
    assert main(argv) == 0
    assert re.search(
        r"^cost by its objective +[\d,]+ bytes +2 conversions$", capfd.readouterr().out, re.MULTILINE
    )


@pytest.mark.parametrize("given", [["bytes"], ["speed"], ["executorch"]])
def test_the_command_refuses_what_it_cannot_compare(given, capfd):
    assert "--compare-with" in refused(capfd, [*COMMAND, "--compare-with", *given], 2)


def test_executorchs_own_lowering_lies_beside_ours(tmp_path, capfd):
    pytest.importorskip("executorch")
    from dimorder.executorch.file_conversions import conversions_in
    from dimorder.executorch.lowering_paths import stock
    from dimorder.executorch.stock_graph import stock_graph

    exported = torch.export.export(Shuffled().eval(), (X,))
    plan = dimorder.plan(Shuffled(), (X,), target="xnnpack")
    found = compare_plans({"ours": plan, "ExecuTorch": stock_graph(exported)})
    totals, in_file = found.totals(1), conversions_in(stock("xnnpack")(exported))
    assert totals["conversion_count"] == in_file.conversion_count == 5
    assert totals["converted_bytes"] == in_file.bytes
    families = {
        (box.title, box.family)
        for box in found.sides[1].drawing.boxes
        if box.title in ("Conv2d", "input", "output")
    }
    assert families == {("Conv2d", "channels-last"), ("input", "row-major"), ("output", "row-major")}
    places = [
        {
            box.place.split(", in ")[1]: slot
            for box, slot in zip(side.drawing.boxes, slots, strict=True)
            if ", in " in box.place and "onv" in box.title
        }
        for side, slots in zip(found.sides, found.slots, strict=True)
    ]
    assert places[0] == places[1] and set(places[0]) == {"first", "second"}
    reasons = [mark.facts["reason"] for mark in found.sides[1].drawing.marks.values()]
    assert reasons.count("inserted by the lowering") == 4
    assert sum(reason.startswith("at test_plan_comparison.py:") for reason in reasons) == 1


def test_what_executorch_cannot_lower_is_an_error_of_three_lines(capfd):
    pytest.importorskip("executorch")
    given = ["--target", "xnnpack", "--compare-with", "executorch"]
    assert "linalg_inv" in refused(capfd, [*COMMAND, *given], 1)
