"""Turns a physical program into a TOSA graph: its inputs and outputs are dense, in the contract's orders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from dimorder.errors import UnsupportedError
from dimorder.program.capture import where
from dimorder.program.contract import Contract, TensorSpec
from dimorder.targets.table import View, is_getitem, whole
from dimorder.targets.tosa.ops import OPERATORS, unsupported_value
from dimorder.targets.tosa.writer import DTYPES, GraphWriter, Value

FIX = "replace it in the module, or choose another target"
BOUNDARY_FIX = "change its type or shape, or choose another target"


def write(program: ExportedProgram, contract: Contract) -> bytes:
    """The TOSA 1.0 flatbuffer of a physical program.

    Its inputs and outputs are those of the contract, in order, each the dense tensor of shape
    `spec.dim_order.physical_shape(spec.shape)`; 64-bit integers are INT32. Needs tosa-tools.

    Raises `UnsupportedError` for a program with state, and for an operator that TOSA lacks: before anything
    is written where the call alone tells, and with its name and source line in any case.
    """
    signature = _read(program)
    for node in program.graph.nodes:
        if node.op == "call_function" and node not in signature.constants:
            reason = OPERATORS.supports(node, signature.constants)
            if reason:
                raise UnsupportedError(_place(node), reason, FIX)
    writer, values = GraphWriter(), dict[Node, Any](signature.constants)
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
        with _blamed(_place(node)):
            values[node] = OPERATORS.build(writer, node, values.__getitem__)
    for node, spec in zip(signature.outputs, contract.outputs, strict=True):
        writer.hint = spec.name
        held = values[node]
        with _blamed(f"output {spec.name!r}", BOUNDARY_FIX):
            view = held if isinstance(held, View) else whole(writer.constant(held))
            writer.output(
                writer.dense(view.permute(tuple(spec.dim_order)) if spec.boundary == "logical" else view)
            )
    return writer.finish()


@dataclass
class _Signature:
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    constants: dict[Node, Tensor] = field(default_factory=dict)


def _read(program: ExportedProgram) -> _Signature:
    nodes: Mapping[str, Node] = {node.name: node for node in program.graph.nodes}
    held = {**program.constants, **program.state_dict}
    signature = _Signature()
    for spec in program.graph_signature.input_specs:
        node = nodes.get(spec.arg.name)
        if spec.kind is InputKind.USER_INPUT and node is not None:
            reason = unsupported_value(node.meta.get("val"))
            if reason:
                raise UnsupportedError(f"input {node.name!r}", reason, BOUNDARY_FIX)
            signature.inputs.append(node)
        elif node is not None and spec.target in held:
            signature.constants[node] = held[spec.target].detach()
        else:
            kind = spec.kind.name.lower()
            raise UnsupportedError(f"input {spec.arg.name!r}", kind, "remove it from the program")
    for result in program.graph_signature.output_specs:
        if result.kind is not OutputKind.USER_OUTPUT:
            found = f"{result.kind.name.lower()} of {result.target!r}: the program has state"
            raise UnsupportedError(f"output {result.arg.name!r}", found, "make it an input and an output")
        if result.arg.name not in nodes:
            raise UnsupportedError(f"output {result.arg.name!r}", "no tensor", "return tensors only")
        signature.outputs.append(nodes[result.arg.name])
    _evaluate_constants(program, signature.constants)
    return signature


def _evaluate_constants(program: ExportedProgram, constants: dict[Node, Tensor]) -> None:
    """Compute ahead of time what reads constants alone."""
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        random = torch.Tag.nondeterministic_seeded in node.target.tags
        if random or not isinstance(node.meta.get("val"), Tensor):
            continue
        if all(operand in constants for operand in node.all_input_nodes):
            arguments = torch.fx.map_arg((node.args, node.kwargs), constants.__getitem__)
            constants[node] = node.target(*arguments[0], **arguments[1])


def _input(writer: GraphWriter, node: Node, spec: TensorSpec) -> View[Value]:
    """The graph's input, seen as the program's signature shows it."""
    shape: Sequence[Any] = spec.dim_order.physical_shape(spec.shape)
    dense = whole(writer.input(node.name, shape, DTYPES[node.meta["val"].dtype]))
    return dense.permute(tuple(spec.dim_order.inverse)) if spec.boundary == "logical" else dense


def _place(node: Node) -> str:
    return f"{node.target} ({where(node)})"


@contextmanager
def _blamed(place: str, fix: str = FIX) -> Iterator[None]:
    """What the writer refuses is told of the operator, input or output that it was asked to write."""
    try:
        yield
    except UnsupportedError as error:
        raise UnsupportedError(place, error.found, fix) from error
