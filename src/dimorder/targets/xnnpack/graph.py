"""Hold an XNNPACK graph: typed values, nodes and constants, and write the bytes of all of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import (
    CONSTANT_TENSOR_ALIGNMENT,
    serialize_xnnpack_binary,
)
from executorch.backends.xnnpack.utils.xnnpack_constants import (
    UINT64_MAX,
    XNN_INVALID_VALUE_ID,
    XNN_VALUE_FLAG_EXTERNAL_OUTPUT,
)
from executorch.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput
from torch.fx import Node

from dimorder.graph.integer_type import IntegerType
from dimorder.graph.interpreter import GraphNode
from dimorder.graph.quantized_constant import Integers
from dimorder.graph.source_lines import operator_name, where
from dimorder.targets.table import View
from dimorder.targets.xnnpack.integers import MOVES, PACKING, READS, WEIGHTS
from dimorder.targets.xnnpack.kernels import KernelRun, kernels_of
from dimorder.targets.xnnpack.model import XnnModel

NONE_ID = XNN_INVALID_VALUE_ID
_HALVES: Mapping[Any, torch.dtype] = MappingProxyType(
    {
        schema.XNNDatatype.xnn_datatype_fp16: torch.float16,
        schema.XNNDatatype.xnn_datatype_bf16: torch.bfloat16,
    }
)


@dataclass(frozen=True)
class XnnValue:
    """A dense XNNPACK value of `shape`, slowest dimension first."""

    id: int
    shape: tuple[int, ...]


class XnnGraph:
    """Values, nodes and constants. `origin` is the program's node for which the next nodes are written."""

    def __init__(self) -> None:
        self.origin: Node | None = None
        self._origins: dict[int, Node] = {}  # by result
        self._rounded: set[int] = set()  # inputs that were computed in floats
        self._values: list[Any] = []  # XNNTensorValue, indexed by id
        self._nodes: list[Any] = []  # XNode
        self._constant_data = [schema.ConstantDataOffset(0, 0)]  # index 0 means "no constant"
        self._bytes: dict[str, bytes] = {}  # of constants, by their names
        self._is_placed = False
        self._inline = bytearray()  # the constants that are read by pointer
        self._inline_places: dict[str, int] = {}  # the entries of these in `_constant_data`, by their names
        self._constants: dict[tuple[str, tuple[int, ...]], XnnValue] = {}
        self._transposed: dict[View[XnnValue], XnnValue] = {}
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._types: dict[int, IntegerType] = {}  # of integer values
        self._dequantised: dict[int, int] = {}  # by float32 value: the int8 value that it is converted from
        self._reshaped: dict[int, XnnValue] = {}  # by reshaped value: the value before the reshape
        self._integers: dict[int, Integers] = {}  # of constants
        self._in_integers: dict[int, int] = {}  # the values that hold these integers
        self._weights: dict[int, Any] = {}  # their PerChannelQuant
        self._data: dict[int, torch.Tensor] = {}  # of constants
        self._scales: dict[int, torch.Tensor] = {}  # of integer constants
        # by constant and half-precision type: its value
        self._in_half: dict[tuple[int, torch.dtype], int] = {}
        self._wide: dict[int, XnnValue] = {}  # by half-precision value: the same value in float32
        # Floats to quantise dynamically: the float value, and the token of each element.
        self._dynamic: dict[int, tuple[int, torch.Tensor]] = {}
        self._nonbatch: dict[
            int, int
        ] = {}  # by dynamically quantised value: the number of dimensions that share a scale

    @property
    def transposes(self) -> int:
        """The number of transposes so far: the conversions that this graph makes."""
        return sum(isinstance(node.xnode_union, schema.XNNStaticTranspose) for node in self._nodes)

    def kernels(self) -> list[KernelRun]:
        """Return the kernels that run for the nodes so far, one after the other."""
        shapes = {value.id_out: tuple(value.dims) for value in self._values}
        return [k for node in self._nodes for k in kernels_of(kind_of(node), node.xnode_union, shapes)]

    @property
    def is_of_float32(self) -> bool:
        """Whether no value is of integers or in half precision."""
        return not self.is_quantised and not any(self._half(value.id_out) for value in self._values)

    @property
    def is_quantised(self) -> bool:
        """Whether any value is of integers."""
        return bool(self._types or self._dynamic)

    def _value(self, shape: Sequence[int], of: IntegerType | torch.dtype | None = None) -> XnnValue:
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
        if isinstance(of, IntegerType):
            self._types[value.id] = of
        if self.origin is not None:
            self._origins[value.id] = self.origin
        return value

    def _half(self, index: int) -> torch.dtype | None:
        """Return the type of a half-precision value, or None."""
        return _HALVES.get(self._values[index].datatype)

    def _stored(self, key: str, data: bytes) -> int:
        """Store a constant's bytes, and return their index."""
        self._constant_data.append(schema.ConstantDataOffset(UINT64_MAX, len(data), key))
        self._bytes[key] = data
        return len(self._constant_data) - 1

    def model(self) -> XnnModel:
        """Return the model of this graph, which must be finished."""
        nodes = [
            GraphNode(kind_of(node), tuple(reads_of(node.xnode_union)), node.xnode_union.output_id, node)
            for node in self._nodes
        ]
        shapes = {i: tuple(value.dims) for i, value in enumerate(self._values)}
        producers = {node.xnode_union.output_id: node for node in self._nodes}
        rounded = {i: _told(self._origins.get(_computed(i, producers))) for i in self.rounded()}
        external = tuple(self._inputs), tuple(self._outputs)
        constants = self._data, self._scales, self._nonbatch
        halves = {i: half for i in shapes if (half := self._half(i)) is not None}
        return XnnModel(nodes, shapes, self._types, *constants, *external, rounded, halves)

    @property
    def outputs(self) -> Sequence[int]:
        return self._outputs

    def _is_dynamic(self, xnode: Any) -> bool:
        """Return whether a node reads dynamically quantised integers."""
        return any(index in self._nonbatch for index in reads_of(xnode.xnode_union))

    def rounded(self) -> list[int]:
        """Return the values that another way of computing may round differently.

        These are the integers and outputs that floats were rounded to, the floats that are quantised
        dynamically, and the linears and convolutions of these. A float that was dequantised or moved is not
        among them.
        """
        floats, found = set(self._rounded), []
        for node in self._nodes:
            result = node.xnode_union.output_id
            reads = floats.intersection(reads_of(node.xnode_union))
            if result in self._types:
                found += [result] if reads else []
            elif result in self._nonbatch:
                found += reads
            elif self._is_dynamic(node):
                found.append(result)
                floats.add(result)
            elif reads or not passes_on(node):
                floats.add(result)
        return list(dict.fromkeys(found + [index for index in self._outputs if index in floats]))

    def _xvalue(self, index: int) -> Any:
        value = self._values[index]
        if index in self._types:
            of = self._types[index]
            params = schema.PerTensorQuant(scale=of.scale, zero_point=of.zero_point)
            return schema.XValue(schema.XNNQuantizedTensorValue(tensor_value=value, quant_params=params))
        params = self._weights.get(index)
        if index in self._nonbatch:
            params = schema.PerTokenDynamicQuant(num_nonbatch_dims=self._nonbatch[index])
        if params is None:
            return schema.XValue(value)
        return schema.XValue(schema.XNNQuantizedTensorValue(tensor_value=value, quant_params=params))

    def _integers_of(self, index: int) -> int | Integers | None:
        """Return the int8 value that a float32 one is converted from, or the integers of a constant."""
        if index in self._dequantised:
            return self._dequantised[index]
        integers = self._integers.get(index)
        if integers is None and index in self._data:
            integers = _uniform(self._data[index])
        fits = integers is not None and integers.values.dtype == torch.int8 and integers.scale is not None
        return integers if fits else None

    def holds_integers(self, value: XnnValue) -> bool:
        """Return whether a float32 value is converted from an int8 one."""
        return value.id in self._dequantised

    def _type_of(self, integers: int | Integers) -> IntegerType:
        if isinstance(integers, int):
            return self._types[integers]
        assert integers.scale is not None
        return IntegerType(integers.values.dtype, integers.scale, integers.zero_point)

    def _held(self, integers: int | Integers) -> int:
        """Return the value of these integers."""
        if isinstance(integers, int):
            return integers
        value = self._value(integers.values.shape, self._type_of(integers))
        self._values[value.id].constant_buffer_idx = self._stored(*keyed(integers.values))
        self._data[value.id] = integers.values
        return value.id

    def _unfit_weight(self, index: int, outputs: int) -> str | None:
        """Return why a constant cannot be the weight or the bias of an int8 node.

        `outputs` is the dimension of its output channels.
        """
        integers = self._integers.get(index)
        if integers is None:
            return "a weight that is not int8 with one scale per output channel and one zero point"
        if integers.zero_point:
            return f"a weight with the zero point {integers.zero_point}"
        if integers.along(outputs) is None:
            groups = None if integers.group_size() in (None, 1) else self._unfit_4_bits(index)
            return groups or "a weight with scales along another dimension than its output channels"
        return None

    def _unfit_4_bits(self, index: int) -> str | None:
        """Return why a constant cannot be a matrix of 4-bit integers."""
        integers = self._integers.get(index)
        size = None if integers is None else integers.group_size()
        if integers is None or size is None or integers.zero_point:
            return "a weight that is not quantised by rows"
        if size % 32 and size != integers.values.shape[1]:
            return f"a weight with a scale for every {size} inputs, where XNNPACK takes multiples of 32"
        if integers.values.shape[1] % 2:
            return "an odd number of inputs, of which XNNPACK's products with 4 bits are off by 3e-3"
        least, most = torch.aminmax(integers.values)
        if least < -8 or most > 7:
            return f"a weight of 8 bits with a scale for every {size} inputs, which XNNPACK has for 4 bits"
        return None

    def _dynamic_integers(self, source: int, nonbatch: int) -> int:
        """Return the value that quantises a float32 one, with one scale over `nonbatch` dimensions."""
        value = self._value(self._values[source].dims)
        self._values[value.id].datatype = schema.XNNDatatype.xnn_datatype_qdint8
        self._nonbatch[value.id] = nonbatch
        return value.id

    def _weight(self, index: int, outputs: int) -> int:
        """Return the value of a constant's integers, with its scales."""
        if index not in self._in_integers:
            integers = self._integers[index]
            scales = integers.along(outputs)
            assert scales is not None
            wide = integers.values.dtype == torch.int32
            datatype = schema.XNNDatatype
            kind = datatype.xnn_datatype_qcint32 if wide else datatype.xnn_datatype_qcint8
            params = schema.PerChannelQuant([], outputs, self._stored(*keyed(scales)), scales.numel())
            self._in_integers[index] = self._weight_of(index, kind, params, integers.values, scales)
        return self._in_integers[index]

    def _weight_of(
        self, index: int, kind: Any, params: Any, stored: torch.Tensor, scales: torch.Tensor
    ) -> int:
        """Return a value for the integers of a constant, with these bytes. Scales are along dimension 0, or
        all.
        """
        value = self._value(self._values[index].dims)
        self._values[value.id].datatype = kind
        self._values[value.id].constant_buffer_idx = self._stored(*keyed(stored))
        self._weights[value.id] = params
        self._data[value.id], self._scales[value.id] = self._integers[index].values, scales
        return value.id

    def _in_4_bits(self, index: int) -> int:
        """Return the value of a matrix of integers from -8 to 7, two in a byte, with its scales.

        A scale belongs to an output, or to a group of inputs. XNNPACK holds the scales of groups as bfloat16.
        """
        if index not in self._in_integers:
            integers, datatype = self._integers[index], schema.XNNDatatype
            size, scales = integers.group_size(), integers.scales
            assert size is not None
            held = scales[:, ::size]
            if size == scales.shape[1]:
                params = schema.PerChannelQuant([], 0, self._stored(*keyed(held)), held.numel())
                kind = datatype.xnn_datatype_qcint4
            else:
                held = held.to(torch.bfloat16)
                scales = held.float().repeat_interleave(size, 1)
                place = self._stored(*keyed(held))
                params = schema.PerChannelGroupQuant([], 0, size, None, place, held.numel())
                kind = datatype.xnn_datatype_qbint4
            stored = _in_pairs(integers.values)
            self._in_integers[index] = self._weight_of(index, kind, params, stored, scales)
        return self._in_integers[index]

    def serialise(self, more: Sequence[int] = ()) -> tuple[bytes, NamedDataStoreOutput]:
        """Return the graph's bytes and the constants that they name. `more` are further outputs."""
        self._place_constants()
        named = self._named_data()
        outputs = [*self._outputs, *more]
        external = self._inputs + outputs
        for position, index in enumerate(external):
            self._values[index].external_id = position
        for index in more:
            self._values[index].flags = XNN_VALUE_FLAG_EXTERNAL_OUTPUT
        graph = schema.XNNGraph(
            version="0",
            xnodes=self._nodes,
            xvalues=[self._xvalue(index) for index in range(len(self._values))],
            num_externs=len(external),
            input_ids=self._inputs,
            output_ids=outputs,
            constant_data=self._constant_data,
        )
        # XNNPACK may read some bytes past the end of a constant.
        data = serialize_xnnpack_binary(graph, self._inline + bytes(CONSTANT_TENSOR_ALIGNMENT))
        for index in more:
            self._values[index].flags, self._values[index].external_id = 0, NONE_ID
        return data, named

    def _place_constants(self) -> None:
        """Put constants that nodes read by pointer into the graph's own bytes, apart from those that XNNPACK
        packs.

        ExecuTorch 1.5.1 frees the named data of a packed value after it has made the runtime
        (XNNCompiler.cpp, getPackedValueIds). With its weights cache on, it frees all named data. The graph's
        own bytes are in the program, which lives as long as its methods (`delegate.written`).
        """
        if self._is_placed:
            return
        self._is_placed = True
        self._name_packed_weights()
        packed = {index for node in self._nodes for index in packed_by(node)}
        placed: dict[int, int] = {}
        for node in self._nodes:
            own = packed_by(node)
            for name, index in vars(node.xnode_union).items():
                if name not in READS or index in own or not self._is_constant(index):
                    continue
                if index not in placed:
                    placed[index] = self._placed(index, copy=index in packed)
                setattr(node.xnode_union, name, placed[index])

    def _is_constant(self, index: int) -> bool:
        return index != NONE_ID and bool(self._values[index].constant_buffer_idx)

    def _name_packed_weights(self) -> None:
        """Name each packed weight by all that its packed form depends on.

        XNNPACK's weights cache finds packed weights by their names, in all programs of a process. Equal bytes
        are packed otherwise for another kind of node, shape or scale.
        """
        copies: dict[tuple[int, str], int] = {}
        packing_nodes = [
            node for node in self._nodes if packed_by(node) and self._is_constant(node.xnode_union.filter_id)
        ]
        for node in packing_nodes:
            index, packing = node.xnode_union.filter_id, self._packing(node)
            if (index, packing) not in copies:
                is_first = index not in {known for known, _ in copies}
                copies[index, packing] = index if is_first else self._copied_constant(index)
        for (_, packing), copy in copies.items():
            key = self._constant_data[self._values[copy].constant_buffer_idx].named_key  # of its bytes alone
            self._values[copy].constant_buffer_idx = self._stored(f"{key}_{packing}", self._bytes[key])
        for node in packing_nodes:
            xnode = node.xnode_union
            xnode.filter_id = copies[xnode.filter_id, self._packing(node)]

    def _packing(self, node: Any) -> str:
        """Return a digest of all that the packed form of a node's weight depends on, but for its bytes."""
        xnode = node.xnode_union
        filter_id = xnode.filter_id
        params = self._weights.get(filter_id)
        known = (
            kind_of(node),
            {name: value for name, value in vars(xnode).items() if not name.endswith("_id")},
            (self._values[filter_id].dims, self._values[filter_id].datatype),
            None if params is None else self._constant_data[params.scale_buffer_idx].named_key,
            [(self._types.get(i), self._nonbatch.get(i)) for i in (reads_of(xnode)[0], xnode.output_id)],
        )
        return hashlib.sha256(repr(known).encode()).hexdigest()[:16]

    def _copied_constant(self, index: int) -> int:
        """Write a second value of a constant's bytes."""
        copy = self._value(self._values[index].dims, self._types.get(index)).id
        for name in ("datatype", "constant_buffer_idx"):
            setattr(self._values[copy], name, getattr(self._values[index], name))
        known: tuple[dict[int, Any], ...] = (self._data, self._scales, self._integers, self._weights)
        for each in known:
            if index in each:
                each[copy] = each[index]
        return copy

    def _placed(self, index: int, copy: bool) -> int:
        """Put the data of a constant that is read by pointer into the graph's own bytes."""
        if copy:
            index = self._copied_constant(index)
        key = self._constant_data[self._values[index].constant_buffer_idx].named_key
        if key is None:  # its data is there already
            return index
        if key not in self._inline_places:
            self._inline += bytes(-len(self._inline) % CONSTANT_TENSOR_ALIGNMENT)
            entry = schema.ConstantDataOffset(len(self._inline), len(self._bytes[key]), None)
            self._inline += self._bytes[key]
            self._constant_data.append(entry)
            self._inline_places[key] = len(self._constant_data) - 1
        self._values[index].constant_buffer_idx = self._inline_places[key]
        return index

    def _named_data(self) -> NamedDataStoreOutput:
        """Return the bytes of the constants that a node reads. For a quantised weight the floats are not
        included.
        """
        read = {index for node in self._nodes for index in reads_of(node.xnode_union)}
        store = NamedDataStore()
        for index, value in enumerate(self._values):
            if index not in read:
                value.constant_buffer_idx = 0
                continue
            scales = self._weights[index].scale_buffer_idx if index in self._weights else 0
            for place in filter(None, (value.constant_buffer_idx, scales)):
                key = self._constant_data[place].named_key
                if key is not None:
                    store.add_named_data(key, self._bytes[key], CONSTANT_TENSOR_ALIGNMENT)
        return store.get_named_data_store_output()


