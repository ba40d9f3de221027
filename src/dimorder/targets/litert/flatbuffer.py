"""Write the operators and tensors of a graph as a `.tflite` flatbuffer. Needs ai-edge-litert."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from dimorder.errors import UnsupportedError
from dimorder.graph.dynamic_sizes import DynamicSize, is_fixed

SIGNATURE = "serving_default"
ALIGNMENT = 16  # the schema's force_align of buffers, which the object API ignores
MAX_RANK = 6  # the XNNPACK delegate claims some operators of 7 dimensions, and then ends the model
MAX_SLICED = 5  # dimensions of SLICE by LiteRT's own kernels
MAX_BYTES = (1 << 31) - (1 << 20)  # a flatbuffer has offsets of 31 bits; the rest is for its tables

# torch's types, by the names that the schema's TensorType has for them
DTYPES: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.float32: "FLOAT32",
        torch.int64: "INT64",
        torch.int32: "INT32",
        torch.bool: "BOOL",
        torch.float16: "FLOAT16",
        torch.float64: "FLOAT64",
        torch.int8: "INT8",
        torch.uint8: "UINT8",  # and INT4 for integers of 4 bits
    }
)
CAST_ONLY = frozenset((torch.float16, torch.float64))  # floats in which no kernel computes anything but casts
# The options of the operators whose class in the schema is not the operator's name in camel case.
_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "CONV_2D": "Conv2D",
        "DEPTHWISE_CONV_2D": "DepthwiseConv2D",
        "CONV_3D": "Conv3D",
        "MAX_POOL_2D": "Pool2D",
        "AVERAGE_POOL_2D": "Pool2D",
        "BATCH_MATMUL": "BatchMatMul",
        "TOPK_V2": "TopKV2",
        **dict.fromkeys(
            ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL"), "Reducer"
        ),
    }
)


@dataclass(frozen=True)
class TfLiteScales:
    """The zero point and scales of a tensor's integers: one scale, or one for each index of `dim`.

    With `group`, each row of a matrix has a scale for every so many neighbours, which float16 has exactly.
    """

    scales: tuple[float, ...]
    zero_point: int = 0
    dim: int = 0
    group: int | None = None


@dataclass(frozen=True)
class TfLiteTensor:
    """A tensor of a file, dense in its shape; `data` if it is constant, `scales` if its integers have any.

    A shape may have `DynamicSize`s. Before an input is resized, the file has their values at the first point.
    The handle of a variable has no shape and the type of the variable's elements. `in_4_bits` says that the
    file has two of the integers in a byte.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    data: np.ndarray[Any, Any] | None = None
    scales: TfLiteScales | None = None
    is_handle: bool = False
    in_4_bits: bool = False

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_RANK:
            found = (
                f"{len(self.shape)} dimensions {self.shape}, where LiteRT's delegate has at most {MAX_RANK}"
            )
            raise UnsupportedError("a tensor of a LiteRT graph", found, "merge dimensions before it")

    @cached_property
    def content(self) -> np.ndarray[Any, Any] | None:
        """The bytes of a constant in the file."""
        if self.data is None:
            return None
        flat = np.ascontiguousarray(self.data).reshape(-1)
        if not self.in_4_bits:
            return flat.view(np.uint8)
        low, high = flat[::2] & 15, flat[1::2] & 15  # the first of a pair is in the lower half
        return (low | high << 4).view(np.uint8)


@dataclass(frozen=True)
class TfLiteNode:
    """An operator of a file, by the schema's name. Operands and results are names of tensors.

    An operand may be None if it is optional. `options` are fields of the operator's options in the schema.
    `origin` is the name of the program's node, or of the output, for which the operator was written.
    """

    kind: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    options: Mapping[str, Any]
    origin: str = ""


@dataclass(frozen=True)
class TfLiteGraph:
    """Operators in sequence and their tensors by name.

    `inputs` and `outputs` map the names of the signature to tensors, in sequence. `first` is a graph that
    runs once, where this one has the operator `CALL_ONCE`.
    """

    tensors: Mapping[str, TfLiteTensor]
    nodes: Sequence[TfLiteNode]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    first: TfLiteGraph | None = None

    @cached_property
    def stored(self) -> dict[str, TfLiteTensor]:
        """The tensors that are inputs or outputs, or used by an operator, and the scales of groups."""
        ends = [*self.inputs.values(), *self.outputs.values()]
        used = (name for node in self.nodes for name in (*node.inputs, *node.outputs) if name)
        found = {name: self.tensors[name] for name in (*ends, *used)}
        groups = {name: tensor for name, tensor in found.items() if tensor.scales and tensor.scales.group}
        return found | {_scales(name): _group_scales(tensor) for name, tensor in groups.items()}


