"""Fuse the clamps of a finished XNNPACK graph with the nodes before them, and repetitions with matmuls.

XNNPACK fuses more clamps when it makes a runtime. This module prevents fusions that would change a result.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema

from dimorder.targets.xnnpack.builder import whole_range
from dimorder.targets.xnnpack.graph import XnnGraph, drop_unread, kind_of, reads_of
from dimorder.targets.xnnpack.repeats import merge_repeats_into_rows

_CLAMPED_BY_NODE = (
    schema.XNNConv2d,
    schema.XNNDepthwiseConv2d,
    schema.XNNConvTranspose2d,
    schema.XNNFullyConnected,
    schema.XNNAdd,
    schema.XNNSubtract,
    schema.XNNMultiply,
    schema.XNNDiv,
)
# Nodes that absorb a clamp in XNNPACK of ExecuTorch 1.5.1, if the clamp alone reads their result. They get
# its bounds and its result.
_CLAMPED_BY_XNNPACK = frozenset(
    ("Conv2d", "DepthwiseConv2d", "ConvTranspose2d", "FullyConnected", "MaxPooling2d")
)


def fuse(graph: XnnGraph) -> None:
    """Replace nodes by fewer ones that compute the same."""
    if any(value.half for value in graph.values):
        drop_unread(graph)
        _reshape_before_converts(graph)
    merge_repeats_into_rows(graph)
    _fuse_clamps(graph)
    _keep_roundings(graph)


def _reshape_before_converts(graph: XnnGraph) -> None:
    """Put each reshape of a value before the converts of that value.

    After a convert from half precision, XNNPACK of ExecuTorch 1.5.1 can take the convert's result for it.
    """
    converts: dict[int, int] = {}  # the place of the first convert of each value
    for place, node in enumerate(graph.nodes):
        if kind_of(node) == "Convert":
            converts.setdefault(node.xnode_union.input_id, place)

    def place_of(numbered: tuple[int, Any]) -> tuple[int, bool]:
        place, node = numbered
        if kind_of(node) != "StaticReshape":
            return place, True
        return min(place, converts.get(node.xnode_union.input_id, place)), False

    graph.nodes = [node for _, node in sorted(enumerate(graph.nodes), key=place_of)]


def _keep_roundings(graph: XnnGraph) -> None:
    """Split each clamp between two scales that XNNPACK would merge into the node before it.

    The merge would round once, where the program rounds twice. Converts are safe, since XNNPACK makes a table
    of them.
    """
    readers, kept = graph.readers(), list[Any]()
    kinds: dict[int, str] = {}  # by result
    for node in graph.nodes:
        before = reads_of(node.xnode_union)[0]
        fused = kinds.get(before) in _CLAMPED_BY_XNNPACK and len(readers[before]) == 1
        kept += _split_clamp(graph, node, before) if fused and _rescales(graph, node, before) else [node]
        kinds[node.xnode_union.output_id] = kind_of(kept[-1])
    graph.nodes = kept


def _rescales(graph: XnnGraph, node: Any, before: int) -> bool:
    own = graph.values[before].integer_type
    result = graph.values[node.xnode_union.output_id].integer_type
    return kind_of(node) == "Clamp" and own is not None and result is not None and own != result


def _split_clamp(graph: XnnGraph, clamp: Any, before: int) -> list[Any]:
    """Return a clamp between integers as converts and a clamp of floats.

    A clamp whose bounds cut nothing is omitted.
    """
    result, bounds = graph.values[clamp.xnode_union.output_id], clamp.output_min_max
    real = graph.add(graph.values[before].shape, origin=result.origin)
    nodes = [schema.XNode(schema.XNNConvert(before, real.id, 0), clamp.debug_handle)]
    assert result.integer_type is not None
    if bounds != whole_range(result.integer_type):
        clamped = graph.add(real.shape, origin=result.origin)
        nodes.append(schema.XNode(schema.XNNClamp(real.id, clamped.id, 0), clamp.debug_handle, bounds))
        real = clamped
    return [*nodes, schema.XNode(schema.XNNConvert(real.id, result.id, 0), clamp.debug_handle)]


def _clamps_floats(graph: XnnGraph, node: Any) -> bool:
    clamp = node.xnode_union
    return kind_of(node) == "Clamp" and graph.values[clamp.input_id].integer_type is None


def _fuse_clamps(graph: XnnGraph) -> None:
    """Merge the bounds of a clamp into the node before it, also through a cast.

    Nothing else may read that node.
    """
    readers = Counter(index for node in graph.nodes for index in reads_of(node.xnode_union))
    producers = graph.producers()

    def alone(index: int) -> Any:
        """Return the node whose result one node reads and that is no output."""
        is_alone = readers[index] == 1 and not graph.values[index].is_external
        return producers.get(index) if is_alone else None

    kept = []
    for node in graph.nodes:
        clamp = node.xnode_union
        last = alone(clamp.input_id) if _clamps_floats(graph, node) else None
        source = last
        if last is not None and kind_of(last) == "Convert" and graph.values[clamp.input_id].half is not None:
            source = alone(last.xnode_union.input_id)
        if (
            last is None
            or source is None
            or not isinstance(source.xnode_union, _CLAMPED_BY_NODE)
            or source.output_min_max is not None
        ):
            kept.append(node)
            continue
        source.output_min_max = node.output_min_max
        last.xnode_union.output_id = clamp.output_id
        producers[clamp.output_id] = last
    graph.nodes = kept
