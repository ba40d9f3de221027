"""Quantize the results of convolutions before they are joined into one value.

An operator that is lowered to convolutions may join their results by moves. Integer kernels round the
result of each convolution, so each is quantized, and the moves are of integers. No number changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import Graph, Node

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import add_meta, add_origin, origin_of, source_of, with_origin
from dimorder.graph.quantized import QUANTIZE
from dimorder.ops.dialect import OPS
from dimorder.ops.table import elements_of


def quantize_before_join(graph: Graph) -> None:
    """Quantize each convolution of one operator instead of their joined result, in place.

    Clamps between the join and the quantize come before the join too.
    """
    for quantize in graph.find_nodes(op="call_function", target=QUANTIZE):
        pointwise, joined = [quantize], quantize.all_input_nodes[0]
        while elements_of(joined.target) is Elements.CLAMPS and len(joined.all_input_nodes) == 1:
            pointwise.append(joined)
            joined = joined.all_input_nodes[0]
        nodes = list(_moved(joined))
        parts = [node for node in nodes if node.target is OPS.conv2d_nhwc.default]
        joins = [node for node in nodes if node not in parts]
        sites = {origin_of(part).get("site") for part in parts}
        if len(sites) != 1 or not any(origin_of(node).get("site") in sites for node in joins):
            continue  # several operators, or moves that are no part of the convolutions' own
        if not all(elements_of(node.target).moves for node in joins):
            continue
        if any(len(node.users) > 1 for node in (*nodes, *pointwise[1:])):
            continue
        for part in parts:
            _insert_after(part, pointwise[::-1])
        quantize.replace_all_uses_with(joined)
        add_origin(joined, **_value(quantize))
        for node in pointwise:
            graph.erase_node(node)


def _value(node: Node) -> dict[str, Any]:
    """Return which buffer a node has, and in which order, if it is the first one with it."""
    return {key: fact for key, fact in origin_of(node).items() if key in ("buffer", "order")}


def _moved(value: Node) -> Iterator[Node]:
    """Yield a value, the values of which moves make it, and so on."""
    yield value
    if elements_of(value.target).moves:
        for source in value.all_input_nodes:
            yield from _moved(source)


def _insert_after(part: Node, operators: list[Node]) -> None:
    """Compute these operators on a value, for its reader."""
    (reader,) = part.users
    last = part
    for operator in operators:
        with part.graph.inserting_after(last):
            last = part.graph.node_copy(operator, {operator.all_input_nodes[0]: last}.__getitem__)
        whole = _value(operator)  # which a part is not
        own = {key: fact for key, fact in origin_of(last).items() if key not in whole}
        add_meta(last, with_origin(source_of(last), **own))
    reader.replace_input_with(part, last)