def serialize(signatures: Mapping[str, TfLiteGraph], metadata: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a file with a graph for each signature, without the tensors that no operator uses.

    Graphs share the bytes of equal constants, and the variables of equal names. Needs ai-edge-litert.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    graphs = [*signatures.values(), *_initialization(signatures)]
    contents = _contents(tensor for graph in graphs for tensor in graph.stored.values())
    size = sum(data.nbytes for data in contents.values())
    if size > MAX_BYTES:
        found = f"{size:,} bytes of constants, where a .tflite has at most {MAX_BYTES:,}"
        raise UnsupportedError("the constants of the network", found, "make it smaller, or split it")
    model = schema.ModelT()
    model.version, model.description = 3, "dimorder"
    model.buffers = [schema.BufferT(), *(_buffer(schema, data) for data in contents.values())]
    buffers = {content: place for place, content in enumerate(contents, start=1)}
    kinds = dict.fromkeys(node.kind for graph in graphs for node in graph.nodes)
    model.operatorCodes = [_code(schema, kind) for kind in kinds]
    model.subgraphs = [_subgraph(schema, graph, list(kinds), buffers, len(signatures)) for graph in graphs]
    model.signatureDefs = [
        _signature(schema, name, place, graph) for place, (name, graph) in enumerate(signatures.items())
    ]
    model.metadata = []
    for name, content in metadata.items():
        entry = schema.MetadataT()
        entry.name, entry.buffer = name, len(model.buffers)
        model.metadata.append(entry)
        model.buffers.append(_buffer(schema, np.frombuffer(content, np.uint8)))
    builder = flatbuffers.Builder(size + (1 << 16))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _initialization(signatures: Mapping[str, TfLiteGraph]) -> list[TfLiteGraph]:
    """Return the graph that runs once for all signatures, if one is needed: each variable begins once."""
    tensors, nodes, begun = dict[str, TfLiteTensor](), list[TfLiteNode](), set[str]()
    for signature, graph in signatures.items():
        steps = () if graph.first is None else graph.first.nodes
        for handle, assignment in zip(steps[::2], steps[1::2], strict=True):
            if handle.options["sharedName"] not in begun:
                begun.add(handle.options["sharedName"])
                nodes += [_renamed(handle, signature), _renamed(assignment, signature)]
        if graph.first is not None:
            tensors |= {f"{signature}/{name}": tensor for name, tensor in graph.first.tensors.items()}
    return [TfLiteGraph(tensors, nodes, {}, {})] if nodes else []


def _renamed(node: TfLiteNode, prefix: str) -> TfLiteNode:
    inputs, outputs = (tuple(f"{prefix}/{name}" for name in names) for names in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


def _subgraph(
    schema: Any, made: TfLiteGraph, kinds: Sequence[str], buffers: Mapping[bytes, int], first: int
) -> Any:
    graph, index = schema.SubGraphT(), _index(made)
    graph.name = "main" if made.outputs else "first"
    graph.tensors = [_tensor(schema, name, tensor, buffers, index) for name, tensor in made.stored.items()]
    graph.operators = [_operator(schema, node, kinds.index(node.kind), index) for node in made.nodes]
    for node, operator in zip(made.nodes, graph.operators, strict=True):
        if node.kind == "CALL_ONCE":
            operator.builtinOptions.initSubgraphIndex = first
    graph.inputs = [index[name] for name in made.inputs.values()]
    graph.outputs = [index[name] for name in made.outputs.values()]
    return graph


def _index(made: TfLiteGraph) -> dict[str | None, int]:
    return {None: -1, **{name: i for i, name in enumerate(made.stored)}}


def _scales(name: str) -> str:
    """Return the name of the tensor with the scales of a tensor that has groups."""
    return f"{name}.scales"


def _group_scales(tensor: TfLiteTensor) -> TfLiteTensor:
    assert tensor.scales is not None
    scales = np.array(tensor.scales.scales, np.float16).reshape(tensor.shape[0], -1)
    return TfLiteTensor(scales.shape, torch.float16, scales)


def _contents(tensors: Iterable[TfLiteTensor]) -> dict[bytes, np.ndarray[Any, Any]]:
    """Return the distinct bytes of constants by their hash: tensors of other shapes share a buffer."""
    found = dict[bytes, np.ndarray[Any, Any]]()
    for content in (tensor.content for tensor in tensors):
        if content is not None:
            found.setdefault(_hash(content), content)
    return found


def _hash(content: np.ndarray[Any, Any]) -> bytes:
    return hashlib.sha256(content.data).digest()


def _tensor(
    schema: Any,
    name: str,
    tensor: TfLiteTensor,
    buffers: Mapping[bytes, int],
    index: Mapping[str | None, int],
) -> Any:
    made = schema.TensorT()
    made.name, made.shape, made.hasRank = name, list(map(int, tensor.shape)), True
    if not is_fixed(tensor.shape):
        made.shapeSignature = [-1 if isinstance(size, DynamicSize) else size for size in tensor.shape]
    stored = "INT4" if tensor.in_4_bits else DTYPES[tensor.dtype]
    made.type = getattr(schema.TensorType, "RESOURCE" if tensor.is_handle else stored)
    # Buffer 0 is that of the tensors without data.
    made.buffer = 0 if tensor.content is None else buffers[_hash(tensor.content)]
    if tensor.scales is not None:
        made.quantization = _quantization(schema, tensor.scales, index.get(_scales(name)))
    return made


def _quantization(schema: Any, scales: TfLiteScales, groups: int | None) -> Any:
    """Return what a tensor's integers stand for; `groups` is the tensor with the scales of groups."""
    made = schema.QuantizationParametersT()
    if scales.group is not None:
        made.detailsType = schema.QuantizationDetails.BlockwiseQuantization
        made.details = schema.BlockwiseQuantizationT(groups, -1, scales.group)  # without zero points
        return made
    made.scale = list(scales.scales)
    made.zeroPoint = [scales.zero_point] * len(scales.scales)
    made.quantizedDimension = scales.dim
    return made


def _buffer(schema: Any, data: np.ndarray[Any, Any]) -> Any:
    class Aligned(schema.BufferT):  # type: ignore[misc]  # the schema has no types
        def Pack(self, builder: Any) -> Any:
            builder.StartVector(1, data.size, ALIGNMENT)
            builder.head = builder.Head() - data.size
            builder.Bytes[builder.Head() : builder.Head() + data.size] = data.tobytes()
            builder.vectorNumElems = data.size
            vector = builder.EndVector()
            schema.BufferStart(builder)
            schema.BufferAddData(builder, vector)
            return schema.BufferEnd(builder)

    return Aligned()


def _code(schema: Any, kind: str) -> Any:
    made = schema.OperatorCodeT()
    made.builtinCode = getattr(schema.BuiltinOperator, kind)
    made.deprecatedBuiltinCode = min(made.builtinCode, 127)
    made.version = 1
    return made


def _operator(schema: Any, node: TfLiteNode, code: int, index: Mapping[str | None, int]) -> Any:
    made = schema.OperatorT()
    made.opcodeIndex = code
    made.inputs = [index[name] for name in node.inputs]
    made.outputs = [index[name] for name in node.outputs]
    camel = "".join(part.capitalize() for part in node.kind.split("_"))
    name = _OPTIONS.get(node.kind, camel) + "Options"
    if hasattr(schema, name + "T"):
        made.builtinOptionsType = getattr(schema.BuiltinOptions, name)
        made.builtinOptions = getattr(schema, name + "T")()
        for field, value in node.options.items():
            assert hasattr(made.builtinOptions, field), (node.kind, field)
            setattr(made.builtinOptions, field, value)
    else:
        assert not node.options, node
    return made


def _signature(schema: Any, name: str, place: int, graph: TfLiteGraph) -> Any:
    index = _index(graph)

    def named(tensors: Mapping[str, str]) -> list[Any]:
        entries = []
        for title, tensor in tensors.items():
            entry = schema.TensorMapT()
            entry.name, entry.tensorIndex = title, index[tensor]
            entries.append(entry)
        return entries

    made = schema.SignatureDefT()
    made.signatureKey, made.subgraphIndex = name, place
    made.inputs, made.outputs = named(graph.inputs), named(graph.outputs)
    return made
