"""Describe a finished XNNPACK graph as a model, which computes in torch what its nodes compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx import Node

from dimorder.graph.interpreter import GraphNode
from dimorder.graph.nodes import operator_at
from dimorder.targets.xnnpack.graph import XnnGraph, kind_of, passes_on, reads_of
from dimorder.targets.xnnpack.model import XnnModel


def model_of(graph: XnnGraph) -> XnnModel:
    """Return the model of a finished graph."""
    nodes = [
        GraphNode(kind_of(node), tuple(reads_of(node.xnode_union)), node.xnode_union.output_id, node)
        for node in graph.nodes
    ]
    producers = graph.producers()
    rounded = {i: _place(graph.values[_computed(i, producers)].origin) for i in _rounded(graph)}
    return XnnModel(nodes, graph.values, graph.inputs, graph.outputs, rounded)


def _rounded(graph: XnnGraph) -> list[int]:
    """Return the values that another way of computing may round differently.

    These are the integers and outputs that floats were rounded to, and each result of half precision. Floats
    that are quantised dynamically are among them, and the linears and convolutions of these. A float that was
    dequantised or moved is not. Inputs are not either: they are results of other parts.
    """
    floats, found = {value.id for value in graph.values if value.is_rounded}, list[int]()
    for node in graph.nodes:
        result = graph.values[node.xnode_union.output_id]
        reads = floats.intersection(reads_of(node.xnode_union))
        if result.integer_type is not None:
            found += [result.id] if reads else []
        elif result.nonbatch is not None:
            found += reads.difference(graph.inputs)
        elif graph.is_dynamic(node):
            found.append(result.id)
            floats.add(result.id)
        elif reads or not passes_on(node):
            floats.add(result.id)
            found += [result.id] if result.half and not passes_on(node) else []
    return list(dict.fromkeys(found + [index for index in graph.outputs if index in floats]))


def _computed(index: int, producers: Mapping[int, Any]) -> int:
    """Return the value before a chain of converts and moves."""
    node = producers.get(index)
    while node is not None and passes_on(node):
        index = reads_of(node.xnode_union)[0]
        node = producers.get(index)
    return index


def _place(origin: Node | None) -> str:
    return "a value" if origin is None else operator_at(origin)
