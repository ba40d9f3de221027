"""Writes one XNNPACK graph: its values, nodes, constants and the bytes of the delegate.

This file decides which clamps vanish into the node before, and that nothing is transposed unasked.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import (
    CONSTANT_TENSOR_ALIGNMENT,
    serialize_xnnpack_binary,
)
from executorch.backends.xnnpack.utils import xnnpack_constants
from executorch.backends.xnnpack.utils.xnnpack_constants import (
    UINT64_MAX,
    XNN_INVALID_VALUE_ID,
    XNN_VALUE_FLAG_EXTERNAL_INPUT,
    XNN_VALUE_FLAG_EXTERNAL_OUTPUT,
)
from executorch.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput

from dimorder.targets.table import View

BACKEND_ID = "XnnpackBackend"  # the name the stock runtime registers
NONE_ID = XNN_INVALID_VALUE_ID

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


@dataclass(frozen=True)
class XnnValue:
    """A dense XNNPACK value of `shape`, slowest dimension first."""

    id: int
    shape: tuple[int, ...]


class XnnWriter:
    """Grows one XNNPACK graph; `finish` gives its bytes and its named constants."""

    def __init__(self) -> None:
        self._values: list[Any] = []  # XNNTensorValue, indexed by id
        self._nodes: list[Any] = []  # XNode
        self._constant_data = [schema.ConstantDataOffset(0, 0)]  # index 0 means "no constant"
        self._store = NamedDataStore()
        self._constants: dict[tuple[str, tuple[int, ...]], XnnValue] = {}
        self._transposed: dict[View[XnnValue], XnnValue] = {}
        self._inputs: list[int] = []
        self._outputs: list[int] = []

    def input(self, shape: Sequence[int]) -> XnnValue:
        """The next external input, dense in `shape`."""
        value = self._value(shape)
        self._values[value.id].flags = XNN_VALUE_FLAG_EXTERNAL_INPUT
        self._inputs.append(value.id)
        return value

    def output(self, value: XnnValue) -> None:
        """Make `value` the next external output; an input, a constant or an output already is copied."""
        if self._values[value.id].flags or self._values[value.id].constant_buffer_idx:
            value = self.node("Copy", value.shape, input_id=value.id)
        self._values[value.id].flags = XNN_VALUE_FLAG_EXTERNAL_OUTPUT
        self._outputs.append(value.id)

    def constant(self, tensor: torch.Tensor) -> XnnValue:
        """A constant of float32, stored once per distinct data; a scalar gets shape (1,)."""
        data = tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()
        shape = tuple(tensor.shape) or (1,)
        key = hashlib.sha256(data).hexdigest()
        if (key, shape) not in self._constants:
            value = self._value(shape)
            self._values[value.id].constant_buffer_idx = len(self._constant_data)
            self._constant_data.append(schema.ConstantDataOffset(UINT64_MAX, len(data), key))
            self._store.add_named_data(key, data, CONSTANT_TENSOR_ALIGNMENT)
            self._constants[key, shape] = value
        return self._constants[key, shape]

    def node(self, kind: str, shape: Sequence[int], *, flags: Sequence[str] = (), **fields: Any) -> XnnValue:
        """A node of the schema's class `XNN{kind}`; its one result has `shape`. An id may be None."""
        result = self._value(shape)
        ids = {name: NONE_ID for name, value in fields.items() if value is None}
        bits = sum(getattr(xnnpack_constants, f"XNN_FLAG_{flag}") for flag in flags)
        made = getattr(schema, f"XNN{kind}")(**{**fields, **ids}, output_id=result.id, flags=bits)
        self._nodes.append(schema.XNode(made, debug_handle=len(self._nodes)))
        return result

    def clamp(self, value: XnnValue, low: float, high: float) -> XnnValue:
        """min(max(value, low), high); infinities for a side without bound."""
        result = self.node("Clamp", value.shape, input_id=value.id)
        self._nodes[-1].output_min_max = schema.OutputMinMax(_number(low), _number(high))
        return result

    def dense(self, operand: View[XnnValue] | torch.Tensor | float) -> XnnValue:
        """`operand` dense in its own dimension order: a constant, or a value that lies so already.

        A transpose is written by `transposed` alone, for a conversion of the plan.
        """
        if isinstance(operand, torch.Tensor):
            return self.constant(operand)
        if not isinstance(operand, View):
            return self.constant(torch.tensor([float(operand)]))
        assert operand in self._transposed or operand.is_dense, (
            "the plan has no conversion for this transpose"
        )
        return self._transposed.get(operand) or self.reshape(operand.value, operand.shape)

    def transposed(self, view: View[XnnValue]) -> XnnValue:
        """`view` dense in its own dimension order: a transpose, once per value and order, where it is due."""
        if view.is_dense:
            return self.reshape(view.value, view.shape)
        if view not in self._transposed:
            self._transposed[view] = self.node(
                "StaticTranspose",
                view.shape,
                num_dims=len(view.order),
                perm=list(view.order),
                input_id=view.value.id,
            )
        return self._transposed[view]

    def reshape(self, value: XnnValue, shape: Sequence[int]) -> XnnValue:
        """The same elements in `shape`."""
        shape = tuple(shape)
        assert math.prod(shape) == math.prod(value.shape), (value.shape, shape)
        if shape == value.shape:
            return value
        return self.node(
            "StaticReshape", shape, num_dims=len(shape), new_shape=list(shape), input_id=value.id
        )

    @property
    def transposes(self) -> int:
        """How many transposes are written so far: the conversions that this graph makes."""
        return sum(isinstance(node.xnode_union, schema.XNNStaticTranspose) for node in self._nodes)

    def finish(self) -> tuple[bytes, NamedDataStoreOutput]:
        """The delegate's bytes and the constants that they name."""
        self._fuse_clamps()
        external = self._inputs + self._outputs
        for position, index in enumerate(external):
            self._values[index].external_id = position
        graph = schema.XNNGraph(
            version="0",
            xnodes=self._nodes,
            xvalues=[schema.XValue(value) for value in self._values],
            num_externs=len(external),
            input_ids=self._inputs,
            output_ids=self._outputs,
            constant_data=self._constant_data,
        )
        return serialize_xnnpack_binary(graph, bytearray()), self._store.get_named_data_store_output()

    def _value(self, shape: Sequence[int]) -> XnnValue:
        value = XnnValue(len(self._values), tuple(int(size) for size in shape))
        self._values.append(
            schema.XNNTensorValue(
                datatype=schema.XNNDatatype.xnn_datatype_fp32,
                num_dims=len(value.shape),
                dims=list(value.shape),
                constant_buffer_idx=0,
                external_id=NONE_ID,
                flags=0,
                id_out=value.id,
            )
        )
        return value

    def _fuse_clamps(self) -> None:
        """Give the bounds of a clamp to the node that alone feeds it."""
        readers = Counter(index for node in self._nodes for index in _reads(node.xnode_union))
        producers = {node.xnode_union.output_id: node for node in self._nodes}
        kept = []
        for node in self._nodes:
            clamp = node.xnode_union
            source = producers.get(clamp.input_id) if isinstance(clamp, schema.XNNClamp) else None
            if (
                source is None
                or not isinstance(source.xnode_union, _CLAMPED_BY_NODE)
                or source.output_min_max is not None
                or readers[clamp.input_id] != 1
                or self._values[clamp.input_id].flags
            ):
                kept.append(node)
                continue
            source.output_min_max = node.output_min_max
            source.xnode_union.output_id = clamp.output_id
        self._nodes = kept


def _reads(node: Any) -> list[int]:
    return [
        index
        for name, index in vars(node).items()
        if name.endswith("_id") and not name.startswith("output") and index != NONE_ID
    ]


def _number(bound: float) -> float | str:
    """A bound as the serializer's JSON takes it."""
    return bound if math.isfinite(bound) else f"{bound:+}"
