"""Test that the clamp and the quantize after a join of one operator's convolutions move before the join."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from dimorder.graph.nodes import add_origin
from dimorder.graph.quantized import QUANTIZE
from dimorder.ops.dialect import OPS
from dimorder.physical.quantize_before_join import quantize_before_join

aten = torch.ops.aten
SCALE = (0.5, 3, -128, 127, torch.int8)


def joined(*sites: int, clamp: Any = aten.relu.default, reads_floats: bool = False) -> Graph:
    """A graph of two convolutions of these sites, joined, viewed, clamped and quantised."""
    graph = Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")

    def convolution(site: int) -> Node:
        args = (x, weight, None, [1, 1], [0] * 4, [1, 1], 1)
        node = graph.call_function(OPS.conv2d_nhwc.default, args)
        add_origin(node, site=site)
        return node

    both = graph.call_function(aten.cat.default, ([convolution(site) for site in sites], 3))
    add_origin(both, site=sites[0])
    rows = graph.call_function(aten.view.default, (both, [4, 6, 5]))
    clamped = graph.call_function(clamp, (rows,))
    results: tuple[Any, ...] = (graph.call_function(QUANTIZE, (clamped, *SCALE)),)
    graph.output((*results, both) if reads_floats else results)
    return graph


def text(graph: Graph) -> str:
    """Each call with the nodes that it reads."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    return "\n".join(f"{node.name}: {', '.join(map(str, node.all_input_nodes))}" for node in calls)


BEFORE = """\
conv2d_nhwc_default: x, weight
conv2d_nhwc_default_1: x, weight
cat_default: conv2d_nhwc_default, conv2d_nhwc_default_1
view_default: cat_default
relu_default: view_default
quantize_per_tensor_default: relu_default"""
AFTER = """\
conv2d_nhwc_default: x, weight
relu_default_1: conv2d_nhwc_default
quantize_per_tensor_default_1: relu_default_1
conv2d_nhwc_default_1: x, weight
relu_default_2: conv2d_nhwc_default_1
quantize_per_tensor_default_2: relu_default_2
cat_default: quantize_per_tensor_default_1, quantize_per_tensor_default_2
view_default: cat_default"""


def test_each_convolution_of_an_operator_is_quantised() -> None:
    graph = joined(7, 7)
    assert text(graph) == BEFORE
    quantize_before_join(graph)
    assert text(graph) == AFTER
    graph.lint()


def test_a_relu6_is_a_clamp_too() -> None:
    graph = joined(7, 7, clamp=aten.relu6.default)
    quantize_before_join(graph)
    assert text(graph) == AFTER.replace("relu", "relu6")


def test_several_operators_stay() -> None:
    graph = joined(7, 8)
    quantize_before_join(graph)
    assert text(graph) == BEFORE


def test_floats_that_others_read_stay() -> None:
    graph = joined(7, 7, reads_floats=True)
    quantize_before_join(graph)
    assert text(graph) == BEFORE
