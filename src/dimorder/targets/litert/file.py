"""Read a `.tflite` of any tool: its operators and what they move, and the contract in it.

Needs ai-edge-litert.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from dimorder.contract import Contract
from dimorder.contract_file import CONTRACT_METHOD, is_intact
from dimorder.graph.elements import moves

Content = TypeVar("Content")
# The bytes of an element by the schema's name of its type. For other types the bytes are unknown.
_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("INT8", "UINT8", "BOOL"), 1),
    **dict.fromkeys(("INT16", "UINT16", "FLOAT16", "BFLOAT16"), 2),
    **dict.fromkeys(("INT32", "UINT32", "FLOAT32"), 4),
    **dict.fromkeys(("INT64", "UINT64", "FLOAT64"), 8),
}
_SUMS, _INTEGERS = ("MEAN", "SUM"), ("INT8", "UINT8")
# The errors of reading a flatbuffer whose offsets or lengths lead nowhere.
_DAMAGE = (struct.error, LookupError, TypeError, AttributeError, OverflowError, UnicodeDecodeError)


@dataclass(frozen=True)
class TfLiteOperator:
    """An operator of a file, with the shape and the bytes of its first result.

    `moves` is whether a TRANSPOSE moves more than dimensions of 1, as far as the file says. `is_resized` is
    whether it adds up integers for a dynamic number of results. If other sizes change too, XNNPACK may plan
    too little memory for the sums, and then writes over other values (static-reduce.c).
    """

    kind: str
    shape: tuple[int, ...]
    bytes: int
    moves: bool = True
    is_resized: bool = False


@dataclass(frozen=True)
class TfLiteSummary:
    """The content of a `.tflite`, in all of its subgraphs, and the names of its signatures.

    `delegates` are the parts of the first subgraph that LiteRT's XNNPACK delegate computes here.
    `outside` are the operators that run outside of it. If LiteRT cannot load the file, `error` says why.
    """

    operators: tuple[TfLiteOperator, ...]
    signatures: tuple[str, ...] = ()
    delegates: int = 0
    outside: Mapping[str, int] | None = None
    error: str = ""

    @property
    def counts(self) -> Counter[str]:
        return Counter(each.kind for each in self.operators)

    def of(self, kind: str) -> tuple[int, int]:
        """Return how many operators of a kind move anything, and the bytes that they move."""
        found = [each for each in self.operators if each.kind == kind and each.moves]
        return len(found), sum(each.bytes for each in found)

    @property
    def conversion_count(self) -> int:
        return self.of("TRANSPOSE")[0]

    @property
    def resized_sums(self) -> int:
        """How many operators XNNPACK's delegate may compute wrong after a call of other sizes."""
        outside = self.outside or {}
        return sum(each.is_resized and each.kind not in outside for each in self.operators)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `dimorder check --json`; the keys are stable."""
        (transposes, transpose_bytes), (reshapes, reshape_bytes) = self.of("TRANSPOSE"), self.of("RESHAPE")
        return {
            "format": "tflite",
            "signatures": list(self.signatures),
            "operators": dict(sorted(self.counts.items())),
            "operator_count": len(self.operators),
            "transposes": transposes,
            "transpose_bytes": transpose_bytes,
            "reshapes": reshapes,
            "reshape_bytes": reshape_bytes,
            "resized_sums": self.resized_sums,
            "delegates": self.delegates,
            "beside": None if self.outside is None else dict(sorted(self.outside.items())),
            "error": self.error or None,
        }

    def __str__(self) -> str:
        lines = [f"LiteRT: {len(self.operators):,} operators"]
        if len(self.signatures) > 1:
            lines.append(f"signatures  {', '.join(self.signatures)}")
        lines += [f"  {count:6,}  {kind}" for kind, count in sorted(self.counts.items())]
        for title, kind in (("transposes", "TRANSPOSE"), ("reshapes", "RESHAPE")):
            count, moved = self.of(kind)
            lines.append(f"{title}  {f'{count:,}, {moved:,} bytes moved' if count else 'none'}")
        if self.resized_sums:
            lines.append(
                f"resized  {self.resized_sums:,} MEAN or SUM of integers may be wrong after other sizes"
            )
        if self.outside is None:
            return "\n".join([*lines, f"not loaded  {self.error}"])
        lines.append(f"delegates  {self.delegates} by XNNPACK")
        outside = ", ".join(f"{count} {kind}" for kind, count in sorted(self.outside.items()))
        return "\n".join([*lines, f"outside of them  {outside or 'nothing'}"])


def read_contracts(data: bytes) -> dict[str, Contract]:
    """Return the contracts in a file by signature. Raises `ValueError` for a damaged one, or one without."""
    if data[4:8] != b"TFL3":
        raise ValueError(f"{len(data)} bytes that do not begin as a .tflite does (TFL3 at byte 4)")
    texts: Mapping[str, bytes] = _read(data, _metadata) if is_sealed(data) else {}
    if CONTRACT_METHOD not in texts:
        raise ValueError("no contract: it is damaged, or another tool wrote it")
    entries = {name: contract_entry(i, name) for i, name in enumerate(read_signatures(data))}
    return {name: Contract.from_json(texts[entry].decode()) for name, entry in entries.items()}


def contract_entry(place: int, signature: str) -> str:
    """Return the name of the metadata with the contract of a signature, which is at this place in a file."""
    return f"{CONTRACT_METHOD}/{signature}" if place else CONTRACT_METHOD


def read_signatures(data: bytes) -> list[str]:
    """Return the names of a file's signatures. Raises `ValueError` for a damaged file."""
    return _read(data, lambda model: [*_signatures(model, len(data))])


