"""Find operators of stock XNNPACK delegates that give wrong numbers, most of them for an order.

ExecuTorch 1.5.1 writes a softmax along the last dimension, whichever order its value has. XNNPACK runs it
along the last dimension in memory: the channels in NHWC. If sizes of 1 make the order of a value ambiguous,
the writer takes it for NCHW. The runtime goes by the order in the file (#19153).

XNNPACK adds up means of integers and of halves in memory of its own. If the batch is dynamic, it may plan too
little of it, and then writes over other values.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from flatbuffers.number_types import Int16Flags

from dimorder.executorch.xnn_blob import (
    BACKEND_ID,
    EXTERNAL_INPUT,
    EXTERNAL_OUTPUT,
    TENSOR_DATATYPE,
    TENSOR_DIMS,
    TENSOR_EXTERNAL_ID,
    TENSOR_FLAGS,
    TRANSPOSE_PERM,
    FlatRecord,
    delegate_blob,
    nodes_of_graph,
    readable,
    root_of,
    tensors_of_graph,
)
from dimorder.runtime.kernels import (
    LAST,
    SAME,
    KernelCall,
    KernelVerdict,
    instructions,
    kernel_of,
    tensors_of,
)

# Positions of fields in their tables, in the order of schema.fbs.
_FLOAT32 = 1  # in XNNDatatype
_NODE_HANDLE = 2  # of an XNode, whose union takes two positions
_PAD_BEFORE, _PAD_AFTER = 0, 1
_INSERTED = 65535  # the handle of a node that stands for no operator of the network: a change of order
_NHWC, _NCHW = (0, 2, 3, 1), (0, 3, 1, 2)  # how an inserted transpose permutes a value into that order

# XNodeUnion, from its first member on.
_KINDS = (
    *("Add", "FullyConnected", "Softmax", "Sigmoid", "StaticTranspose", "Clamp", "Conv2d", "Div"),
    *("StaticResizeBilinear2D", "StaticConstantPad", "AvgPooling2d", "Minimum", "DepthwiseConv2d"),
    *("MaxPooling2d", "Multiply", "Subtract", "Floor", "Convert", "GlobalAvgPooling2d", "StaticReshape"),
    *("ArgMaxPooling2d", "SquareRoot", "Ceiling", "Hardswish", "LeakyReLU", "Maximum", "Negate", "Square"),
    *("ELU", "Abs", "PReLU", "Concatenate2", "Concatenate3", "Concatenate4", "StaticSlice"),
    *("ScaledDotProductAttention", "BatchMatrixMultiply", "Concatenate5", "ConvTranspose2d"),
    *("ReciprocalSquareRoot", "Log", "Gelu", "Tanh", "Exp", "Sin", "Copy", "Cos"),
)
_BINARY = ("Add", "Div", "Minimum", "Multiply", "Subtract", "Maximum")
_UNARY = (
    *("Sigmoid", "Clamp", "Floor", "Convert", "SquareRoot", "Ceiling", "Hardswish"),
    *("Negate", "Square", "Abs"),
    *("ReciprocalSquareRoot", "Log", "Gelu", "Tanh", "Exp", "Sin", "Copy", "Cos"),
)
_LAST_DIM = ("Softmax", "FullyConnected")  # they compute along the last dimension
_SILENT = ("Softmax", "StaticTranspose")  # their results have the sizes that the next node expects
_GIVE_NHWC = (
    *("Conv2d", "DepthwiseConv2d", "ConvTranspose2d", "AvgPooling2d", "MaxPooling2d", "ArgMaxPooling2d"),
    *("StaticResizeBilinear2D", "GlobalAvgPooling2d", "PReLU"),
)
_GIVE_NCHW = ("FullyConnected", "StaticReshape", "ScaledDotProductAttention")

# The positions of inputs and of the output in the table of a node.
_FIELDS: Mapping[str, tuple[tuple[int, ...], int]] = MappingProxyType(
    {
        **dict.fromkeys((*_BINARY, "BatchMatrixMultiply", "PReLU"), ((0, 1), 2)),
        **dict.fromkeys((*_UNARY, "Softmax", "GlobalAvgPooling2d"), ((0,), 1)),
        **dict.fromkeys(("Conv2d", "DepthwiseConv2d", "ConvTranspose2d"), ((15,), 18)),
        **dict.fromkeys(("AvgPooling2d", "MaxPooling2d"), ((10,), 11)),
        **dict.fromkeys(("LeakyReLU", "ELU"), ((1,), 2)),
        **dict.fromkeys(("StaticTranspose", "StaticReshape", "StaticResizeBilinear2D"), ((2,), 3)),
        **dict.fromkeys(("StaticConstantPad", "StaticSlice"), ((3,), 4)),
        **{f"Concatenate{count}": (tuple(range(1, count + 1)), 5) for count in (2, 3, 4)},
        "Concatenate5": ((1, 2, 3, 4, 7), 5),
        "ArgMaxPooling2d": ((6,), 7),
        "FullyConnected": ((0,), 3),
        "ScaledDotProductAttention": ((0, 1, 2), 5),
    }
)


class Misread(NamedTuple):
    """A call inside a delegate, and the verdict on it."""

    call: KernelCall
    verdict: KernelVerdict


class DelegateNode(NamedTuple):
    """A node of a delegate; `perm` is that of a transpose, and "inserted" one that only changes an order."""

    kind: str
    reads: list[int]
    gives: int
    perm: tuple[int, ...]
    is_inserted: bool
    table: FlatRecord


def misread_calls(tables: Any, plan: Any, where: str) -> list[Misread]:
    """Return the calls in a plan's XNNPACK delegates that give wrong numbers, or that fail.

    Args:
        tables: a program of stock ExecuTorch (executorch.exir.schema.Program). dimorder's own programs have
            softmaxes along channels on purpose.
        plan: one of its methods.
        where: the name of the file in errors.

    Raises:
        ContractError: if a delegate is damaged.
    """
    found: list[Misread] = []
    for call in instructions(plan):
        if kernel_of(plan, call) or plan.delegates[call.delegate_index].id != BACKEND_ID:
            continue
        arguments = [plan.values[index].val for arg in call.args for index in tensors_of(plan, arg)]
        blob = delegate_blob(tables, plan.delegates[call.delegate_index])
        with readable(blob, f"{where}, delegate {call.delegate_index} ({BACKEND_ID})"):
            found += _DelegateValues(root_of(blob), arguments).misread()
    return found


class _DelegateValues:
    """The values of a graph by their ids: which lie in NHWC, and which have other dims at run time.

    `summed` are those whose mean XNNPACK may add up in too little memory.
    """

    def __init__(self, graph: FlatRecord, arguments: Sequence[Any]) -> None:
        tensors = tensors_of_graph(graph)
        self.dims = {key: tensor.numbers(TENSOR_DIMS) for key, tensor in tensors.items()}
        self.nodes = delegate_nodes(graph)
        self.nhwc: set[int] = set()
        self.at_runtime: dict[int, tuple[int, ...]] = {}
        self.outputs: dict[int, tuple[int, ...]] = {}
        is_dynamic = any(argument.shape_dynamism.name != "STATIC" for argument in arguments)
        self.summed = {
            key
            for key, tensor in tensors.items()
            if is_dynamic
            and tensor.number(TENSOR_DATATYPE, Int16Flags) != _FLOAT32
            and self.dims[key][:1] != (1,)
        }
        for key, tensor in tensors.items():
            flags = tensor.number(TENSOR_FLAGS)
            if not flags & (EXTERNAL_INPUT | EXTERNAL_OUTPUT):
                continue
            argument = arguments[tensor.number(TENSOR_EXTERNAL_ID)]
            given = tuple(argument.sizes[dim] for dim in argument.dim_order)
            # A dynamic size may differ, which says nothing about the order.
            is_moved = given != self.dims[key] and sorted(given) == sorted(self.dims[key])
            if flags & EXTERNAL_OUTPUT:
                self.outputs[key] = given if is_moved else self.dims[key]
            elif is_moved:
                self.at_runtime[key] = given
            elif tuple(argument.dim_order) == _NHWC:
                self.nhwc.add(key)

    def misread(self) -> Iterator[Misread]:
        """Yield the calls that misread a value, in the graph's order."""
        for node in self.nodes:
            if self._is_nhwc(node):
                self.nhwc.add(node.gives)
                last_dims = self.dims[node.gives][2:]  # of NCHW and of NHWC
                if node.kind == "Softmax" and set(last_dims) != {1}:
                    yield _misread(node.kind, 4, LAST, "wrong")
                if node.kind == "GlobalAvgPooling2d" and node.gives in self.summed:
                    yield _misread(f"{node.kind} of a dynamic batch", 4, LAST, "wrong")
            moved = next((read for read in node.reads if read in self.at_runtime), None)
            if moved is None or node.kind == "StaticReshape":  # which reads row by row
                continue
            result = self._dims_at_runtime(node, moved)
            if result is not None:
                self.at_runtime[node.gives] = result
            else:
                verdict: KernelVerdict = "wrong" if node.kind in _SILENT else "refused"
                yield _misread(node.kind, len(self.dims[moved]), SAME, verdict)
        for key, given in self.outputs.items():
            if given != self.at_runtime.get(key, self.dims[key]):
                yield _misread("an output", len(given), SAME, "refused")

    def _is_nhwc(self, node: DelegateNode) -> bool:
        """Return whether a result lies in NHWC; ExecuTorch brings all operands of a node into one order."""
        if len(self.dims[node.gives]) != 4 or node.kind in _GIVE_NCHW:
            return False
        if node.is_inserted and node.perm in (_NHWC, _NCHW):
            return node.perm == _NHWC
        return node.kind in _GIVE_NHWC or not self.nhwc.isdisjoint(node.reads)

    def _dims_at_runtime(self, node: DelegateNode, moved: int) -> tuple[int, ...] | None:
        """Return the dims of the result if it is right although an operand has other dims, else None."""
        dims, at_runtime = self.dims[moved], self.at_runtime[moved]
        if node.perm:
            same = _sequence(dims, node.perm) == _sequence(at_runtime, node.perm)
            return tuple(at_runtime[dim] for dim in node.perm) if same else None
        touched, result = self._touched_dims(node, moved), self.dims[node.gives]
        if touched is None or len(result) != len(dims):
            return None
        if any(_ranks(dims)[dim] != _ranks(at_runtime)[dim] for dim in touched):
            return None
        return tuple(result[dim] if dim in touched else size for dim, size in enumerate(at_runtime))

    def _touched_dims(self, node: DelegateNode, moved: int) -> Collection[int] | None:
        """Return the dims of an operand that a node does not treat alike; None if that is not known."""
        rank, last = len(self.dims[moved]), len(self.dims[moved]) - 1
        if node.kind in _LAST_DIM:
            return {last}
        if node.kind in _UNARY:
            return ()
        if node.kind in _BINARY:
            others = [
                self.dims[read] for read in node.reads if self.at_runtime.get(read) != self.at_runtime[moved]
            ]
            sizes = (enumerate(other, rank - len(other)) for other in others)
            return {dim for dim, size in itertools.chain(*sizes) if size != 1}
        if node.kind == "StaticConstantPad":
            pads = zip(node.table.numbers(_PAD_BEFORE), node.table.numbers(_PAD_AFTER), strict=True)
            return {dim for dim, pad in enumerate(pads) if any(pad)}
        return None


