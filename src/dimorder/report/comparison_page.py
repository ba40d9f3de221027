"""Render two plans of a network side by side, or a plan beside a file of another lowering."""

from __future__ import annotations

from html import escape

from dimorder.report import graph_section as graph
from dimorder.report import parts
from dimorder.report.operator_rows import FAMILIES
from dimorder.report.parts import section, size, table
from dimorder.report.plan_comparison import PlanComparison


def comparison_page(found: PlanComparison, title: str = "") -> str:
    """Return the page of a comparison, in self-contained HTML.

    Args:
        found: the comparison, from `compare_plans`.
        title: the title, such as the name of the network.

    Returns:
        A page with both graphs and a table of the totals.

    >>> import torch, dimorder
    >>> from dimorder.report.plan_comparison import compare_plans
    >>> plan = dimorder.plan(torch.nn.Conv2d(3, 8, 3), (torch.randn(2, 3, 5, 7),))
    >>> found = compare_plans({"one": plan, "other": plan})
    >>> comparison_page(found, "a convolution").startswith("<!doctype html>")
    True
    """
    first, second = (side.name for side in found.sides)
    tiles = [
        (
            f"{side.drawing.conversion_count}",
            f"conversions {side.name}, {size(side.drawing.converted_bytes)}",
            "",
        )
        for side in found.sides
    ]
    pictures = [
        graph.Picture(side.drawing, side.name, slots, shared)
        for side, slots, shared in zip(found.sides, found.slots, found.shared, strict=True)
    ]
    text = "Each operator that both have lies at the same position. A choice in one graph is made in both."
    sections = [
        parts.head(title or "network", f"<b>{escape(first)}</b> beside <b>{escape(second)}</b>.", tiles),
        section(
            "Totals",
            "A conversion is in both if it is between the same two operators.",
            table(found.rows(), ("", first, second)),
        ),
        graph.graph_section(text, tuple(FAMILIES), *pictures),
    ]
    return parts.document(f"{title or 'network'} · dimorder", sections, graph.style(), graph.script())
