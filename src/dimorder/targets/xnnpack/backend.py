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

from dimorder.lowering.capture.scaled import Integers, Scaled
from dimorder.targets.table import View
from dimorder.targets.xnnpack.integers import IN_INT8, MOVES, Quantised
from dimorder.targets.xnnpack.model import XnnModel

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


_WEIGHTS = ("filter_id", "bias_id")
_MOVED = ("input_id", *(f"input{i}_id" for i in range(1, 6)))  # what a node of MOVES reads
_READ = (*_MOVED, *_WEIGHTS)


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
        self._bytes: dict[str, bytes] = {}  # of constants, by their names
        self._constants: dict[tuple[str, tuple[int, ...]], XnnValue] = {}
        self._transposed: dict[View[XnnValue], XnnValue] = {}
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._types: dict[int, Quantised] = {}  # of int8 values
        self._dequantised: dict[int, int] = {}  # the int8 value that a float32 one is converted from
        self._reshaped: dict[int, XnnValue] = {}  # what a value is another shape of
        self._integers: dict[int, Integers] = {}  # of constants
        self._in_integers: dict[int, int] = {}  # the values that hold these
        self._weights: dict[int, Any] = {}  # their PerChannelQuant
        self._data: dict[int, torch.Tensor] = {}  # of constants
        self._scales: dict[int, torch.Tensor] = {}  # of constants that are integers

    def input(self, shape: Sequence[int], of: Quantised | None = None) -> XnnValue:
        """The next external input, dense in `shape`; of integers, where `of` says what they stand for."""
        value = self._value(shape, of)
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
        held = tensor.detach().as_subclass(torch.Tensor).to("cpu", torch.float32)
        shape = tuple(tensor.shape) or (1,)
        key, data = _keyed(held)
        if (key, shape) not in self._constants:
            value = self._value(shape)
            self._values[value.id].constant_buffer_idx = self._stored(key, data)
            self._constants[key, shape] = value
            self._data[value.id] = held.reshape(shape)
            if isinstance(tensor, Scaled):
                self._integers[value.id] = tensor.integers
        return self._constants[key, shape]

    def node(
        self,
        kind: str,
        shape: Sequence[int],
        *,
        flags: Sequence[str] = (),
        result_type: Quantised | None = None,
        **fields: Any,
    ) -> XnnValue:
        """A node of the schema's class `XNN{kind}`; its one result has `shape`. An id may be None.

        The result is of `result_type`; else of float32, or where elements are moved as they are.
        """
        if kind in MOVES:
            sources = {
                n: self._dequantised.get(v) for n, v in fields.items() if n in _MOVED and v is not None
            }
            types = {None if source is None else self._types[source] for source in sources.values()}
            if len(types) == 1 and None not in types:  # the integers are moved, and dequantised afterwards
                moved = self.node(kind, shape, flags=flags, **{**fields, **sources})
                return self.node("Convert", shape, input_id=moved.id)
            result_type = self._types.get(next(v for n, v in fields.items() if n in _MOVED))
        if kind == "Convert" and result_type is not None:
            index = fields["input_id"]
            if index in self._dequantised:
                return self._requantised(self._dequantised[index], shape, result_type)
            if index in self._reshaped:  # the integers are reshaped, so that what computed them may give them
                source = self._reshaped[index]
                made = self.node(kind, source.shape, result_type=result_type, input_id=source.id)
                return self.reshape(made, shape)
        result = self._value(shape, result_type)
        if kind == "Convert" and result_type is None and fields["input_id"] in self._types:
            self._dequantised[result.id] = fields["input_id"]
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

    def _requantised(self, source: int, shape: Sequence[int], of: Quantised) -> XnnValue:
        """Integers of another scale. A convert between two is off by 1 here and there, a clamp is not.

        Between signed and unsigned integers of one scale a convert is exact, and there is no clamp.
        """
        own = self._types[source]
        if own.least != of.least:
            same = Quantised(own.scale, own.zero_point + of.least - own.least, of.least)
            converted = self.node("Convert", shape, input_id=source, result_type=same)
            return converted if same == of else self._requantised(converted.id, shape, of)
        value = self.node("Clamp", shape, input_id=source, result_type=of)
        low, high = ((bound - of.zero_point) * of.scale for bound in (of.least, of.least + 255))
        self._nodes[-1].output_min_max = schema.OutputMinMax(low, high)
        return value

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
        made = self.node(
            "StaticReshape", shape, num_dims=len(shape), new_shape=list(shape), input_id=value.id
        )
        self._reshaped[made.id] = value
        return made

    @property
    def transposes(self) -> int:
        """How many transposes are written so far: the conversions that this graph makes."""
        return sum(isinstance(node.xnode_union, schema.XNNStaticTranspose) for node in self._nodes)

    @property
    def is_quantised(self) -> bool:
        """Whether any value is int8."""
        return bool(self._types)

    def finish(self) -> tuple[bytes, NamedDataStoreOutput]:
        """The delegate's bytes and the constants that they name."""
        self._fuse_clamps()
        self._fuse_integers()
        named = self._named_data()
        external = self._inputs + self._outputs
        for position, index in enumerate(external):
            self._values[index].external_id = position
        graph = schema.XNNGraph(
            version="0",
            xnodes=self._nodes,
            xvalues=[self._xvalue(index) for index in range(len(self._values))],
            num_externs=len(external),
            input_ids=self._inputs,
            output_ids=self._outputs,
            constant_data=self._constant_data,
        )
        return serialize_xnnpack_binary(graph, bytearray()), named

    def _value(self, shape: Sequence[int], of: Quantised | None = None) -> XnnValue:
        value = XnnValue(len(self._values), tuple(int(size) for size in shape))
        self._values.append(
            schema.XNNTensorValue(
                datatype=_datatype(of),
                num_dims=len(value.shape),
                dims=list(value.shape),
                constant_buffer_idx=0,
                external_id=NONE_ID,
                flags=0,
                id_out=value.id,
            )
        )
        if of is not None:
            self._types[value.id] = of
        return value

    def _stored(self, key: str, data: bytes) -> int:
        """The index of a constant's bytes."""
        self._constant_data.append(schema.ConstantDataOffset(UINT64_MAX, len(data), key))
        self._bytes[key] = data
        return len(self._constant_data) - 1

    def _named_data(self) -> NamedDataStoreOutput:
        """The bytes of the constants that a node reads: of a quantised weight not the floats besides."""
        read = {index for node in self._nodes for index in _reads(node.xnode_union)}
        store = NamedDataStore()
        for index, value in enumerate(self._values):
            if index not in read:
                value.constant_buffer_idx = 0
                continue
            scales = self._weights[index].scale_buffer_idx if index in self._weights else 0
            for place in filter(None, (value.constant_buffer_idx, scales)):
                key = self._constant_data[place].named_key
                store.add_named_data(key, self._bytes[key], CONSTANT_TENSOR_ALIGNMENT)
        return store.get_named_data_store_output()

    def model(self) -> XnnModel:
        """What this graph computes, once it is finished."""
        nodes = []
        for node in self._nodes:
            bounds = (-math.inf, math.inf)
            if node.output_min_max is not None:
                bounds = (float(node.output_min_max.output_min), float(node.output_min_max.output_max))
            nodes.append((type(node.xnode_union).__name__.removeprefix("XNN"), node.xnode_union, bounds))
        shapes = {i: tuple(value.dims) for i, value in enumerate(self._values)}
        return XnnModel(
            nodes, shapes, self._types, self._data, self._scales, tuple(self._inputs), tuple(self._outputs)
        )

    def _xvalue(self, index: int) -> Any:
        value = self._values[index]
        if index in self._types:
            of = self._types[index]
            params = schema.PerTensorQuant(scale=of.scale, zero_point=of.zero_point)
            return schema.XValue(schema.XNNQuantizedTensorValue(tensor_value=value, quant_params=params))
        if index in self._weights:
            return schema.XValue(
                schema.XNNQuantizedTensorValue(tensor_value=value, quant_params=self._weights[index])
            )
        return schema.XValue(value)

    def _weight(self, index: int) -> int:
        """The value of a constant's integers, with its scales."""
        if index not in self._in_integers:
            integers = self._integers[index]
            held = integers.per_channel()
            assert held is not None
            value = self._value(self._values[index].dims)
            wide = integers.values.dtype == torch.int32
            scales, dim = held[0].expand(integers.values.shape[held[1]]), held[1]
            datatype = schema.XNNDatatype
            self._values[value.id].datatype = (
                datatype.xnn_datatype_qcint32 if wide else datatype.xnn_datatype_qcint8
            )
            self._values[value.id].constant_buffer_idx = self._stored(*_keyed(integers.values))
            self._weights[value.id] = schema.PerChannelQuant(
                scale=[],
                channel_dim=dim,
                scale_buffer_idx=self._stored(*_keyed(scales)),
                num_scales=scales.numel(),
            )
            self._in_integers[index] = value.id
            self._data[value.id], self._scales[value.id] = integers.values, scales
        return self._in_integers[index]

    def _fuse_integers(self) -> None:
        """Let nodes between converts read and write the integers, where XNNPACK computes so."""
        if not self._types:
            return
        self._drop_unread()
        readers: dict[int, list[Any]] = {}
        for node in self._nodes:
            for index in _reads(node.xnode_union):
                readers.setdefault(index, []).append(node.xnode_union)
        done = []
        for node in self._nodes:
            union = node.xnode_union
            read_by = readers.get(union.output_id, [])
            if len(read_by) == 1 and not self._values[union.output_id].flags:
                operands = self._integer_operands(union, self._types.get(read_by[0].output_id))
                if operands is not None:
                    vars(union).update(operands, output_id=read_by[0].output_id)
                    done.append(read_by[0])
        self._nodes = [node for node in self._nodes if not any(node.xnode_union is each for each in done)]
        self._drop_unread()

    def _integer_operands(self, node: Any, result: Quantised | None) -> dict[str, int] | None:
        """The integers that a node may read in place of what it reads, where its result is quantised next."""
        condition = IN_INT8.get(type(node).__name__.removeprefix("XNN"))
        if condition is None or result is None:
            return None
        read = {name: getattr(node, name) for name in _READ if getattr(node, name, NONE_ID) != NONE_ID}
        held = self._integers if "filter_id" in read else {}
        weights = {name: index for name, index in read.items() if name in _WEIGHTS}
        sources = {n: self._dequantised.get(index) for n, index in read.items() if n not in _WEIGHTS}
        if None in sources.values() or not all(index in held for index in weights.values()):
            return None
        types = [self._types[i] for i in sources.values() if i is not None]
        if any(of.least == 0 for of in (*types, result)):  # uint8 is of boundaries alone
            return None
        scales = held[weights["filter_id"]].scales if weights else None
        if condition(types, result, scales) is not None:
            return None
        return {
            **{n: i for n, i in sources.items() if i is not None},
            **{n: self._weight(i) for n, i in weights.items()},
        }

    def _drop_unread(self) -> None:
        """Without the converts and moves whose results nobody reads."""
        read = set(self._outputs)
        kept = []
        for node in reversed(self._nodes):
            kind = type(node.xnode_union).__name__.removeprefix("XNN")
            if (kind == "Convert" or kind in MOVES) and node.xnode_union.output_id not in read:
                continue
            kept.append(node)
            read.update(_reads(node.xnode_union))
        self._nodes = kept[::-1]

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


def _datatype(of: Quantised | None) -> Any:
    datatype = schema.XNNDatatype
    if of is None:
        return datatype.xnn_datatype_fp32
    return datatype.xnn_datatype_quint8 if of.least == 0 else datatype.xnn_datatype_qint8


def _keyed(tensor: torch.Tensor) -> tuple[str, bytes]:
    """A constant's bytes, and the name that distinct ones do not share."""
    data = tensor.detach().contiguous().numpy().tobytes()
    return hashlib.sha256(data).hexdigest(), data


def _reads(node: Any) -> list[int]:
    return [
        index
        for name, index in vars(node).items()
        if name.endswith("_id") and not name.startswith("output") and index != NONE_ID
    ]


def _number(bound: float) -> float | str:
    """A bound as the serializer's JSON takes it."""
    return bound if math.isfinite(bound) else f"{bound:+}"
