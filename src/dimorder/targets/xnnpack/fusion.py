"""Fuse the nodes of a finished XNNPACK graph: clamps, and converts to integers.

A clamp becomes part of the node before it. A node between converts reads and writes integers, if XNNPACK
computes it so. What stays in float32 between converts is a float island.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from torch.fx import Node

from dimorder.targets.xnnpack.builder import whole_range
from dimorder.targets.xnnpack.graph import NONE_ID, XnnGraph, drop_unread, kind_of, passes_on, reads_of
from dimorder.targets.xnnpack.integers import DYNAMIC, IN_FLOAT, IN_INT8, OPERANDS, READS, WEIGHTS
from dimorder.targets.xnnpack.weights import (
    XnnWeights,
    add_integers,
    integers_of,
    type_of,
    unfit_4_bits,
    unfit_weight,
)

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


def fuse(graph: XnnGraph) -> dict[Node, str]:
    """Replace nodes by fewer ones that compute the same, and return the float islands.

    These are the program's nodes that are computed in float32 in a quantised network, with the reasons. In a
    network with only dynamic quantisation they are linears, matmuls and convolutions.
    """
    if any(value.half for value in graph.values):
        drop_unread(graph)
    _fuse_clamps(graph)
    unfused = _fuse_dynamic(graph)
    if graph.has_integer_types:
        _fuse_integers(graph)
        _keep_roundings(graph)
    return _islands(graph, unfused)


def _islands(graph: XnnGraph, unfused: dict[int, str]) -> dict[Node, str]:
    found: dict[Node, list[tuple[str, str]]] = {}
    readers, is_static = graph.readers(), graph.has_integer_types
    for node in graph.nodes:
        result = graph.values[node.xnode_union.output_id]
        kind = kind_of(node)
        if result.origin is None or result.integer_type or passes_on(node) or graph.is_dynamic(node):
            continue
        if not is_static and result.id not in unfused:
            continue
        reason = unfused.get(result.id) or _integer_operands(graph, node, readers)
        assert isinstance(reason, str), f"{kind} was not fused"
        found.setdefault(result.origin, []).append((kind, reason))
    return {origin: _main_reason(reasons) for origin, reasons in found.items()}


def _fuse_dynamic(graph: XnnGraph) -> dict[int, str]:
    """Let linears and convolutions read dynamically quantised integers, and other nodes floats.

    Returns the results of the nodes that read floats that were to be quantised, with the reasons.
    """
    integers: dict[tuple[int, int], int] = {}
    weights, unfused, fused = XnnWeights(graph), dict[int, str](), []
    for xnode in graph.nodes:
        node, kind = xnode.xnode_union, kind_of(xnode)
        for name in OPERANDS:
            index = getattr(node, name, NONE_ID)
            if index == NONE_ID or graph.values[index].tokens is None:
                continue
            source, tokens = graph.values[index].tokens
            reason = _not_dynamic(graph, kind, node, tokens)
            if reason is not None:
                setattr(node, name, source.id)
                unfused[node.output_id] = reason
                continue
            key = source.id, DYNAMIC[kind]
            if key not in integers:
                value = graph.add(source.shape)
                value.datatype, value.nonbatch = schema.XNNDatatype.xnn_datatype_qdint8, DYNAMIC[kind]
                integers[key] = value.id
                convert = schema.XNNConvert(input_id=source.id, output_id=value.id, flags=0)
                fused.append(schema.XNode(convert, debug_handle=xnode.debug_handle))
            in_4_bits = kind == "FullyConnected" and unfit_4_bits(graph.values[node.filter_id]) is None
            weight = weights.in_4_bits(node.filter_id) if in_4_bits else weights.in_8_bits(node.filter_id, 0)
            vars(node).update({name: integers[key], "filter_id": weight})
        fused.append(xnode)
    graph.nodes = fused
    return unfused


def _not_dynamic(graph: XnnGraph, kind: str, node: Any, tokens: torch.Tensor) -> str | None:
    """Return why a node cannot quantise dynamically by steps that are no larger than the tokens'."""
    if kind not in DYNAMIC:
        return f"XNNPACK has no {kind} that quantises dynamically"
    rows = tokens.flatten(-DYNAMIC[kind])
    if not bool((rows == rows[..., :1]).all()):
        return "several scales within what XNNPACK quantises by one"
    weight = graph.values[node.filter_id]
    if kind == "FullyConnected" and unfit_4_bits(weight) is None:
        return None
    if weight.integers is None:
        return "a weight that is not quantised, or by several zero points"
    return unfit_weight(weight, 0)


