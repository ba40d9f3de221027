"""Read an XNNPACK delegate of any tool: its tables, and the nodes and the bytes of its transposes.

`schema.fbs` and `XNNHeader` in `executorch/backends/xnnpack/serialization` define the format.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flatbuffers.number_types import Int16Flags, Uint8Flags, Uint32Flags, Uint64Flags
from flatbuffers.table import Table

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import ContractError, UsageError

# Positions of fields in their tables, and of members in their unions, in the order of schema.fbs. A union
# field there takes two positions: the member's number and the member.
_GRAPH_NODES, _GRAPH_VALUES, _GRAPH_INPUTS, _GRAPH_OUTPUTS, _GRAPH_CONSTANTS = 1, 2, 4, 5, 8
_CONSTANT_SIZE, _CONSTANT_NAME = 1, 2
_NODE_KIND, _NODE = 0, 1
TRANSPOSE_PERM, _TRANSPOSE_INPUT = 1, 2
_VALUE_KIND, _VALUE = 0, 1
_QUANTIZED_TENSOR, _QUANT_KIND, _QUANT = 0, 1, 2
TENSOR_DATATYPE, TENSOR_DIMS, TENSOR_CONSTANT = 0, 2, 3
TENSOR_EXTERNAL_ID, TENSOR_FLAGS, _TENSOR_ID = 4, 5, 6
EXTERNAL_INPUT, EXTERNAL_OUTPUT = 1, 2  # flags of a tensor
STATIC_TRANSPOSE = 5  # in XNodeUnion
_PLAIN, _QUANTIZED = 1, 2  # in XValueUnion
_PER_CHANNEL, _PER_GROUP = 1, 4  # in XNNQuantParams
_SCALES_INLINE, _CHANNEL_DIM, _CHANNEL_SCALES, _GROUP_SIZE, _GROUP_SCALES = 0, 1, 2, 2, 4

# Bits of an element by the number of its XNNDatatype.
_BITS: Mapping[int, int] = MappingProxyType(
    {
        **dict.fromkeys((1, 5, 7, 12, 13), 32),  # fp32, qint32, qcint32, int32, pfp32
        **dict.fromkeys((2, 14), 16),  # fp16, bf16
        **dict.fromkeys((3, 4, 6, 9, 11), 8),  # qint8, quint8, qcint8, qdint8, qpint8
        **dict.fromkeys((8, 10), 4),  # qcint4, qbint4
    }
)

BACKEND_ID = "XnnpackBackend"  # the name that the stock runtime registers
_HEADER = struct.Struct("<4x4sHIIIQ")  # magic, its own size, flatbuffer at, size, constants at, size
_MAGIC = b"XH00"
_IDENTIFIERS = (b"XN00", b"XN01")  # of the flatbuffer; the runtime reads both by one schema
_DAMAGE = (struct.error, LookupError, TypeError, ValueError, UsageError)


@dataclass(frozen=True)
class XnnBlob:
    """The nodes and transposes of a delegate; one that only moves dimensions of 1 has no bytes."""

    nodes: int
    transposes: int
    bytes: int


class FlatRecord(Table):  # type: ignore[misc]
    """A table of a flatbuffer, with fields by their positions in the schema; absent ones are 0 or nothing."""

    def number(self, place: int, form: Any = Uint32Flags) -> int:
        return int(self.GetSlot(4 + 2 * place, 0, form))

    def table(self, place: int) -> FlatRecord:
        at = self.Offset(4 + 2 * place)
        if not at:
            raise ValueError(f"no field {place} in the table at byte {self.Pos}")
        return FlatRecord(self.Bytes, self.Indirect(self.Pos + at))

    def has(self, place: int) -> bool:
        return bool(self.Offset(4 + 2 * place))

    def text(self, place: int) -> str | None:
        at = self.Offset(4 + 2 * place)
        return self.String(self.Pos + at).decode() if at else None

    def numbers(self, place: int, form: str = "I") -> tuple[int, ...]:
        """Return the numbers of a vector; `form` is the format that `struct` has for each."""
        start, count = self._vector(place)
        return struct.unpack_from(f"<{count}{form}", self.Bytes, start)

    def bytes(self, place: int) -> bytes:
        start, count = self._vector(place)
        return bytes(self.Bytes[start : start + count])

    def tables(self, place: int) -> list[FlatRecord]:
        start, count = self._vector(place)
        return [FlatRecord(self.Bytes, self.Indirect(start + 4 * i)) for i in range(count)]

    def _vector(self, place: int) -> tuple[int, int]:
        """Return the start of a vector's entries, and their number."""
        at = self.Offset(4 + 2 * place)
        return (self.Vector(at), self.VectorLen(at)) if at else (0, 0)


