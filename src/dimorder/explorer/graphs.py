"""Write plans and files as graphs of Model Explorer: plain data, with the names of its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dimorder.plans.explanation import PlannedConversion
from dimorder.plans.network_plan import NetworkPlan
from dimorder.report.colours import COLOURS
from dimorder.report.operator_rows import OperatorRow, operator_rows
from dimorder.report.parts import size
from dimorder.report.plan_graph import edges_of

if TYPE_CHECKING:
    from dimorder.executorch.file_graph import FileNode

Graph = dict[str, Any]


def plan_graph(plan: NetworkPlan) -> Graph:
    """Return a plan as a graph: operators in their modules, with their orders, and conversions between."""
    nodes = [_operator(index, row) for index, row in enumerate(operator_rows(plan))]
    conversions: dict[str, Graph] = {}
    for edge in edges_of(plan):
        source, target = nodes[edge.source], nodes[edge.target]
        if edge.conversion is not None:
            name = f"conversion {edge.conversion}"
            if name not in conversions:
                planned = plan.conversions[edge.conversion]
                conversions[name] = _conversion(name, planned, target["namespace"])
                conversions[name]["incomingEdges"].append(_edge(source["id"]))
            source = conversions[name]
        target["incomingEdges"].append(_edge(source["id"]))
    return {"id": "plan", "nodes": [*nodes, *conversions.values()]}


def file_graph(nodes: Iterable[FileNode], title: str) -> Graph:
    """Return the operators of a file as a graph: each delegate is a group, conversions are coloured."""
    return {"id": title, "nodes": [_file_node(node) for node in nodes]}


def _operator(index: int, row: OperatorRow) -> Graph:
    facts = {title: fact for title, fact in row.facts.items() if title != "in"}  # the namespace says it
    module = "" if row.module == "contract" else row.module.replace(".", "/")
    return _node(str(index), row.operator, module, facts, row.family)


def _conversion(name: str, conversion: PlannedConversion, namespace: str) -> Graph:
    return _node(name, f"conversion of {size(conversion.bytes)}", namespace, conversion.facts, "conversion")


def _file_node(node: FileNode) -> Graph:
    moved = node.converted_bytes
    facts = {**node.facts, **({} if moved is None else {"moves": f"{moved:,} bytes into another order"})}
    label = node.operator if moved is None else f"{node.operator}, {size(moved)}"
    written = _node(node.name, label, node.group, facts, "" if moved is None else "conversion")
    written["incomingEdges"] = [_edge(source, place) for place, source in enumerate(node.reads)]
    return written


def _node(name: str, label: str, namespace: str, facts: Mapping[str, str], kind: str) -> Graph:
    return {
        "id": name,
        "label": label,
        "namespace": namespace,
        "attrs": [{"key": key, "value": value} for key, value in facts.items() if value],
        "incomingEdges": [],
        **({"style": {"backgroundColor": COLOURS[kind].pale}} if kind else {}),
    }


def _edge(source: str, place: int = 0) -> Graph:
    return {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(place)}


def collection(graphs: Sequence[Graph], title: str) -> list[Graph]:
    """Return graphs as the content of a JSON file that Model Explorer opens."""
    return [{"label": title, "graphs": list(graphs)}]
