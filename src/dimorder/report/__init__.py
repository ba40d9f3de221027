"""Render plans, inspections and benches as HTML pages.

A plan's page has its contract, its conversions with their reasons, and the cost.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dimorder.eager.inspection import Comparison, Inspection
from dimorder.files import write_whole
from dimorder.latency.bench import Bench
from dimorder.lowered import Lowered
from dimorder.plans.network_plan import NetworkPlan
from dimorder.report.bench_page import bench_page
from dimorder.report.html import page
from dimorder.report.inspection_page import inspection_page
from dimorder.report.model import Report, build

__all__ = ["Report", "build", "render", "render_bench", "render_inspection", "write"]


def render(
    result: Lowered | NetworkPlan, title: str = "", progress: Callable[[str], None] = lambda step: None
) -> str:
    """Return the page of a plan, in self-contained HTML. The plan is solved anew for each reason on it.

    >>> import torch, dimorder
    >>> plan = dimorder.plan(torch.nn.Conv2d(3, 8, 3), (torch.randn(2, 3, 5, 7),))
    >>> render(plan, title="a convolution").startswith("<!doctype html>")
    True
    """
    return page(build(result, title, progress))


def render_inspection(found: Inspection, title: str = "", comparison: Comparison | None = None) -> str:
    """Return the page of an inspection, in self-contained HTML."""
    return inspection_page(found, title, comparison)


def render_bench(found: Bench, title: str = "") -> str:
    """Return the page of a bench, in self-contained HTML."""
    return bench_page(found, title)


def write(result: Lowered | NetworkPlan, path: str | os.PathLike[str], title: str = "") -> Path:
    """Write the page: whole, or not at all. Raises `UsageError` if it cannot be written."""
    return write_whole(path, render(result, title).encode())
