"""Turn a finished XNNPACK graph into one for all sizes.

XNNPACK derives every shape from those of the inputs. It derives only one entry of a reshape, and the end of a
slice only where the slice takes its whole dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from torch import Tensor
from torch.fx import Node

from dimorder.sizes.merge_specializations import SizesError, broadcast_row
from dimorder.targets.xnnpack.builder import XnnBuilder
from dimorder.targets.xnnpack.graph import XnnGraph, XnnValue, constants_of, reads_of
from dimorder.targets.xnnpack.ranks import drop_unit_dims, may_multiply_unit_dims, multiply_unit_dims


def unify(graphs: Sequence[XnnGraph]) -> None:
    """Turn the first of several finished graphs, of one program at several sizes, into one for all sizes.

    Raises `UnsupportedError` for the first operator that needs more than XNNPACK derives.
    """
    first = graphs[0]
    for graph in graphs:
        drop_unit_dims(graph)
    if len({(len(graph.nodes), len(graph.values)) for graph in graphs}) > 1:
        origin = next(value.origin for value in first.values if value.origin is not None)
        raise SizesError(origin, "other XNNPACK nodes, by the sizes")
    for row in zip(*(graph.nodes for graph in graphs), strict=True):
        _unify_node([node.xnode_union for node in row], graphs)
    for index in sorted({index for node in first.nodes for index in reads_of(node.xnode_union)}):
        values = [graph.values[index] for graph in graphs]
        constants = [value.constant for value in values if value.constant is not None]
        names = {constant.stored.name for constant in constants}
        if len(names) > 1 or (constants and len({value.shape for value in values}) > 1):
            _repeat(index, graphs)


def _origin(graph: XnnGraph, index: int) -> Node:
    origin = graph.values[index].origin
    assert origin is not None
    return origin


def _unify_node(row: Sequence[Any], graphs: Sequence[XnnGraph]) -> None:
    """Turn one node into a node for all sizes."""
    first, kind = row[0], type(row[0]).__name__.removeprefix("XNN")
    origin = _origin(graphs[0], first.output_id)
    if len(set(map(type, row))) > 1:
        raise SizesError(origin, "other XNNPACK nodes, by the sizes")
    for name, value in vars(first).items():
        values = [getattr(each, name) for each in row]
        if all(each == value for each in values):
            continue
        varying = _varying(values)
        if name == "new_shape" and len(varying) == 1:
            value[varying[0]] = _INFERRED
        elif name == "new_shape" and may_multiply_unit_dims(graphs[0], first):
            for graph, node in zip(graphs, row, strict=True):
                one = XnnBuilder(graph).constant(torch.ones([1] * len(node.new_shape)))
                multiply_unit_dims(graph, node, one)
        elif name == "sizes" and _is_whole(row, graphs, varying):
            for d in varying:
                value[d] = _INFERRED
        else:
            found = " or ".join(dict.fromkeys(map(str, values)))
            raise SizesError(origin, f"an XNNPACK {kind} whose {name} is {found}, by the sizes")


def _is_whole(slices: Sequence[Any], graphs: Sequence[XnnGraph], dims: Sequence[int]) -> bool:
    """Return whether slices take some dimensions whole."""
    read = [graph.values[node.input_id].shape for graph, node in zip(graphs, slices, strict=True)]
    return all(
        node.offsets[d] == 0 and node.sizes[d] == sizes[d]
        for node, sizes in zip(slices, read, strict=True)
        for d in dims
    )


def _repeat(index: int, graphs: Sequence[XnnGraph]) -> None:
    """Write a constant that is one row, repeated along dynamic dimensions, for all sizes.

    A reader with another operand of the result's sizes gets the single row. Other readers get the sum of the
    row and zeros of one dynamic size. The zeros come from a padded slice of an input.
    """
    first, builder = graphs[0], XnnBuilder(graphs[0])
    tensors: list[Tensor] = [constants_of([graph.values[index]])[index] for graph in graphs]
    origin, row, constant = _origin(first, index), broadcast_row(tensors), first.values[index]
    shapes = [graph.values[index].shape for graph in graphs]
    varying = _varying([list(shape) for shape in shapes])
    if row is not None and _is_broadcast(first, index):
        first.read_instead(index, builder.constant(row).id)
        return
    if row is None or len(varying) != 1:
        raise SizesError(origin, "a constant that is another one for each size")
    source = _input_of([shape[varying[0]] for shape in shapes], graphs)
    if source is None:
        raise SizesError(origin, "a constant of a size that no input of the delegate has")
    start, (x, dim) = len(first.nodes), source
    size, rank = x.shape[dim], max(2, len(x.shape))
    if len(x.shape) == 1:
        x = _of_any_size(
            builder, "StaticReshape", (size, 1), 0, num_dims=2, new_shape=[size, 1], input_id=x.id
        )
    ones = [size if d == dim else 1 for d in range(rank)]
    piece = {"num_dims": rank, "offsets": [0] * rank}
    x = _of_any_size(builder, "StaticSlice", ones, dim, **piece, sizes=list(ones), input_id=x.id)
    before = [int(d == (0 if dim else 1)) for d in range(rank)]
    wide = [a + b for a, b in zip(ones, before, strict=True)]
    pads: dict[str, Any] = {"pre_paddings": before, "post_paddings": [0] * rank, "padding_value": 0.0}
    x = builder.node("StaticConstantPad", wide, **pads, input_id=x.id)
    x = _of_any_size(builder, "StaticSlice", ones, dim, **piece, sizes=list(ones), input_id=x.id)
    flat = [size if d == varying[0] else 1 for d in range(len(constant.shape))]
    shaped = {"num_dims": len(flat), "new_shape": list(flat)}
    x = _of_any_size(builder, "StaticReshape", flat, varying[0], **shaped, input_id=x.id)
    total = builder.node("Add", constant.shape, input1_id=x.id, input2_id=builder.constant(row).id)
    first.read_instead(index, total.id)
    first.nodes[start:], first.nodes[:0] = [], first.nodes[start:]


def _is_broadcast(graph: XnnGraph, index: int) -> bool:
    """Return whether every reader of a value has another operand with the sizes of its result."""
    if graph.values[index].is_output:
        return False
    for node in graph.readers().get(index, ()):
        if not isinstance(node, schema.XNNNode2x1) or isinstance(node, schema.XNNBatchMatrixMultiply):
            return False
        beside = node.input2_id if node.input1_id == index else node.input1_id
        if graph.values[beside].shape != graph.values[node.output_id].shape:
            return False
    return True


def _of_any_size(builder: XnnBuilder, kind: str, shape: Sequence[int], dim: int, **fields: Any) -> XnnValue:
    """Write a reshape or a slice that derives the size of dimension `dim`."""
    made = builder.node(kind, shape, **fields)
    node = builder.graph.nodes[-1].xnode_union
    (node.new_shape if kind == "StaticReshape" else node.sizes)[dim] = _INFERRED
    return made


def _input_of(sizes: Sequence[int], graphs: Sequence[XnnGraph]) -> tuple[XnnValue, int] | None:
    """Return an input of floats, and the dimension of it that has these sizes in each graph."""
    first = graphs[0]
    for index in first.inputs:
        for d, found in enumerate(zip(*(graph.values[index].shape for graph in graphs), strict=True)):
            if found == tuple(sizes) and first.values[index].integer_type is None:
                return first.values[index], d
    return None


def _varying(rows: Sequence[Any]) -> list[int]:
    """Return the places at which lists of numbers differ."""
    if not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        return []
    return [d for d, sizes in enumerate(zip(*rows, strict=True)) if len(set(sizes)) > 1]


_INFERRED = 0  # in place of a size: what the other sizes leave for it, or the whole dimension