def read_xnn_blob(blob: bytes, where: str = "an XNNPACK delegate") -> XnnBlob:
    """Count the nodes and the transposes of a delegate; a dynamic size counts as its upper bound.

    >>> read_xnn_blob(b"no such thing")
    Traceback (most recent call last):
    dimorder.errors.ContractError: an XNNPACK delegate
      found: 13 bytes that cannot be read (ValueError: neither XH00 nor XN00 nor XN01 at byte 4)
      fix: lower the program again, or copy the file again
    """
    moved = moved_bytes(blob, where)
    transposes = [count for count in moved if count is not None]
    return XnnBlob(len(moved), len(transposes), sum(transposes))


def moved_bytes(blob: bytes, where: str) -> list[int | None]:
    """Return for each node of a delegate the bytes that it moves, or None if it is no transpose.

    Raises `ContractError` for bytes that cannot be read.
    """
    with readable(blob, where):
        graph = root_of(blob)
        tensors = tensors_of_graph(graph)
        return [
            _moved_bytes(node, tensors) if kind == STATIC_TRANSPOSE else None
            for kind, node, _ in nodes_of_graph(graph)
        ]


@contextmanager
def readable(blob: bytes, where: str) -> Iterator[None]:
    """Raise the errors of reading a damaged delegate as one `ContractError`."""
    try:
        yield
    except _DAMAGE as error:
        said = error.found if isinstance(error, UsageError) else error
        found = f"{len(blob)} bytes that cannot be read ({type(error).__name__}: {said})"
        raise ContractError(where, found, "lower the program again, or copy the file again") from error


def moves(shape: Sequence[int], order: Sequence[int], to: Sequence[int]) -> bool:
    """Return whether memory changes between two orders of a shape's dimensions, without those of size 1.

    >>> moves((2, 3, 5), (0, 1, 2), (0, 2, 1)), moves((2, 1, 5), (0, 1, 2), (0, 2, 1))
    (True, False)
    """
    return not DimOrder(*order).equivalent(DimOrder(*to), shape)


def flatbuffer_of(blob: bytes) -> bytes:
    """Return the graph's bytes: all of them in a delegate of an older ExecuTorch, which has no header."""
    if blob[4:8] == _MAGIC:
        _, _, at, size, constants_at, constants = _HEADER.unpack_from(blob)
        if max(at + size, constants_at + constants) > len(blob):
            raise ValueError(f"a header that tells of {max(at + size, constants_at + constants)} bytes")
        blob = blob[at : at + size]
    if blob[4:8] not in _IDENTIFIERS:
        raise ValueError("neither XH00 nor XN00 nor XN01 at byte 4")
    return blob


def delegate_blob(tables: Any, delegate: Any) -> bytes:
    """Return what a delegate's backend is given."""
    return bytes(tables.backend_delegate_data[delegate.processed.index].data)


def root_of(blob: bytes) -> FlatRecord:
    """Return the table of a delegate's graph."""
    flatbuffer = flatbuffer_of(blob)
    return FlatRecord(flatbuffer, Uint32Flags.packer_type.unpack_from(flatbuffer)[0])


