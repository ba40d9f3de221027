"""Test that the page of a bench has a bar for each runtime, and shows where our time goes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dimorder.cli import main
from dimorder.latency.bench import Bench, Timed
from dimorder.latency.profile import OperatorTime
from dimorder.plans.explanation import Place
from dimorder.report.bench_page import bench_page
from dimorder.targets.xnnpack.times import KernelTime
from tests.report.test_plan_page import Page

OURS = Timed(
    *("xnnpack", "dimorder, xnnpack", (2.0, 2.0, 2.0), (KernelTime("conv", 3, 1.5, 0.75),)),
    *(1.25, 5_000_000, 13_000_000, 2e-6),
)
BENCH = Bench(
    "Net <b>",
    ((2, 3, 5, 7),),
    (
        OURS,
        Timed("eager", "PyTorch", (8.0, 8.0, 8.0)),
        Timed("onnxruntime", "ONNX Runtime", error="RuntimeError: no <kernel>"),
    ),
    2,
    {"processors": 2},
    1.0,
    (OperatorTime(Place("aten.linear", "net.py:7"), (2, 11), 4, 0.5, 0.125),),
)


def widths(page: str, form: str) -> list[float]:
    return [float(width) for width in re.findall(form, page)]


def test_every_runtime_has_a_bar_by_its_time():
    page = bench_page(BENCH)
    read = Page(page)
    assert not re.search(r"https?:|<script|<link|<img|@import|url\(", page)
    assert widths(page, r'width="([\d.]+)%"') == [12.5, 25, 100]  # the limit, ours, PyTorch
    assert widths(page, r'style="width:([\d.]+)%') == [100, 100]  # a kernel; an operator
    assert "8.000 ms, ours / this 0.25" in read.text
    for text in ("2.000 ms", "8.000 ms", "1.000 ms", "0.25 (0.25 to 0.25)", "5.0 MB", "13.0 MB", "2e-06"):
        assert text in read.text
    assert read.classes.count("ours") == 1


def test_the_spread_of_the_rounds_is_a_line_on_the_bar():
    spread = replace(BENCH, rows=(replace(OURS, ms=(2.0, 3.0, 4.0)), BENCH.rows[1]), limit_ms=None)
    lines = re.findall(r'<line x1="([\d.]+)%" x2="([\d.]+)%"', bench_page(spread))
    assert lines == [("27.5", "47.5"), ("100.0", "100.0")]  # 2.2 to 3.8 of 8 ms


def test_what_failed_is_there_with_the_reason():
    page = bench_page(BENCH)
    assert "RuntimeError: no &lt;kernel&gt;" in page and "Net &lt;b&gt;" in page


def test_kernels_and_operators_stand_beside_what_they_take_at_least():
    text = Page(bench_page(BENCH)).text
    assert "1.500 ms0.750 ms3" in text
    assert "aten.linear (net.py:7)0.500 ms0.125 ms42 × 11" in text


@pytest.mark.parametrize("rows", [(replace(OURS, ms=(), kernels=None, error="no"),), (OURS,)])
def test_a_bench_of_ours_alone_has_a_page(rows):
    Page(bench_page(replace(BENCH, rows=rows, operators=None)))


def test_the_command_writes_the_page(tmp_path):
    path = tmp_path / "net.html"
    given = ["torch.nn:Conv2d", "--arg", "in_channels=3", "--arg", "out_channels=4", "--arg", "kernel_size=3"]
    given += ["--input", "2x3x5x7", "--target", "torch", "--against", "eager", "--rounds", "5"]
    assert main(["bench", *given, "--report", str(path)]) == 0
    read = Page(path.read_text())
    assert "dimorder, torch" in read.text and "PyTorch" in read.text