def _fuse_integers(graph: XnnGraph) -> None:
    """Let nodes between converts read and write the integers, if XNNPACK computes them so."""
    weights = XnnWeights(graph)
    done: set[int] | None = None
    while done is None or done:
        drop_unread(graph)
        readers, done = graph.readers(), set()
        for node in graph.nodes:
            result = graph.values[node.xnode_union.output_id]
            if result.integer_type or kind_of(node) == "Convert":
                continue
            operands = _integer_operands(graph, node, readers)
            if isinstance(operands, str):
                continue
            kind, ids = kind_of(node), dict[str, int]()
            for name, integers in operands.items():
                if isinstance(integers, int):
                    ids[name] = weights.in_8_bits(integers, _outputs(kind, name == "filter_id"))
                else:
                    ids[name] = add_integers(graph, integers).id
            (convert,) = readers[result.id]
            vars(node.xnode_union).update(ids, output_id=convert.output_id)
            done.add(id(convert))
        graph.nodes = [node for node in graph.nodes if id(node.xnode_union) not in done]


def _integer_operands(graph: XnnGraph, xnode: Any, readers: dict[int, list[Any]]) -> dict[str, Any] | str:
    """Return the integers that a node may read in place of its operands, if its result is quantised next.

    A weight or bias is given as the place of its floats. Otherwise return why the node computes in float32.
    """
    kind, node, values = kind_of(xnode), xnode.xnode_union, graph.values
    condition = IN_INT8.get(kind)
    if condition is None:
        return IN_FLOAT.get(kind, f"XNNPACK has no int8 {kind}")
    read_by = readers.get(node.output_id, [])
    result = values[read_by[0].output_id].integer_type if len(read_by) == 1 else None
    if result is None or values[node.output_id].is_external:
        return _BETWEEN[0]
    read = {name: getattr(node, name) for name in READS if getattr(node, name, NONE_ID) != NONE_ID}
    weights = {n: index for n, index in read.items() if n in WEIGHTS and "filter_id" in read}
    sources = {n: integers_of(values[index]) for n, index in read.items() if n not in weights}
    if None in sources.values():
        return _BETWEEN[1]
    for name, index in weights.items():
        reason = unfit_weight(values[index], _outputs(kind, name == "filter_id"))
        if reason is not None:
            return reason
    filters = values[weights["filter_id"]].integers if weights else None
    types = [type_of(integers) for integers in sources.values() if integers is not None]
    if any(of.dtype == torch.uint8 for of in (*types, result)):
        return "unsigned integers, which only the boundary has"
    scales = None if filters is None else filters.scales
    return condition(types, result, scales) or {**sources, **weights}


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
    real = graph.add(graph.values[before].shape)
    nodes = [schema.XNode(schema.XNNConvert(before, real.id, 0), clamp.debug_handle)]
    assert result.integer_type is not None
    if bounds != whole_range(result.integer_type):
        clamped = graph.add(real.shape)
        nodes.append(schema.XNode(schema.XNNClamp(real.id, clamped.id, 0), clamp.debug_handle, bounds))
        real = clamped
    return [*nodes, schema.XNode(schema.XNNConvert(real.id, result.id, 0), clamp.debug_handle)]


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
        last = alone(clamp.input_id) if isinstance(clamp, schema.XNNClamp) else None
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


# For a node amid others; another node of the same operator may give a better reason.
_BETWEEN = ("a result that is not quantised", "an operand that is not quantised")


def _outputs(kind: str, is_filter: bool) -> int:
    """Return the dimension of a weight's or a bias's output channels."""
    return 3 if is_filter and kind == "DepthwiseConv2d" else 0


def _main_reason(reasons: Sequence[tuple[str, str]]) -> str:
    """Return why an operator is in float32, from the kinds and the reasons of its nodes."""
    if len(reasons) == 1:
        return reasons[0][1]
    unmet = (reason for kind, reason in reasons if kind in IN_INT8 and reason not in _BETWEEN)
    return next(unmet, "no int8 kernel computes it alone")
