"""Count the operators in any TOSA file, and the bytes that its TRANSPOSEs move."""

from __future__ import annotations

import functools
import importlib
import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dimorder.errors import UsageError, installed
from dimorder.graph.elements import moves
from dimorder.targets.tosa import INFO
from dimorder.text import columns, shape_text

# Bits of an element by TOSA's name of its type. For other types the bytes are unknown.
_BITS: Mapping[str, int] = {
    **dict.fromkeys(("INT4", "FP4E2M1"), 4),
    **dict.fromkeys(("FP6E2M3", "FP6E3M2"), 6),
    **dict.fromkeys(("BOOL", "INT8", "FP8E4M3", "FP8E5M2", "FP8UE8M0"), 8),
    **dict.fromkeys(("INT16", "FP16", "BF16"), 16),
    **dict.fromkeys(("INT32", "FP32"), 32),
    "INT48": 48,
    **dict.fromkeys(("INT64", "SHAPE"), 64),
}
_CONSTANTS = ("CONST", "CONST_SHAPE")

# The errors of reading a flatbuffer whose offsets or lengths lead nowhere.
_DAMAGE = (struct.error, LookupError, ValueError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True)
class TosaTensor:
    """A tensor of a TOSA graph, as it is stored: dense in `shape`."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _BITS.get(self.dtype, 0) // 8

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}


@dataclass(frozen=True)
class TosaSummary:
    """The content of a TOSA file.

    `operators` omits constants. A TRANSPOSE that only moves dimensions of 1 is none of the `transposes`.
    `transpose_bytes` counts each transposed tensor once.
    """

    version: tuple[int, int, int]
    operators: Counter[str]
    transposes: int
    transpose_bytes: int
    inputs: tuple[TosaTensor, ...]
    outputs: tuple[TosaTensor, ...]

    @property
    def conversion_count(self) -> int:
        return self.transposes

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `dimorder check --json`; the keys are stable."""
        return {
            "format": "tosa",
            "version": ".".join(map(str, self.version)),
            "inputs": [tensor.to_dict() for tensor in self.inputs],
            "outputs": [tensor.to_dict() for tensor in self.outputs],
            "operators": dict(sorted(self.operators.items())),
            "operator_count": sum(self.operators.values()),
            "transposes": self.transposes,
            "transpose_bytes": self.transpose_bytes,
        }

    def __str__(self) -> str:
        sides = [("input", self.inputs), ("output", self.outputs)]
        rows = [
            (kind, t.name, shape_text(t.shape, " x "), t.dtype) for kind, tensors in sides for t in tensors
        ]
        lines = columns(rows)
        lines += [f"TOSA {'.'.join(map(str, self.version))}: {sum(self.operators.values()):,} operators"]
        lines += [f"  {count:6,}  {kind}" for kind, count in sorted(self.operators.items())]
        moved = f"{self.transposes:,}, {self.transpose_bytes:,} bytes moved" if self.transposes else "none"
        return "\n".join([*lines, f"transposes  {moved}"])


def inspect_tosa(data: bytes) -> TosaSummary:
    """Count the operators of a TOSA file, in all of its regions and blocks. Needs tosa-tools.

    Raises `UsageError` for bytes that are no TOSA file, or a damaged one.

    >>> inspect_tosa(b"no such thing")
    Traceback (most recent call last):
    dimorder.errors.UsageError: a TOSA file
      found: no TOSA identifier in its first 8 bytes
      fix: give a .tosa flatbuffer
    """
    if data[4:8] != b"TOSA":
        raise UsageError("a TOSA file", "no TOSA identifier in its first 8 bytes", "give a .tosa flatbuffer")
    with installed("target tosa", INFO.install):
        from tosa.TosaGraph import TosaGraph
    try:
        return _summary(TosaGraph.GetRootAs(bytearray(data), 0), len(data))
    except _DAMAGE as error:
        found = f"a damaged flatbuffer ({type(error).__name__}: {error})"
        raise UsageError("a TOSA file", found, "write the file again") from error


def _summary(graph: Any, limit: int) -> TosaSummary:
    version = graph.Version()
    operators: Counter[str] = Counter()
    transposes = transpose_bytes = 0
    main: tuple[tuple[TosaTensor, ...], tuple[TosaTensor, ...]] | None = None
    for block in _blocks(graph, limit):
        tensors = _tensors(block, limit)
        for operator in map(block.Operators, _indices(block.OperatorsLength(), limit)):
            kind = _name("Op", operator.Op())
            if kind in _CONSTANTS:
                continue
            operators[kind] += 1
            if kind == "TRANSPOSE":
                tensor, perms = tensors[operator.Inputs(0).decode()], _perms(operator, limit)
                if moves(perms, tensor.shape):
                    transposes += 1
                    transpose_bytes += tensor.bytes
        if main is None:  # the first block of the first region is the graph; others are branches and bodies
            main = (
                tuple(tensors[block.Inputs(i).decode()] for i in _indices(block.InputsLength(), limit)),
                tuple(tensors[block.Outputs(i).decode()] for i in _indices(block.OutputsLength(), limit)),
            )
    if main is None:
        raise ValueError("no block of operators")
    numbers = (version._Major(), version._Minor(), version._Patch())
    return TosaSummary(numbers, operators, transposes, transpose_bytes, *main)


def _blocks(graph: Any, limit: int) -> Iterator[Any]:
    for region in map(graph.Regions, _indices(graph.RegionsLength(), limit)):
        yield from map(region.Blocks, _indices(region.BlocksLength(), limit))


def _tensors(block: Any, limit: int) -> dict[str, TosaTensor]:
    found = {}
    for tensor in map(block.Tensors, _indices(block.TensorsLength(), limit)):
        shape = tuple(tensor.Shape(i) for i in _indices(tensor.ShapeLength(), limit))
        name = tensor.Name().decode()
        found[name] = TosaTensor(name, shape, _name("DType", tensor.Type()))
    for shape in map(block.Shapes, _indices(block.ShapesLength(), limit)):
        name = shape.Name().decode()
        found[name] = TosaTensor(name, (shape.Rank(),), "SHAPE")
    return found


def _perms(operator: Any, limit: int) -> list[int]:
    from tosa.TransposeAttribute import TransposeAttribute

    table, attribute = operator.Attribute(), TransposeAttribute()
    attribute.Init(table.Bytes, table.Pos)
    return [attribute.Perms(i) for i in _indices(attribute.PermsLength(), limit)]


def _indices(length: int, limit: int) -> range:
    """Return the indices of a vector, which cannot have more entries than the file has bytes."""
    if length > limit:
        raise ValueError(f"a vector of {length} entries")
    return range(length)


@functools.cache
def _names(enumeration: str) -> Mapping[int, str]:
    module = importlib.import_module(f"tosa.{enumeration}")
    members = vars(getattr(module, enumeration))
    return {number: name for name, number in members.items() if isinstance(number, int)}


def _name(enumeration: str, number: int) -> str:
    """Return the name of an operator or a type, or a number for one from a later version of TOSA."""
    return _names(enumeration).get(number, f"{enumeration}_{number}")
