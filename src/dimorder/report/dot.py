"""Render a plan as a graph in DOT, the language of Graphviz: operators by order, conversions on the edges."""

from __future__ import annotations

from collections.abc import Sequence

from dimorder.plans.explanation import PlannedConversion
from dimorder.plans.network_plan import NetworkPlan
from dimorder.report.colours import COLOURS
from dimorder.report.operator_rows import OperatorRow, operator_rows
from dimorder.report.parts import size
from dimorder.report.plan_graph import Edge, edges_of
from dimorder.text import shape_text


def plan_dot(plan: NetworkPlan) -> str:
    """Return the plan as a DOT graph, which `dot -Tsvg` draws.

    An edge that converts is red, and says the orders and bytes.

    >>> import torch, dimorder
    >>> plan = dimorder.plan(torch.nn.ReLU(), (torch.randn(2, 3, 5, 7),))
    >>> print(plan_dot(plan).splitlines()[0])
    digraph plan {
    """
    rows = list(operator_rows(plan))
    lines = [
        "digraph plan {",
        '  node [shape=box, style="filled,rounded", fontname="sans-serif", fontsize=10];',
        '  edge [fontname="sans-serif", fontsize=9];',
        *(f"  n{index} [{_node(row)}];" for index, row in enumerate(rows)),
        *(_edge(edge, plan) for edge in edges_of(plan)),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _node(row: OperatorRow) -> str:
    orders = dict.fromkeys(row.writes or row.reads)
    label = _text([f"{row.operator} {shape_text(row.shape)}", *orders])
    return f'label={label}, tooltip={_text([row.source])}, fillcolor="{COLOURS[row.family].pale}"'


def _edge(edge: Edge, plan: NetworkPlan) -> str:
    attributes = "" if edge.conversion is None else f" [{_conversion(plan.conversions[edge.conversion])}]"
    return f"  n{edge.source} -> n{edge.target}{attributes};"


def _conversion(conversion: PlannedConversion) -> str:
    label = _text([f"{conversion.from_order} to", conversion.to_order, size(conversion.bytes)])
    red = COLOURS["conversion"].light
    return f'label={label}, color="{red}", fontcolor="{red}", penwidth=2'


def _text(lines: Sequence[str]) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