def _datatype(of: IntegerType | torch.dtype | None) -> Any:
    datatype = schema.XNNDatatype
    if not isinstance(of, IntegerType):
        return next((held for held, half in _HALVES.items() if half == of), datatype.xnn_datatype_fp32)
    return datatype.xnn_datatype_quint8 if of.dtype == torch.uint8 else datatype.xnn_datatype_qint8


def keyed(tensor: torch.Tensor) -> tuple[str, bytes]:
    """Return a constant's name, which distinct constants do not share, and its bytes."""
    held = tensor.detach().contiguous()
    data = (held.view(torch.int16) if held.dtype == torch.bfloat16 else held).numpy().tobytes()
    return hashlib.sha256(data).hexdigest(), data


def kind_of(node: Any) -> str:
    """Return the kind of a node: `Conv2d` for an XNode that holds an XNNConv2d."""
    return type(node.xnode_union).__name__.removeprefix("XNN")


def passes_on(node: Any) -> bool:
    """Return whether a node computes nothing, since it only converts or moves its operand."""
    return kind_of(node) == "Convert" or kind_of(node) in MOVES


def reads_of(node: Any) -> list[int]:
    """Return the values that a node reads."""
    return [
        index
        for name, index in vars(node).items()
        if name.endswith("_id") and not name.startswith("output") and index != NONE_ID
    ]


