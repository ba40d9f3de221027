"""Write the operators and tensors of a graph as a TOSA 1.0 flatbuffer. Needs tosa-tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from dimorder.targets.tosa.integers.model import TosaNode


@dataclass(frozen=True)
class FlatTensor:
    """A tensor of a graph in the shape in which it is stored; `data` if it is constant."""

    shape: tuple[int, ...]
    dtype: str
    data: np.ndarray[Any, Any] | None = None


def serialize(
    tensors: Mapping[str, FlatTensor],
    nodes: Sequence[TosaNode],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> bytes:
    """Return the flatbuffer of a graph, without the constants that no operator reads."""
    import tosa_serializer as ts

    serializer = ts.TosaSerializer("", targetMajor=1, targetMinor=0, targetPatch=0, targetDraft=False)
    block = serializer.currRegion.currBasicBlock
    read = {name for node in nodes for name in node.inputs}

    def declare(name: str) -> None:
        block.addTensor(name, list(tensors[name].shape), getattr(ts.DType, tensors[name].dtype))

    for name in inputs:
        declare(name)
        block.addInput(name)
    for name, tensor in tensors.items():
        if tensor.data is not None and name in read:
            data = _as_serialized(tensor.data, tensor.dtype)
            serializer.addConst(list(tensor.shape), getattr(ts.DType, tensor.dtype), data, name=name)
    for node in nodes:
        declare(node.output)
        operands = list(node.inputs), [node.output]
        block.addOperator(getattr(ts.Op, node.kind), *operands, _attribute(ts, node))
    for name in outputs:
        block.addOutput(name)
    return bytes(serializer.serialize())


def _as_serialized(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return numbers as tosa-tools takes them; bfloat16 has its own extension of numpy."""
    if dtype != "BF16":
        return array
    import ml_dtypes

    return array.astype(ml_dtypes.bfloat16)


_ATTRIBUTES = MappingProxyType({"ARGMAX": "ArgMax", "MATMUL": "MatMul", "INTDIV": "IntDiv"})
_WITH_NAN_MODE = frozenset(
    {"ARGMAX", "MAX_POOL2D", "CLAMP", "MAXIMUM", "MINIMUM", "REDUCE_MAX", "REDUCE_MIN"}
)


def _attribute(ts: Any, node: TosaNode) -> Any:
    """Return the serializer's attribute of an operator, in which enumerations are written by name."""
    attribute = ts.TosaSerializerAttribute()
    given = dict(node.attributes)
    for name, enumeration in (
        ("acc_type", ts.DType),
        ("mode", ts.ResizeMode),
        ("rounding_mode", ts.RoundingMode),
    ):
        if name in given:
            given[name] = getattr(enumeration, given[name])
    if node.kind in _WITH_NAN_MODE:
        given["nan_mode"] = ts.NanPropagationMode.PROPAGATE
    camel = "".join(part.capitalize() for part in node.kind.split("_"))
    getattr(attribute, _ATTRIBUTES.get(node.kind, camel) + "Attribute")(**given)
    return attribute
