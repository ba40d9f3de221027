"""Hold an XNNPACK graph: typed values, constants, and nodes.

`XnnBuilder` adds values and nodes. The passes change a finished graph, and `serialize` writes its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
from executorch.backends.xnnpack.utils.xnnpack_constants import XNN_INVALID_VALUE_ID
from torch.fx import Node

from dimorder.graph.quantized import Integers, IntegerType
from dimorder.targets.xnnpack.integers import MOVES, PACKING, READS, WEIGHTS
from dimorder.targets.xnnpack.kernels import KernelRun, kernels_of

NONE_ID = XNN_INVALID_VALUE_ID
_HALVES: Mapping[Any, torch.dtype] = MappingProxyType(
    {
        schema.XNNDatatype.xnn_datatype_fp16: torch.float16,
        schema.XNNDatatype.xnn_datatype_bf16: torch.bfloat16,
    }
)


@dataclass(frozen=True)
class XnnBytes:
    """The bytes of a constant in the file, and a name that different bytes do not share."""

    name: str
    data: bytes

    @staticmethod
    def of(tensor: torch.Tensor) -> XnnBytes:
        dense = tensor.detach().contiguous()
        data = (dense.view(torch.int16) if dense.dtype == torch.bfloat16 else dense).numpy().tobytes()
        return XnnBytes(hashlib.sha256(data).hexdigest(), data)


@dataclass(frozen=True)
class XnnScales:
    """The scales of a weight's integers.

    Attributes:
        values: The scales: one per output channel, or one per element.
        stored: Their bytes in the file.
        count: The number of scales in the file.
        dim: The dimension of the output channels.
        group: The number of inputs that share a scale, if that is not all of them.
    """

    values: torch.Tensor
    stored: XnnBytes
    count: int
    dim: int = 0
    group: int | None = None


@dataclass(frozen=True)
class XnnConstant:
    """The content of a constant value.

    Attributes:
        data: Its elements: float32, or integers.
        stored: Its bytes in the file.
        integers: The integers that floats are made of.
        scales: The scales of a weight's integers.
    """

    data: torch.Tensor
    stored: XnnBytes
    integers: Integers | None = None
    scales: XnnScales | None = None


@dataclass(eq=False)
class XnnValue:
    """A dense XNNPACK value of `shape`, slowest dimension first.

    Attributes:
        id: Its place among the values of the graph.
        shape: Its sizes.
        datatype: Its type, as the schema names it.
        origin: The program's node for which it is written.
        integer_type: The type, scale and zero point of its integers.
        constant: Its content, if it is a constant.
        is_input: Whether it is an external input.
        is_output: Whether it is an external output.
        is_rounded: Whether it is an input that was computed in floats.
        reshaped: The value that this one is a reshape of.
        nonbatch: The number of dimensions that share a scale, for integers that are quantised dynamically.
        is_inline: Whether the constant is in the graph's own bytes, since nodes read it by pointer.
    """

    id: int
    shape: tuple[int, ...]
    datatype: Any = schema.XNNDatatype.xnn_datatype_fp32
    origin: Node | None = None
    integer_type: IntegerType | None = None
    constant: XnnConstant | None = None
    is_input: bool = False
    is_output: bool = False
    is_rounded: bool = False
    reshaped: XnnValue | None = None
    nonbatch: int | None = None
    is_inline: bool = False

    @property
    def half(self) -> torch.dtype | None:
        """The type of a half-precision value, else None."""
        return _HALVES.get(self.datatype)

    @property
    def is_of_float32(self) -> bool:
        return not (self.integer_type or self.nonbatch or self.half)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the value's elements."""
        return (self.half or torch.float32) if self.integer_type is None else self.integer_type.dtype

    @property
    def is_external(self) -> bool:
        return self.is_input or self.is_output

    @property
    def integers(self) -> Integers | None:
        """The integers that a constant's floats are made of."""
        return None if self.constant is None else self.constant.integers


@dataclass
class XnnGraph:
    """Values, the nodes that compute them in sequence, and the external inputs and outputs.

    Nodes are the schema's `XNode`. They name values by their places.
    """

    values: list[XnnValue] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def add(
        self,
        shape: Sequence[int],
        of: IntegerType | torch.dtype | None = None,
        *,
        origin: Node | None = None,
        constant: XnnConstant | None = None,
    ) -> XnnValue:
        """Add a value of a type, or of float32."""
        value = XnnValue(len(self.values), tuple(shape), _datatype(of), origin, constant=constant)
        if isinstance(of, IntegerType):
            value.integer_type = of
        self.values.append(value)
        return value

    def copy_constant(self, index: int) -> XnnValue:
        """Add a second value with the content of a constant."""
        value = self.values[index]
        copy = self.add(value.shape, value.integer_type, constant=value.constant)
        copy.datatype = value.datatype
        return copy

    @property
    def transposes(self) -> int:
        """The number of transposes: the conversions that this graph makes."""
        return sum(isinstance(node.xnode_union, schema.XNNStaticTranspose) for node in self.nodes)

    @property
    def is_of_float32(self) -> bool:
        """Whether no value is of integers or in half precision."""
        return all(value.is_of_float32 for value in self.values)

    def kernels(self) -> list[KernelRun]:
        """Return the kernels that run for the nodes, one after the other."""
        shapes = {value.id: value.shape for value in self.values}
        return [k for node in self.nodes for k in kernels_of(kind_of(node), node.xnode_union, shapes)]

    def readers(self) -> dict[int, list[Any]]:
        """Return the schema's nodes that read each value."""
        readers: dict[int, list[Any]] = {}
        for node in self.nodes:
            for index in reads_of(node.xnode_union):
                readers.setdefault(index, []).append(node.xnode_union)
        return readers

    def producers(self) -> dict[int, Any]:
        """Return the `XNode` that computes each value."""
        return {node.xnode_union.output_id: node for node in self.nodes}

    def read_instead(self, index: int, other: int) -> None:
        """Let all readers of a value read another one."""
        for node in self.readers().get(index, ()):
            for name, read in vars(node).items():
                if name in READS and read == index:
                    setattr(node, name, other)

    def is_dynamic(self, xnode: Any) -> bool:
        """Return whether a node reads dynamically quantised integers."""
        return any(self.values[index].nonbatch is not None for index in reads_of(xnode.xnode_union))


def _datatype(of: IntegerType | torch.dtype | None) -> Any:
    datatype = schema.XNNDatatype
    if not isinstance(of, IntegerType):
        return next((name for name, half in _HALVES.items() if half == of), datatype.xnn_datatype_fp32)
    return datatype.xnn_datatype_quint8 if of.dtype == torch.uint8 else datatype.xnn_datatype_qint8


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


def drop_unread(graph: XnnGraph) -> None:
    """Remove the nodes whose results nobody reads."""
    read, kept = set(graph.outputs), list[Any]()
    for node in reversed(graph.nodes):
        if node.xnode_union.output_id in read:
            kept.append(node)
            read.update(reads_of(node.xnode_union))
    graph.nodes = kept[::-1]


def constants_of(values: Iterable[XnnValue]) -> dict[int, torch.Tensor]:
    """Return the elements of the constants among values, by place."""
    return {value.id: value.constant.data for value in values if value.constant is not None}
