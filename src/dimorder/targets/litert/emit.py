"""Write a physical program as a `.tflite`, with dense inputs and outputs in the contract's orders."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.contract import Contract
from dimorder.contract_file import CONTRACT_METHOD, SEAL_METHOD, constant_methods, seal
from dimorder.errors import UnsupportedError
from dimorder.targets.litert.ops import unsupported_value
from dimorder.targets.litert.writer import LiteRtWriter
from dimorder.targets.program_io import (
    BOUNDARY_FIX,
    FIX,
    as_called,
    as_promised,
    blamed,
    call_place,
    physical_shape,
    read_signature,
)
from dimorder.targets.table import Table, View, is_getitem, whole


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
        with blamed(f"input {spec.name!r}", BOUNDARY_FIX):
            dtype = node.meta["val"].dtype
            values[node] = as_called(writer.input(spec.name, physical_shape(spec), dtype), spec)
    for node in program.graph.nodes:
        if node.op != "call_function" or node in values:
            continue
        writer.hint = node.name
        if is_getitem(node):
            values[node] = values[node.args[0]][node.args[1]]
            continue
        if reason := operators.supports(node, signature.constants):
            raise UnsupportedError(call_place(node), reason, FIX)
        with blamed(call_place(node), FIX):
            values[node] = operators.build(writer, node, values.__getitem__)
    for node, spec in zip(signature.outputs, contract.outputs, strict=True):
        writer.hint, held = spec.name, values[node]
        reason = None if isinstance(held, View) else unsupported_value(held)
        if reason:
            raise UnsupportedError(f"output {spec.name!r}", reason, BOUNDARY_FIX)
        with blamed(f"output {spec.name!r}", BOUNDARY_FIX):
            view = held if isinstance(held, View) else whole(writer.constant(held))
            writer.output(spec.name, writer.dense(as_promised(view, spec)))
    texts = constant_methods(contract)
    metadata = {name: texts[name].encode() for name in (CONTRACT_METHOD, SEAL_METHOD)}
    in_half = any(value.dtype == torch.float16 for value in signature.constants.values())
    return seal(writer.finish(metadata, in_half))
