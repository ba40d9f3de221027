"""Let a matmul of an XNNPACK graph read an operand once that is repeated for several left operands.

Grouped attention repeats its keys and values: several heads of queries read one head of keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema

from dimorder.graph.dynamic_sizes import DynamicSize
from dimorder.targets.graph_writer import without_leading_ones
from dimorder.targets.xnnpack.graph import XnnGraph, XnnValue, drop_unread, kind_of, reads_of


def merge_repeats_into_rows(graph: XnnGraph) -> None:
    """Merge the dimension along which a matmul's right operand is repeated into the rows of its left one.

    XNNPACK packs the right operand in each call. Repeated, it would be written, packed and read several
    times.
    """
    producers, merged, kept = graph.producers(), False, list[Any]()
    for node in graph.nodes:
        nodes = _merged(graph, node, producers)
        merged |= nodes is not None
        kept += [node] if nodes is None else nodes
    graph.nodes = kept
    if merged:
        drop_unread(graph)


def _merged(graph: XnnGraph, node: Any, producers: Mapping[int, Any]) -> list[Any] | None:
    """Return the nodes that replace a matmul, or None if its right operand is not repeated."""
    if kind_of(node) != "BatchMatrixMultiply":
        return None
    product, nodes = node.xnode_union, list[Any]()
    left, wide, result = (graph.values[i] for i in (product.input1_id, product.input2_id, product.output_id))
    found = _source_of_repeats(graph, wide, producers)
    if found is None or without_leading_ones(left.shape[:-2]) != without_leading_ones(wide.shape[:-2]):
        return None
    source, repeats = found
    batch = source.shape[:-3]
    shapes = [(*batch, repeats * x.shape[-2], x.shape[-1]) for x in (left, result)]
    once = (*batch, *source.shape[-2:])
    if any(sum(isinstance(n, DynamicSize) for n in shape) > 1 for shape in (*shapes, once, result.shape)):
        return None  # XNNPACK derives one size of a reshape

    def reshaped(value: XnnValue, shape: Sequence[int], to: XnnValue | None = None) -> XnnValue:
        to = graph.add(shape, value.half, origin=result.origin) if to is None else to
        reshape = schema.XNNStaticReshape(len(shape), list(shape), value.id, to.id, 0)
        nodes.append(schema.XNode(reshape, node.debug_handle))
        return to

    before = _before_reshape(graph, source, producers)
    right = before if before.shape == once else reshaped(source, once)
    rows = reshaped(left, shapes[0])
    total = graph.add(shapes[1], result.half, origin=result.origin)
    matmul = schema.XNNBatchMatrixMultiply(rows.id, right.id, total.id, product.flags)
    nodes.append(schema.XNode(matmul, node.debug_handle))
    reshaped(total, result.shape, result)
    return nodes


def _source_of_repeats(
    graph: XnnGraph, value: XnnValue, producers: Mapping[int, Any]
) -> tuple[XnnValue, int] | None:
    """Return what a stack of matrices repeats, and how many times in a row it has each matrix; or None."""
    wide = _before_reshape(graph, value, producers)
    source = _without_ones(graph, producers.get(wide.id))
    if source is None or len(wide.shape) < 3 or len(wide.shape) != len(source.shape):
        return None
    dims = [d for d, sizes in enumerate(zip(source.shape, wide.shape, strict=True)) if sizes[0] != sizes[1]]
    keeps_matrices = value.shape[-2:] == wide.shape[-2:]
    return (source, wide.shape[-3]) if keeps_matrices and dims == [len(wide.shape) - 3] else None


def _before_reshape(graph: XnnGraph, value: XnnValue, producers: Mapping[int, Any]) -> XnnValue:
    """Return the operand of the reshape that a value is the result of, or the value itself."""
    node = producers.get(value.id)
    if node is None or kind_of(node) != "StaticReshape":
        return value
    before: XnnValue = graph.values[node.xnode_union.input_id]
    return before


def _without_ones(graph: XnnGraph, node: Any) -> XnnValue | None:
    """Return the other operand of a multiplication of floats by ones, which only repeats it."""
    if node is None or kind_of(node) != "Multiply" or node.output_min_max is not None:
        return None
    x, ones = (graph.values[index] for index in reads_of(node.xnode_union))
    if ones.constant is None or not torch.equal(ones.constant.data, torch.ones_like(ones.constant.data)):
        return None
    plain = x.constant is None and x.integer_type is None
    return x if plain and graph.values[node.xnode_union.output_id].integer_type is None else None