def constants_of_graph(graph: FlatRecord) -> list[tuple[str | None, int, int]]:
    """Return the constants of a graph: their names in the file's named data, their bytes, and those needed.

    A constant without a name lies in the delegate.
    """
    needed: dict[int, int] = {}
    for value in graph.tables(_GRAPH_VALUES):
        for index, count in _constants_of_value(value):
            needed[index] = max(needed.get(index, 0), count)
    return [
        (constant.text(_CONSTANT_NAME), constant.number(_CONSTANT_SIZE, Uint64Flags), needed.pop(index, 0))
        for index, constant in enumerate(graph.tables(_GRAPH_CONSTANTS))
    ]


def _constants_of_value(value: FlatRecord) -> Iterator[tuple[int, int]]:
    """Yield the constants that a value reads, and how many bytes of each."""
    tensor, outer = _tensor(value), value.table(_VALUE)
    if index := tensor.number(TENSOR_CONSTANT):  # 0 stands for none
        yield index, _bytes_of(tensor)
    is_quantized = value.number(_VALUE_KIND, Uint8Flags) == _QUANTIZED
    kind = outer.number(_QUANT_KIND, Uint8Flags) if is_quantized else 0
    if kind not in (_PER_CHANNEL, _PER_GROUP):
        return
    scales, dims = outer.table(_QUANT), tensor.numbers(TENSOR_DIMS)
    if kind == _PER_CHANNEL:
        index, count, width = scales.number(_CHANNEL_SCALES), dims[scales.number(_CHANNEL_DIM)], 4
    else:
        index, count, width = scales.number(_GROUP_SCALES), math.prod(dims) // scales.number(_GROUP_SIZE), 2
    if index:
        yield index, count * width
    elif len(scales.numbers(_SCALES_INLINE, "f")) < count:
        raise ValueError(f"{len(scales.numbers(_SCALES_INLINE, 'f'))} scales for {count} channels or groups")


def external_ids(graph: FlatRecord) -> list[int]:
    """Return the positions of a graph's inputs and outputs among the arguments of the delegate."""
    tensors = tensors_of_graph(graph)
    listed = [tensors[key] for key in (*graph.numbers(_GRAPH_INPUTS), *graph.numbers(_GRAPH_OUTPUTS))]
    flags = EXTERNAL_INPUT | EXTERNAL_OUTPUT
    flagged = [tensor for tensor in tensors.values() if tensor.number(TENSOR_FLAGS) & flags]
    return [tensor.number(TENSOR_EXTERNAL_ID) for tensor in (*listed, *flagged)]


def tensors_of_graph(graph: FlatRecord) -> dict[int, FlatRecord]:
    """Return the tables of a graph's tensors by their ids."""
    return {tensor.number(_TENSOR_ID): tensor for tensor in map(_tensor, graph.tables(_GRAPH_VALUES))}


def nodes_of_graph(graph: FlatRecord) -> list[tuple[int, FlatRecord, FlatRecord]]:
    """Return the nodes of a graph in its order: their kinds in XNodeUnion, their own tables, and XNodes."""
    nodes = graph.tables(_GRAPH_NODES)
    return [(node.number(_NODE_KIND, Uint8Flags), node.table(_NODE), node) for node in nodes]


def _tensor(value: FlatRecord) -> FlatRecord:
    kind = value.number(_VALUE_KIND, Uint8Flags)
    if kind not in (_PLAIN, _QUANTIZED):
        raise ValueError(f"a value of kind {kind}")
    table = value.table(_VALUE)
    return table.table(_QUANTIZED_TENSOR) if kind == _QUANTIZED else table


def _moved_bytes(transpose: FlatRecord, tensors: Mapping[int, FlatRecord]) -> int:
    tensor = tensors[transpose.number(_TRANSPOSE_INPUT)]
    shape, perm = tensor.numbers(TENSOR_DIMS), transpose.numbers(TRANSPOSE_PERM)
    if len(shape) != len(perm):
        raise ValueError(f"a transpose of {len(perm)} dims on a tensor of {len(shape)}")
    if not moves(shape, range(len(shape)), perm):
        return 0
    return _bytes_of(tensor)


def _bytes_of(tensor: FlatRecord) -> int:
    return math.prod(tensor.numbers(TENSOR_DIMS)) * _BITS[tensor.number(TENSOR_DATATYPE, Int16Flags)] // 8
