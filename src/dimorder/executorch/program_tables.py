"""Read the tensors and the calls in a .pte that the runtime has verified, without importing the exporter.

That import takes eight seconds. The fields and classes have the names of executorch.exir.schema.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from mmap import mmap
from types import MappingProxyType, SimpleNamespace
from typing import Any

from flatbuffers.number_types import Int8Flags, Int32Flags, Int64Flags, Uint64Flags

from dimorder.executorch.xnn_blob import FlatRecord
from dimorder.runtime.kernels import instructions, kernel_of

# The fields that are read, with their places and types in executorch/schema/program.fbs. A union takes two
# places. Letters are formats of `struct`.
_FIELDS: Mapping[str, Mapping[str, tuple[int, str]]] = MappingProxyType(
    {
        "Program": {
            "execution_plan": (1, "[ExecutionPlan]"),
            "backend_delegate_data": (3, "[BackendDelegateInlineData]"),
            "segments": (4, "[DataSegment]"),
            "constant_segment": (5, "SubsegmentOffsets"),
            "named_data": (7, "[NamedData]"),
        },
        "BackendDelegateInlineData": {"data": (0, "bytes")},
        "NamedData": {"key": (0, "text"), "segment_index": (1, "number")},
        "SubsegmentOffsets": {"segment_index": (0, "number"), "offsets": (1, "[Q]")},
        "DataSegment": {"offset": (0, "size"), "size": (1, "size")},
        "ExecutionPlan": {
            "name": (0, "text"),
            "values": (2, "[EValue]"),
            "inputs": (3, "[i]"),
            "outputs": (4, "[i]"),
            "chains": (5, "[Chain]"),
            "operators": (6, "[Operator]"),
            "delegates": (7, "[BackendDelegate]"),
        },
        "EValue": {"val": (0, "KernelTypes")},
        "Tensor": {
            "scalar_type": (0, "ScalarType"),
            "sizes": (2, "[i]"),
            "dim_order": (3, "[B]"),
            "data_buffer_idx": (5, "number"),
            "allocation_info": (6, "AllocationDetails"),
            "shape_dynamism": (8, "TensorShapeDynamism"),
            "extra_tensor_info": (9, "ExtraTensorInfo"),
        },
        "ExtraTensorInfo": {"fully_qualified_name": (1, "text"), "location": (2, "TensorDataLocation")},
        "AllocationDetails": {
            "memory_id": (0, "number"),
            "memory_offset_low": (1, "number"),
            "memory_offset_high": (2, "number"),
        },
        "Int": {"int_val": (0, "long")},
        "String": {"string_val": (0, "text")},
        "IntList": {"items": (0, "[q]")},
        "TensorList": {"items": (0, "[i]")},
        "OptionalTensorList": {"items": (0, "[i]")},
        "Operator": {"name": (0, "text"), "overload": (1, "text")},
        "BackendDelegate": {
            "id": (0, "text"),
            "processed": (1, "BackendDelegateDataReference"),
            "compile_specs": (2, "[CompileSpec]"),
        },
        "BackendDelegateDataReference": {"location": (0, "DataLocation"), "index": (1, "number")},
        "CompileSpec": {"key": (0, "text")},
        "Chain": {"instructions": (2, "[Instruction]")},
        "Instruction": {"instr_args": (0, "InstructionArguments")},
        "KernelCall": {"op_index": (0, "number"), "args": (1, "[i]")},
        "MoveCall": {"move_from": (0, "number"), "move_to": (1, "number")},
        "DelegateCall": {"delegate_index": (0, "number"), "args": (1, "[i]")},
        "JumpFalseCall": {"cond_value_index": (0, "number")},
        "FreeCall": {"value_index": (0, "number")},
    }
)
_UNIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "KernelTypes": (
            *("NONE", "Null", "Int", "Bool", "Double", "Tensor", "String"),
            *("IntList", "DoubleList", "BoolList", "TensorList", "OptionalTensorList"),
        ),
        "InstructionArguments": (
            *("NONE", "KernelCall", "DelegateCall", "MoveCall", "JumpFalseCall", "FreeCall"),
        ),
    }
)
_SCALAR_TYPES = (
    *("BYTE", "CHAR", "SHORT", "INT", "LONG", "HALF", "FLOAT", "DOUBLE"),
    *("BOOL", "QINT8", "QUINT8", "QINT32", "BFLOAT16", "QUINT4X2", "QUINT2X4"),
    *("BITS16", "FLOAT8E5M2", "FLOAT8E4M3FN", "FLOAT8E5M2FNUZ", "FLOAT8E4M3FNUZ"),
    *("UINT16", "UINT32", "UINT64"),
)
_SCALAR_NUMBERS = (*range(8), *range(11, 18), *range(22, 30))
_DYNAMISM = ("STATIC", "DYNAMIC_BOUND", "DYNAMIC_UNBOUND")
_ENUMS: Mapping[str, Any] = MappingProxyType(
    {
        "DataLocation": Enum("DataLocation", ("INLINE", "SEGMENT"), start=0),
        "ScalarType": Enum("ScalarType", [*zip(_SCALAR_TYPES, _SCALAR_NUMBERS, strict=True)]),
        "TensorDataLocation": Enum("TensorDataLocation", ("SEGMENT", "EXTERNAL"), start=0),
        "TensorShapeDynamism": Enum("TensorShapeDynamism", _DYNAMISM, start=0),
    }
)
_KINDS = {name: type(name, (SimpleNamespace,), {}) for name in {*_FIELDS, *sum(_UNIONS.values(), ())}}


def read_program(pte: bytes | mmap) -> Any:
    """Return a .pte's tables: the fields of executorch.exir.schema.Program that are listed above.

    The runtime must have opened the file before, with `Verification.InternalConsistency`: it has checked the
    offsets. Raises `ValueError` for a number that its enumeration or its union lacks, and for segments that
    overlap. Segments of delegates are read into the tables, as exir's own reader does it. Named data have the
    sizes of their segments, and `constant_sizes` are the bytes of each constant up to the next one.
    """
    program = _record(FlatRecord(pte, struct.unpack_from("<I", pte)[0]), "Program")
    _require_apart(program.segments, pte)
    inline, locations = program.backend_delegate_data, _ENUMS["DataLocation"]
    new = _KINDS["BackendDelegateInlineData"]
    for plan in program.execution_plan:
        for place in (delegate.processed for delegate in plan.delegates):
            if place.location is locations.SEGMENT:
                segment = program.segments[place.index]
                at = int.from_bytes(pte[24:32], "little") + segment.offset
                inline.append(new(data=pte[at : at + segment.size]))
                place.location, place.index = locations.INLINE, len(inline) - 1
    for named in program.named_data:
        named.size = program.segments[named.segment_index].size
    program.constant_sizes = _constant_sizes(program)
    program.segments = []
    return program


def count_calls(plan: Any) -> Counter[str]:
    """Return how often a method calls each kernel; the empty name stands for delegates."""
    return Counter(kernel_of(plan, call) for call in instructions(plan))


def _require_apart(segments: Sequence[Any], pte: bytes | mmap) -> None:
    """Raise `ValueError` if segments overlap, or if no header says where they begin after the tables."""
    if not any(segment.size for segment in segments):
        return
    program, base = (int.from_bytes(pte[at : at + 8], "little") for at in (16, 24))
    if pte[8:12] != b"eh00" or base < program:
        raise ValueError("no header that says where the segments begin")
    end = 0
    for segment in sorted(segments, key=lambda each: each.offset):
        if segment.offset < end:
            raise ValueError("segments that overlap")
        end = segment.offset + segment.size


def _constant_sizes(program: Any) -> list[int]:
    """Return how many bytes each constant may have, by its index; no constant has index 0."""
    place = program.constant_segment
    if place is None or not place.offsets:
        return []
    ends = [*sorted(place.offsets), program.segments[place.segment_index].size]
    return [ends[bisect_right(ends, at, hi=len(ends) - 1)] - at for at in place.offsets]


def _record(table: FlatRecord, kind: str) -> Any:
    fields = _FIELDS.get(kind, {})
    return _KINDS[kind](**{name: _field(table, place, of) for name, (place, of) in fields.items()})


def _field(table: FlatRecord, place: int, kind: str) -> Any:
    """Return a field; None for an absent text or table."""
    if kind == "number":
        return table.number(place, Int32Flags)
    if kind == "long":
        return table.number(place, Int64Flags)
    if kind == "size":
        return table.number(place, Uint64Flags)
    if kind == "text":
        return table.text(place)
    if kind == "bytes":
        return table.bytes(place)
    if kind in _ENUMS:
        return _ENUMS[kind](table.number(place, Int8Flags))
    if kind.startswith("["):
        of = kind[1:-1]
        if of in _FIELDS:
            return [_record(each, of) for each in table.tables(place)]
        return list(table.numbers(place, of))
    if kind not in _UNIONS:
        return _record(table.table(place), kind) if table.has(place) else None
    number, members = table.number(place, Int8Flags), _UNIONS[kind]
    if not 0 < number < len(members):
        raise ValueError(f"no member {number} of {kind}")
    return _record(table.table(place + 1), members[number])