def packed_by(node: Any) -> set[int]:
    """Return the constants that XNNPACK copies when it makes the runtime, and never reads again."""
    xnode = node.xnode_union
    if kind_of(node) not in PACKING:
        return set()
    return {getattr(xnode, name) for name in WEIGHTS} - {NONE_ID}


def _in_pairs(values: torch.Tensor) -> torch.Tensor:
    """Return integers from -8 to 7, two in a byte: each plus 8, the first of a pair in the lower half."""
    even = torch.nn.functional.pad(values, (0, values.shape[-1] % 2)).to(torch.int16) + 8
    return (even[..., ::2] | even[..., 1::2] << 4).to(torch.uint8)


def _uniform(constant: torch.Tensor) -> Integers | None:
    """Return a constant whose elements are all one number or its negative, as exact integers."""
    magnitude = float(constant.abs().max())
    if not 0 < magnitude < math.inf or not bool((constant.abs() == magnitude).all()):
        return None
    values = (constant.sign() * _UNIT).to(torch.int8)
    return Integers(values, torch.tensor(magnitude / _UNIT).expand(values.shape))


_UNIT = 64  # a power of 2, so that a scale times it is exact; large, so that sums of it have fine multipliers


def _computed(index: int, producers: Mapping[int, Any]) -> int:
    """Return the value before a chain of converts and moves."""
    node = producers.get(index)
    while node is not None and passes_on(node):
        index = reads_of(node.xnode_union)[0]
        node = producers.get(index)
    return index


def _told(origin: Node | None) -> str:
    return "a value" if origin is None else f"{operator_name(origin)} ({where(origin)})"
