"""Write the bytes of an XNNPACK graph, and decide where each of its constants is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import (
    CONSTANT_TENSOR_ALIGNMENT,
    serialize_xnnpack_binary,
)
from executorch.backends.xnnpack.utils.xnnpack_constants import (
    UINT64_MAX,
    XNN_VALUE_FLAG_EXTERNAL_INPUT,
    XNN_VALUE_FLAG_EXTERNAL_OUTPUT,
)
from executorch.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput

from dimorder.targets.xnnpack.graph import (
    NONE_ID,
    XnnBytes,
    XnnGraph,
    XnnValue,
    kind_of,
    packed_by,
    reads_of,
)
from dimorder.targets.xnnpack.integers import READS


def separate_constants(graph: XnnGraph) -> None:
    """Put constants that nodes read by pointer into the graph's own bytes, apart from packed ones.

    ExecuTorch 1.5.1 frees the named data of a packed value after it has made the runtime (XNNCompiler.cpp,
    getPackedValueIds). With its weights cache on, it frees all named data. The graph's own bytes are in the
    program, which lives as long as its methods (`delegate.write_pte`).
    """
    _name_packed_weights(graph)
    packed = {index for node in graph.nodes for index in packed_by(node)}
    inline: dict[int, int] = {}
    for node in graph.nodes:
        own = packed_by(node)
        for name, index in vars(node.xnode_union).items():
            if name not in READS or index in own or not _is_constant(graph, index):
                continue
            if index not in inline:
                value = graph.copy_constant(index) if index in packed else graph.values[index]
                value.is_inline, inline[index] = True, value.id
            setattr(node.xnode_union, name, inline[index])


def _is_constant(graph: XnnGraph, index: int) -> bool:
    return index != NONE_ID and graph.values[index].constant is not None


def _name_packed_weights(graph: XnnGraph) -> None:
    """Name each packed weight by all that its packed form depends on.

    XNNPACK's weights cache finds packed weights by their names, in all programs of a process. Equal bytes are
    packed otherwise for another kind of node, shape or scale.
    """
    copies: dict[tuple[int, str], int] = {}
    packing_nodes = [
        (node.xnode_union, _packing(graph, node))
        for node in graph.nodes
        if packed_by(node) and _is_constant(graph, node.xnode_union.filter_id)
    ]
    first_uses = set[int]()
    for xnode, packing in packing_nodes:
        index = xnode.filter_id
        if (index, packing) not in copies:
            copies[index, packing] = graph.copy_constant(index).id if index in first_uses else index
            first_uses.add(index)
        xnode.filter_id = copies[index, packing]
    for (_, packing), copy in copies.items():
        value = graph.values[copy]
        assert value.constant is not None
        name = f"{value.constant.stored.name}_{packing}"
        value.constant = replace(value.constant, stored=XnnBytes(name, value.constant.stored.data))


def _packing(graph: XnnGraph, node: Any) -> str:
    """Return a digest of all that the packed form of a node's weight depends on, but for its bytes."""
    xnode = node.xnode_union
    weight = graph.values[xnode.filter_id]
    assert weight.constant is not None
    scales = weight.constant.scales
    operands = (graph.values[i] for i in (reads_of(xnode)[0], xnode.output_id))
    known = (
        kind_of(node),
        {name: value for name, value in vars(xnode).items() if not name.endswith("_id")},
        (list(weight.shape), weight.datatype),
        None if scales is None else scales.stored.name,
        [(value.integer_type, value.nonbatch) for value in operands],
    )
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def serialize(graph: XnnGraph, more: Sequence[int] = ()) -> tuple[bytes, NamedDataStoreOutput]:
    """Return the graph's bytes and the constants that they name. `more` are further outputs."""
    outputs = [*graph.outputs, *more]
    external = {index: position for position, index in enumerate([*graph.inputs, *outputs])}
    data, read = _ConstantStore(), {index for node in graph.nodes for index in reads_of(node.xnode_union)}
    values = []
    for value in graph.values:
        stored = value.constant if value.id in read else None
        tensor = schema.XNNTensorValue(
            datatype=value.datatype,
            num_dims=len(value.shape),
            dims=list(map(int, value.shape)),
            constant_buffer_idx=0 if stored is None else data.place(stored.stored, value.is_inline),
            external_id=external.get(value.id, NONE_ID),
            flags=_flags(value, value.id in more),
            id_out=value.id,
        )
        params = _quantization(value, data, value.id in read)
        typed = tensor if params is None else schema.XNNQuantizedTensorValue(tensor, params)
        values.append(schema.XValue(typed))
    made = schema.XNNGraph(
        version="0",
        xnodes=graph.nodes,
        xvalues=values,
        num_externs=len(external),
        input_ids=graph.inputs,
        output_ids=outputs,
        constant_data=data.places,
    )
    # XNNPACK may read some bytes past the end of a constant.
    blob = serialize_xnnpack_binary(made, data.inline + bytes(CONSTANT_TENSOR_ALIGNMENT))
    return blob, data.named.get_named_data_store_output()


def _flags(value: XnnValue, is_more: bool) -> int:
    if value.is_input:
        return int(XNN_VALUE_FLAG_EXTERNAL_INPUT)
    return int(XNN_VALUE_FLAG_EXTERNAL_OUTPUT) if value.is_output or is_more else 0


def _quantization(value: XnnValue, data: _ConstantStore, is_read: bool) -> Any:
    """Return what a value's integers stand for, as the schema has it; None for floats."""
    if value.integer_type is not None:
        of = value.integer_type
        return schema.PerTensorQuant(scale=of.scale, zero_point=of.zero_point)
    if value.nonbatch is not None:
        return schema.PerTokenDynamicQuant(num_nonbatch_dims=value.nonbatch)
    scales = None if value.constant is None else value.constant.scales
    if scales is None:
        return None
    place = data.place(scales.stored, is_inline=False) if is_read else 0
    if scales.group is None:
        return schema.PerChannelQuant([], scales.dim, place, scales.count)
    return schema.PerChannelGroupQuant([], scales.dim, scales.group, None, place, scales.count)


class _ConstantStore:
    """The constants of a file: named data, and data in the graph's own bytes. Each is stored once."""

    def __init__(self) -> None:
        self.places = [schema.ConstantDataOffset(0, 0)]  # place 0 means "no constant"
        self.named = NamedDataStore()
        self.inline = bytearray()
        self.known: dict[tuple[str, bool], int] = {}

    def place(self, stored: XnnBytes, is_inline: bool) -> int:
        """Return the place of some bytes, which are added if they are new."""
        key = stored.name, is_inline
        if key not in self.known:
            if is_inline:
                self.inline += bytes(-len(self.inline) % CONSTANT_TENSOR_ALIGNMENT)
                entry = schema.ConstantDataOffset(len(self.inline), len(stored.data), None)
                self.inline += stored.data
            else:
                entry = schema.ConstantDataOffset(UINT64_MAX, len(stored.data), stored.name)
                self.named.add_named_data(stored.name, stored.data, CONSTANT_TENSOR_ALIGNMENT)
            self.places.append(entry)
            self.known[key] = len(self.places) - 1
        return self.known[key]
