"""A plan as a graph of Graphviz: every operator once, every read as an edge, conversions on their edges."""

from __future__ import annotations

import re

import torch
from torch import nn

import dimorder
from dimorder.report.dot import plan_dot
from tests.zoo.stateful import StreamingConv1d


class Quoted(nn.Module):
    """A row-major operator between two convolutions, so that a value is converted twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(torch.linalg.inv(y + torch.eye(5) * 50) + y)


def parts(text: str) -> tuple[dict[int, str], list[tuple[int, int, str]]]:
    nodes = {int(i): label for i, label in re.findall(r"^  n(\d+) \[(.*)\];$", text, re.MULTILINE)}
    edges = re.findall(r"^  n(\d+) -> n(\d+)(.*);$", text, re.MULTILINE)
    return nodes, [(int(a), int(b), more) for a, b, more in edges]


def test_conversions_are_red_edges_with_their_bytes() -> None:
    plan = dimorder.plan(Quoted().eval(), (torch.randn(2, 3, 5, 5),), target="xnnpack")
    nodes, edges = parts(plan_dot(plan))
    assert len(nodes) == len(plan.extracted.sites) and {i for a, b, _ in edges for i in (a, b)} == {*nodes}
    red = [(a, b, more) for a, b, more in edges if "color" in more]
    assert len(red) == sum(len(each.consumers) for each in plan.layout_plan.conversions) >= 2
    for each in plan.layout_plan.conversions:
        for consumer in each.consumers:
            (more,) = (more for a, b, more in red if (a, b) == (each.producer, consumer))
            assert " B" in more or " kB" in more


def test_a_state_is_read_from_what_the_last_call_left() -> None:
    plan = dimorder.plan(StreamingConv1d(3, 8, 5), (torch.randn(2, 3, 4),), target="xnnpack")
    nodes, edges = parts(plan_dot(plan))
    (state,) = (i for i, label in nodes.items() if 'label="state' in label)
    assert any(b == state for _, b, _ in edges) and any(a == state for a, _, _ in edges)