def _signatures(model: Any, limit: int) -> Iterator[str]:
    for signature in map(model.SignatureDefs, _indices(model.SignatureDefsLength(), limit)):
        yield (signature.SignatureKey() or b"").decode()


def _metadata(model: Any) -> dict[str, bytes]:
    entries = map(model.Metadata, range(model.MetadataLength()))
    return {each.Name().decode(): model.Buffers(each.Buffer()).DataAsNumpy().tobytes() for each in entries}


def is_sealed(data: bytes) -> bool:
    """Return whether a file has our seal. Raises `ValueError` if its bytes are not those that were sealed."""
    intact = is_intact(data)
    if intact is False:
        raise ValueError("bytes other than those that were written (their SHA-256 differs)")
    return intact is not None


def read_operators(data: bytes) -> tuple[TfLiteOperator, ...]:
    """Return the operators of a file, in all of its subgraphs. Raises `ValueError` for a damaged file."""
    return _read(data, lambda model: tuple(_operators(model, len(data))))


def _read(data: bytes, read: Callable[[Any], Content]) -> Content:
    """Return what is read of a file's model. Raises `ValueError` for a damaged file."""
    from ai_edge_litert.schema_py_generated import Model

    try:
        return read(Model.GetRootAs(data))
    except _DAMAGE as error:
        raise ValueError(f"a damaged flatbuffer ({type(error).__name__}: {error})") from error


def operators(data: bytes) -> Counter[str]:
    """Return how many operators of each kind a file has."""
    return Counter(each.kind for each in read_operators(data))


def _operators(model: Any, limit: int) -> Iterator[TfLiteOperator]:
    codes = [model.OperatorCodes(i) for i in _indices(model.OperatorCodesLength(), limit)]
    for graph in map(model.Subgraphs, _indices(model.SubgraphsLength(), limit)):
        for operator in map(graph.Operators, _indices(graph.OperatorsLength(), limit)):
            code = codes[operator.OpcodeIndex()]
            number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
            kind = _names("BuiltinOperator").get(number, f"operator {number}")
            if kind == "CUSTOM":
                kind = (code.CustomCode() or b"CUSTOM").decode()
            result = graph.Tensors(operator.Outputs(0)) if operator.OutputsLength() else None
            shape: tuple[int, ...] = ()
            size, is_resized = 0, False
            if result is not None:
                shape = tuple(result.Shape(i) for i in _indices(result.ShapeLength(), limit))
                dtype = _names("TensorType").get(result.Type(), "")
                size = math.prod(shape) * _BYTES.get(dtype, 0)
                is_dynamic = -1 in map(result.ShapeSignature, _indices(result.ShapeSignatureLength(), limit))
                is_resized = kind in _SUMS and dtype in _INTEGERS and is_dynamic
            may_move = kind != "TRANSPOSE" or _moves(model, graph, operator, limit)
            yield TfLiteOperator(kind, shape, size, may_move, is_resized)


def _moves(model: Any, graph: Any, transpose: Any, limit: int) -> bool:
    """Return whether a TRANSPOSE may move anything: its permutation may be computed, or its rank unknown."""
    x, dims = (graph.Tensors(transpose.Inputs(i)) for i in (0, 1))
    data = model.Buffers(dims.Buffer())
    if not data.DataLength():
        return True
    order = struct.unpack(f"<{data.DataLength() // 4}i", data.DataAsNumpy().tobytes())
    shape = [x.Shape(i) for i in _indices(x.ShapeLength(), limit)]
    return moves(order, shape if len(shape) == len(order) else [0] * len(order))


def _indices(length: int, limit: int) -> range:
    """Return the indices of a vector, which cannot have more entries than the file has bytes."""
    if length > limit:
        raise ValueError(f"a vector of {length} entries")
    return range(length)


@cache
def _names(enumeration: str) -> Mapping[int, str]:
    from ai_edge_litert import schema_py_generated as schema

    members = vars(getattr(schema, enumeration))
    return {number: name for name, number in members.items() if isinstance(number, int)}
