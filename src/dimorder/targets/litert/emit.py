"""Write a physical program as a `.tflite`, with dense inputs and outputs in the contract's orders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.contract import Contract, TensorSpec
from dimorder.contract_file import CONTRACT_METHOD, SEAL_METHOD, constant_methods, seal
from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import where
from dimorder.targets.litert.ops import unsupported_value
from dimorder.targets.litert.writer import LiteRtValue, LiteRtWriter
from dimorder.targets.program_io import read_signature
from dimorder.targets.table import Table, View, is_getitem, whole

FIX = "replace it in the module, or choose another target"
BOUNDARY_FIX = "change its type or shape, or choose another target"


def write(program: ExportedProgram, contract: Contract, operators: Table) -> bytes:
    """Return the bytes of the `.tflite` of a physical program, sealed, with its contract inside.

    The file's inputs and outputs are those of the contract, in sequence and by name. Each is the dense tensor
    of shape `spec.dim_order.physical_shape(spec.shape)`.

    Raises `UnsupportedError` for a program with state, and for an operator that LiteRT lacks, with its name
    and source line.
    """
    signature = read_signature(program)
    for name in signature.state:
        found = "the program writes to it, and target litert has no state"
        raise UnsupportedError(f"buffer {name!r}", found, "make it an input and an output")
    for node in signature.inputs:
        if reason := operators.unfit(node.meta["val"], False):
            raise UnsupportedError(f"input {node.name!r}", reason, BOUNDARY_FIX)
    writer, values = LiteRtWriter(), dict[Node, Any](signature.constants)
    for node, spec in zip(signature.inputs, contract.inputs, strict=True):
        with _blamed(f"input {spec.name!r}", BOUNDARY_FIX):
            values[node] = _input(writer, node, spec)
    for node in program.graph.nodes:
        if node.op != "call_function" or node in values:
            continue
        writer.hint = node.name
        if is_getitem(node):
            values[node] = values[node.args[0]][node.args[1]]
            continue
        if reason := operators.supports(node, signature.constants):
            raise UnsupportedError(_place(node), reason, FIX)
        with _blamed(_place(node)):
            values[node] = operators.build(writer, node, values.__getitem__)
    for node, spec in zip(signature.outputs, contract.outputs, strict=True):
        writer.hint, held = spec.name, values[node]
        reason = None if isinstance(held, View) else unsupported_value(held)
        if reason:
            raise UnsupportedError(f"output {spec.name!r}", reason, BOUNDARY_FIX)
        with _blamed(f"output {spec.name!r}", BOUNDARY_FIX):
            view = held if isinstance(held, View) else whole(writer.constant(held))
            ordered = view.permute(tuple(spec.dim_order)) if spec.boundary == "logical" else view
            writer.output(spec.name, writer.dense(ordered))
    texts = constant_methods(contract)
    metadata = {name: texts[name].encode() for name in (CONTRACT_METHOD, SEAL_METHOD)}
    in_half = any(value.dtype == torch.float16 for value in signature.constants.values())
    return seal(writer.finish(metadata, in_half))


def _input(writer: LiteRtWriter, node: Node, spec: TensorSpec) -> View[LiteRtValue]:
    """Return the graph's input, in the shape of the program's signature."""
    shape: Any = spec.dim_order.physical_shape(spec.shape)
    dense = whole(writer.input(spec.name, shape, node.meta["val"].dtype))
    return dense.permute(tuple(spec.dim_order.inverse)) if spec.boundary == "logical" else dense


def _place(node: Node) -> str:
    return f"{node.target} ({where(node)})"


@contextmanager
def _blamed(place: str, fix: str = FIX) -> Iterator[None]:
    """Raise an error of the writer as one about the operator, input or output that it was writing."""
    try:
        yield
    except UnsupportedError as error:
        raise UnsupportedError(place, error.found, fix) from error
