"""Write a physical program as a TOSA graph, with dense inputs and outputs in the contract's orders."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.contract import Contract
from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import is_getitem
from dimorder.graph.quantized import QUANTIZE
from dimorder.physical.annotations import FusedProgram
from dimorder.physical.fuse_quantized import fuse_quantized
from dimorder.targets.program_io import (
    BOUNDARY_FIX,
    FIX,
    Signature,
    as_called,
    as_promised,
    blamed,
    call_place,
    physical_shape,
    read_signature,
)
from dimorder.targets.table import Table, View, whole
from dimorder.targets.tosa.dtypes import AT_BOUNDARY
from dimorder.targets.tosa.integers.model import TosaModel
from dimorder.targets.tosa.ops import OPERATORS, unfit_input
from dimorder.targets.tosa.pointwise import bits_of_byte, byte_from_bits
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

FLOAT = "floats, where a graph of integers takes and gives integers"
QUANTISE_FIX = (
    "quantise its operands and its result, as dimorder.quantize does, replace it in the module, or choose "
    "another target"
)
ENDS_FIX = "quantise inputs first thing and outputs last thing, or choose another target"


def read_program(program: ExportedProgram, operators: Table) -> tuple[Signature, FusedProgram]:
    """Return the signature of a physical program, and what it computes in integers.

    Raises `UnsupportedError` for a program with state, for an operator that TOSA lacks, and for one that a
    quantised program would compute in floats. The error names the operator and its source line.
    """
    signature = read_signature(program)
    for name in signature.state:
        found = "the program writes to it, and a TOSA graph has no state"
        raise UnsupportedError(f"buffer {name!r}", found, "make it an input and an output")
    in_integers = QUANTIZE in operators.rows
    fix = QUANTISE_FIX if in_integers else FIX
    for node in signature.inputs:
        if reason := unfit_input(operators, node.meta["val"]):
            raise UnsupportedError(f"input {node.name!r}", reason, BOUNDARY_FIX)
        if in_integers and node.meta["val"].is_floating_point():
            raise UnsupportedError(f"input {node.name!r}", FLOAT, ENDS_FIX)
    calls = [n for n in program.graph.nodes if n.op == "call_function" and n not in signature.constants]
    for node in calls:
        reason = operators.supports(node, signature.constants)
        if reason:
            raise UnsupportedError(call_place(node), reason, fix)
    if not in_integers:
        return signature, FusedProgram()
    parts = dict.fromkeys(calls, 0)
    fused = fuse_quantized(
        program.graph, signature.constants, parts, operators.kernel_rules, lambda constant: None
    )
    for node, reason in fused.float_islands.items():
        raise UnsupportedError(call_place(node), reason, QUANTISE_FIX)
    return signature, fused


def write(
    program: ExportedProgram,
    contract: Contract,
    operators: Table = OPERATORS,
    writer: TosaWriter | None = None,
) -> tuple[bytes, Callable[[], TosaModel]]:
    """Return the TOSA 1.0 flatbuffer of a physical program, and a function that returns its integer model.

    The graph's inputs and outputs are those of the contract, in sequence. Each is the dense tensor of shape
    `spec.dim_order.physical_shape(spec.shape)`. 64-bit integers are INT32. Needs tosa-tools.

    Raises `UnsupportedError` as `read_program` does, before anything is written, and for what only the
    operands' values show.
    """
    signature, fused = read_program(program, operators)
    in_integers = QUANTIZE in operators.rows
    fix = QUANTISE_FIX if in_integers else FIX
    writer, values = writer or TosaWriter(), dict[Node, Any](signature.constants)
    rounded: dict[str, TosaValue] = {}
    for node, spec in zip(signature.inputs, contract.inputs, strict=True):
        with blamed(f"input {spec.name!r}", BOUNDARY_FIX):
            dtype = node.meta["val"].dtype
            value = writer.input(node.name, physical_shape(spec), AT_BOUNDARY[dtype])
            if dtype == torch.uint8 and not in_integers:
                value = byte_from_bits(writer, value)
            values[node] = as_called(whole(value), spec)
    for node in program.graph.nodes:
        if node.op != "call_function" or node in values:
            continue
        writer.hint, writer.annotation = node.name, fused.annotations.get(node)
        if is_getitem(node):
            values[node] = values[node.args[0]][node.args[1]]
            continue
        with blamed(call_place(node), fix):
            values[node] = operators.build(writer, node, values.__getitem__)
        writer.require_planned(values[node])
        if node.target is QUANTIZE:
            rounded[node.name] = values[node].value
    for node, spec in zip(signature.outputs, contract.outputs, strict=True):
        writer.hint = spec.name
        held = values[node]
        reason = None if isinstance(held, View) else unfit_input(operators, held)
        if reason:
            raise UnsupportedError(f"output {spec.name!r}", reason, BOUNDARY_FIX)
        if isinstance(held, View) and not isinstance(held.value, TosaValue):
            raise UnsupportedError(f"output {spec.name!r}", FLOAT, ENDS_FIX)
        with blamed(f"output {spec.name!r}", BOUNDARY_FIX):
            view = held if isinstance(held, View) else whole(writer.constant(held))
            value = writer.dense(as_promised(view, spec))
            in_bits = node.meta["val"].dtype == torch.uint8 and not in_integers
            writer.output(bits_of_byte(writer, value) if in_bits else value)
    return writer.finish(), partial(writer.model, rounded)
