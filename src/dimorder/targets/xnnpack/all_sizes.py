"""Let a finished XNNPACK graph compute at all sizes, though it was built at one.

XNNPACK derives every shape from those of the inputs. It derives only one entry of a reshape, and the end of a
slice only where it is the end of the operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from torch.fx import Node

from dimorder.graph.dynamic_sizes import DynamicSize, is_fixed
from dimorder.sizes.size_writer import SizesError
from dimorder.targets.xnnpack.builder import XnnBuilder, whole_range
from dimorder.targets.xnnpack.graph import XnnGraph, XnnValue, kind_of, reads_of
from dimorder.targets.xnnpack.ranks import drop_unit_dims, may_multiply_unit_dims, multiply_unit_dims

_INFERRED = 0  # in place of a size: what the other sizes leave for it, or the whole dimension
_TO_THE_END = 2**31 - 1  # as the size of a slice: XNNPACK cuts it to what the operand has


def derive_sizes(graph: XnnGraph) -> None:
    """Leave to XNNPACK the sizes of a graph that are dynamic. Afterwards all numbers of its nodes are plain.

    Raises `SizesError` for the first operator that needs more than XNNPACK derives.
    """
    drop_unit_dims(graph)
    for node in list(graph.nodes):
        _derive(graph, node.xnode_union)
    _clamp_before_matmuls(graph)
    for index in sorted({index for node in graph.nodes for index in reads_of(node.xnode_union)}):
        value = graph.values[index]
        if value.constant is not None and not is_fixed(value.shape):
            _repeat(graph, value)


def _derive(graph: XnnGraph, node: Any) -> None:
    """Leave the dynamic numbers of one node to XNNPACK."""
    origin, kind = _origin(graph, node.output_id), type(node).__name__.removeprefix("XNN")
    for name, field in vars(node).items():
        numbers = field if isinstance(field, list) else [field]
        dynamic = [d for d, size in enumerate(numbers) if isinstance(size, DynamicSize)]
        if not dynamic:
            continue
        if name == "new_shape" and len(dynamic) == 1:
            numbers[dynamic[0]] = _INFERRED
        elif name == "new_shape" and may_multiply_unit_dims(graph, node):
            multiply_unit_dims(graph, node, XnnBuilder(graph).constant(torch.ones([1] * len(field))))
            return
        elif name == "sizes" and _ends_with_operand(graph, node, dynamic):
            for d in dynamic:
                numbers[d] = _TO_THE_END if node.offsets[d] else _INFERRED
        else:
            raise SizesError(
                origin, f"XNNPACK's {kind} takes fixed {name}, and {field} depends on a dynamic size"
            )


def _clamp_before_matmuls(graph: XnnGraph) -> None:
    """Put a clamp that cuts nothing between a matmul and the Convert of its right operand's integers.

    XNNPACK drops that Convert if the zero point is 0, and keeps a scale for each row of the operand. In
    ExecuTorch 1.5.1 it reads wrong scales after a call of smaller sizes. A clamp keeps the Convert.
    """
    producers, nodes = graph.producers(), list[Any]()
    for node in graph.nodes:
        matmul = node.xnode_union
        convert = producers.get(matmul.input2_id) if kind_of(node) == "BatchMatrixMultiply" else None
        if convert is not None and kind_of(convert) == "Convert":
            of = graph.values[convert.xnode_union.input_id].integer_type
            floats = graph.values[matmul.input2_id]
            if of and of.zero_point == 0 and not floats.half and not is_fixed(floats.shape):
                matmul.input2_id = graph.add(floats.shape, origin=floats.origin).id
                clamp = schema.XNNClamp(floats.id, matmul.input2_id, 0)
                nodes.append(schema.XNode(clamp, node.debug_handle, whole_range(of)))
        nodes.append(node)
    graph.nodes = nodes


def _origin(graph: XnnGraph, index: int) -> Node:
    origin = graph.values[index].origin
    assert origin is not None
    return origin


def _ends_with_operand(graph: XnnGraph, node: Any, dims: Sequence[int]) -> bool:
    """Return whether a slice ends where its operand ends, from a fixed place on."""
    shape = graph.values[node.input_id].shape
    return is_fixed(node.offsets) and all(node.offsets[d] + node.sizes[d] == shape[d] for d in dims)


def _repeat(graph: XnnGraph, value: XnnValue) -> None:
    """Write a constant that is one row, repeated along dynamic dimensions, for all sizes.

    A reader with another operand of the result's sizes gets the single row. Other readers get the sum of the
    row and zeros, for each dynamic size. The zeros come from a padded slice of another value. Integers are
    added to zeros of their own scale, which leaves them unchanged.
    """
    assert value.constant is not None
    row = graph.add(value.constant.data.shape, value.integer_type or value.half, constant=value.constant)
    if _is_broadcast(graph, value):
        graph.read_instead(value.id, row.id)
        return
    builder, start, total, last = XnnBuilder(graph), len(graph.nodes), row, 0
    for varying in (d for d, size in enumerate(value.shape) if isinstance(size, DynamicSize)):
        source = _source_of(graph, value, value.shape[varying])
        if source is None:
            found = "a constant of a dynamic size that no earlier value of the delegate has"
            raise SizesError(_origin(graph, value.id), found)
        x, dim, place = source
        zeros = _zeros(builder, x, dim, [s if d == varying else 1 for d, s in enumerate(value.shape)])
        zeros = zeros if value.integer_type is None else builder.quantize(zeros, value.integer_type)
        shape, last = [*value.shape[: varying + 1], *total.shape[varying + 1 :]], max(last, place)
        total = builder.node(
            "Add", shape, input1_id=zeros.id, input2_id=total.id, result_type=value.integer_type
        )
    graph.read_instead(value.id, total.id)
    for node in graph.nodes[start:]:
        for numbers in (getattr(node.xnode_union, name, []) for name in ("new_shape", "sizes")):
            numbers[:] = [_INFERRED if isinstance(n, DynamicSize) else n for n in numbers]
    written = graph.nodes[start:]
    del graph.nodes[start:]
    graph.nodes[last:last] = written


def _zeros(builder: XnnBuilder, x: XnnValue, dim: int, shape: Sequence[int]) -> XnnValue:
    """Write zeros of a shape whose only size above 1 is the one of a value's dimension."""
    size = x.shape[dim]
    rank = max(2, len(x.shape))
    if len(x.shape) == 1:
        x = builder.reshape(x, (size, 1))
    ones = [size if d == dim else 1 for d in range(rank)]
    piece: dict[str, Any] = {"num_dims": rank, "offsets": [0] * rank}
    x = builder.floats(builder.node("StaticSlice", ones, **piece, sizes=list(ones), input_id=x.id))
    before = [int(d == (0 if dim else 1)) for d in range(rank)]
    wide = [a + b for a, b in zip(ones, before, strict=True)]
    pads: dict[str, Any] = {"pre_paddings": before, "post_paddings": [0] * rank, "padding_value": 0.0}
    x = builder.node("StaticConstantPad", wide, **pads, input_id=x.id)
    x = builder.node("StaticSlice", ones, **piece, sizes=list(ones), input_id=x.id)
    return builder.reshape(x, list(shape))


def _is_broadcast(graph: XnnGraph, value: XnnValue) -> bool:
    """Return whether every reader of a value has another operand with the sizes of its result."""
    if value.is_output:
        return False
    for node in graph.readers().get(value.id, ()):
        if not isinstance(node, schema.XNNNode2x1) or isinstance(node, schema.XNNBatchMatrixMultiply):
            return False
        beside = node.input2_id if node.input1_id == value.id else node.input1_id
        if graph.values[beside].shape != graph.values[node.output_id].shape:
            return False
    return True


def _source_of(graph: XnnGraph, constant: XnnValue, size: int) -> tuple[XnnValue, int, int] | None:
    """Return a value that has this size, its dimension, and the place after the node that makes it.

    It has the constant's floating type, or is of integers that stand for float32. It is an input, or is
    computed before any node reads the constant.
    """
    earlier = [(index, 0) for index in graph.inputs]
    for place, node in enumerate(graph.nodes):
        if constant.id in reads_of(node.xnode_union):
            break
        earlier.append((node.xnode_union.output_id, place + 1))
    for index, place in earlier:
        value = graph.values[index]
        for d, found in enumerate(value.shape):
            if found == size and value.nonbatch is None and value.half == constant.half:
                return value, d, place
    return None