def delegate_nodes(graph: FlatRecord) -> list[DelegateNode]:
    """Return the nodes of a graph in its order."""
    return [_node(*each) for each in nodes_of_graph(graph)]


def _node(number: int, table: FlatRecord, entry: FlatRecord) -> DelegateNode:
    """Return a node from its number in XNodeUnion, its own table, and its XNode."""
    if not 0 < number <= len(_KINDS):
        raise ValueError(f"a node of kind {number}")
    kind = _KINDS[number - 1]
    inputs, output = _FIELDS[kind]
    reads, gives = [table.number(place) for place in inputs], table.number(output)
    perm = table.numbers(TRANSPOSE_PERM) if kind == "StaticTranspose" else ()
    is_inserted = bool(perm) and entry.number(_NODE_HANDLE) == _INSERTED
    return DelegateNode(kind, reads, gives, perm, is_inserted, table)


def _misread(kind: str, rank: int, letter: str, verdict: KernelVerdict) -> Misread:
    return Misread(KernelCall(f"{kind} in {BACKEND_ID}", "", rank, letter), verdict)


def _ranks(dims: tuple[int, ...]) -> list[int | None]:
    """Return for each dimension its place among those of other sizes than 1; None for size 1."""
    count = itertools.count()
    return [None if size == 1 else next(count) for size in dims]


def _sequence(dims: tuple[int, ...], perm: tuple[int, ...]) -> list[int]:
    """Return the dimensions in the order in which a transpose puts them, without those of size 1."""
    ranks = _ranks(dims)
    return [rank for rank in (ranks[dim] for dim in perm) if rank is not None]
