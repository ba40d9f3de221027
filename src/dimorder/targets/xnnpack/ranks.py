"""Remove reshapes of an XNNPACK graph that only add or drop leading dimensions of 1.

XNNPACK aligns operands at their last dimension, so most readers can read the reshape's operand directly. A
multiplication with a 1 of higher rank adds dimensions. A reshape can derive at most one size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema

from dimorder.targets.graph_writer import without_leading_ones
from dimorder.targets.xnnpack.graph import XnnGraph, XnnValue, reads_of

# Their results have the rank of their operands, and depend only on the last dimensions.
_OF_ANY_RANK = (schema.XNNNode1x1, schema.XNNFullyConnected, schema.XNNLeakyReLU, schema.XNNELU)
_DimsOfValue = tuple[int, ...]


def drop_unit_dims(graph: XnnGraph) -> None:
    """Let nodes read the operand of such a reshape in place of its result, if all nodes after it can."""
    for node in list(graph.nodes):
        reshape: Any = node.xnode_union
        if not isinstance(reshape, schema.XNNStaticReshape) or not _changes_unit_dims(graph, reshape):
            continue
        found = _with_shape(graph, reshape.output_id, graph.values[reshape.input_id].shape)
        if found is None:
            continue
        _set_shapes(graph, found)
        kept, removed = graph.values[reshape.input_id], graph.values[reshape.output_id]
        # nothing is left to reshape, so the reshape's operand becomes this output
        if removed.is_output:
            kept, removed = removed, kept
            writers = [each.xnode_union for each in graph.nodes if each.xnode_union.output_id == removed.id]
            if not writers or removed.is_output:
                continue
            writers[0].output_id = kept.id
        graph.nodes.remove(node)
        graph.read_instead(removed.id, kept.id)


def may_multiply_unit_dims(graph: XnnGraph, reshape: Any) -> bool:
    """Return whether a reshape only adds dimensions of 1, to float32."""
    value = graph.values[reshape.input_id]
    more = len(reshape.new_shape) > len(value.shape)
    return more and _changes_unit_dims(graph, reshape) and value.is_of_float32


def multiply_unit_dims(graph: XnnGraph, reshape: Any, one: XnnValue) -> None:
    """Write such a reshape as a multiplication with a 1 of that rank, which works at all sizes."""
    (node,) = (node for node in graph.nodes if node.xnode_union is reshape)
    node.xnode_union = schema.XNNMultiply(
        input1_id=reshape.input_id, input2_id=one.id, output_id=reshape.output_id, flags=0
    )


def _changes_unit_dims(graph: XnnGraph, reshape: Any) -> bool:
    before = graph.values[reshape.input_id].shape
    return without_leading_ones(before) == without_leading_ones(reshape.new_shape)


def _with_shape(graph: XnnGraph, index: int, shape: _DimsOfValue) -> dict[int, _DimsOfValue] | None:
    """Return the new shapes of all values if one value gets this shape.

    None if that is impossible.
    """
    if shape == graph.values[index].shape:
        return {}
    found, changed, readers = {index: shape}, [index], graph.readers()
    while changed:
        index = changed.pop()
        if graph.values[index].is_output:
            return None
        for node in readers.get(index, ()):
            result = _result(graph, node, found)
            if result is None:
                return None
            if result != found.get(node.output_id, graph.values[node.output_id].shape):
                found[node.output_id] = result
                changed.append(node.output_id)
    return found


def _result(graph: XnnGraph, node: Any, found: Mapping[int, _DimsOfValue]) -> _DimsOfValue | None:
    """Return the shape of a node's result if its operands have the shapes in `found`."""
    shape: _DimsOfValue = graph.values[node.output_id].shape
    first, *others = reads_of(node)
    ranks = [len(found.get(index, graph.values[index].shape)) for index in (first, *others)]
    if isinstance(node, schema.XNNStaticReshape):
        return shape
    if isinstance(node, schema.XNNBatchMatrixMultiply) and min(ranks) < 2:
        return None
    if isinstance(node, schema.XNNNode2x1):
        return _of_rank(max(ranks), shape)
    if not found.keys().isdisjoint(others):
        return None
    if isinstance(node, schema.XNNStaticTranspose):
        return None if _perm_of_rank(node.perm, ranks[0]) is None else _of_rank(ranks[0], shape)
    aligned = isinstance(node, _OF_ANY_RANK) and not isinstance(node, schema.XNNGlobalAvgPooling2d)
    return _of_rank(ranks[0], shape) if aligned else None


def _set_shapes(graph: XnnGraph, found: Mapping[int, _DimsOfValue]) -> None:
    readers = graph.readers()
    for index, shape in found.items():
        graph.values[index].shape = shape
        for node in readers.get(index, ()):
            if isinstance(node, schema.XNNStaticTranspose):
                perm = _perm_of_rank(node.perm, len(shape))
                assert perm is not None
                node.perm, node.num_dims = perm, len(perm)


def _of_rank(rank: int, shape: Sequence[int]) -> _DimsOfValue | None:
    """Return the shape with as many leading ones as that rank needs."""
    core = without_leading_ones(shape)
    return None if len(core) > rank else (1,) * (rank - len(core)) + core


def _perm_of_rank(perm: Sequence[int], rank: int) -> list[int] | None:
    """Return the transpose at another rank that moves the last dimensions in the same way.

    >>> _perm_of_rank((1, 0), 3), _perm_of_rank((0, 2, 1), 2), _perm_of_rank((1, 0, 2), 2)
    ([0, 2, 1], [1, 0], None)
    """
    more = rank - len(perm)
    if more >= 0:
        return [*range(more), *(place + more for place in perm)]
    return [place + more for place in perm[-more:]] if list(perm[:-more]) == list(range(-more)) else None
