"""Write a physical program as a TOSA graph, with dense inputs and outputs in the contract's orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.contract import Contract, TensorSpec
from dimorder.errors import UnsupportedError, UsageError
from dimorder.graph.nodes import where
from dimorder.graph.quantized import QUANTIZE
from dimorder.targets.program_io import read_signature
from dimorder.targets.table import Table, View, is_getitem, whole
from dimorder.targets.tosa.dtypes import DTYPES
from dimorder.targets.tosa.integers.model import TosaModel
from dimorder.targets.tosa.ops import OPERATORS, unsupported_value
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

FIX = "replace it in the module, or choose another target"
FLOAT = "floats, where a graph of integers takes and gives integers"
QUANTISE_FIX = "quantise its operands and its result, replace it in the module, or choose another target"
ENDS_FIX = "quantise inputs first thing and outputs last thing, or choose another target"
BOUNDARY_FIX = "change its type or shape, or choose another target"


def write(
    program: ExportedProgram,
    contract: Contract,
    operators: Table = OPERATORS,
    writer: TosaWriter | None = None,
) -> tuple[bytes, Callable[[], TosaModel]]:
    """Return the TOSA 1.0 flatbuffer of a physical program, and a function that returns its integer model.

    The graph's inputs and outputs are those of the contract, in sequence. Each is the dense tensor of shape
    `spec.dim_order.physical_shape(spec.shape)`. 64-bit integers are INT32. Needs tosa-tools.

    Raises `UnsupportedError` for a program with state, and for an operator that TOSA lacks, with its name and
    source line. If the call alone shows the lack, the error comes before anything is written.
    """
    signature = read_signature(program)
    for name in signature.state:
        found = "the program writes to it, and a TOSA graph has no state"
        raise UnsupportedError(f"buffer {name!r}", found, "make it an input and an output")
    in_integers = QUANTIZE in operators.rows
    fix = QUANTISE_FIX if in_integers else FIX
    for node in signature.inputs:
        reason = operators.unfit(node.meta["val"], False)
        if reason:
            raise UnsupportedError(f"input {node.name!r}", reason, BOUNDARY_FIX)
        if in_integers and node.meta["val"].is_floating_point():
            raise UnsupportedError(f"input {node.name!r}", FLOAT, ENDS_FIX)
    for node in program.graph.nodes:
        if node.op == "call_function" and node not in signature.constants:
            reason = operators.supports(node, signature.constants)
            if reason:
                raise UnsupportedError(_place(node), reason, fix)
    writer, values = writer or TosaWriter(), dict[Node, Any](signature.constants)
    rounded: dict[str, TosaValue] = {}
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
        with _blamed(_place(node), fix):
            values[node] = operators.build(writer, node, values.__getitem__)
        if node.target is QUANTIZE:
            rounded[node.name] = values[node].value
    for node, spec in zip(signature.outputs, contract.outputs, strict=True):
        writer.hint = spec.name
        held = values[node]
        reason = None if isinstance(held, View) else unsupported_value(held)
        if reason:
            raise UnsupportedError(f"output {spec.name!r}", reason, BOUNDARY_FIX)
        if isinstance(held, View) and not isinstance(held.value, TosaValue):
            raise UnsupportedError(f"output {spec.name!r}", FLOAT, ENDS_FIX)
        with _blamed(f"output {spec.name!r}", BOUNDARY_FIX):
            view = held if isinstance(held, View) else whole(writer.constant(held))
            writer.output(
                writer.dense(view.permute(tuple(spec.dim_order)) if spec.boundary == "logical" else view)
            )
    return writer.finish(), partial(writer.model, rounded)


def _input(writer: TosaWriter, node: Node, spec: TensorSpec) -> View[TosaValue]:
    """Return the graph's input, in the shape of the program's signature."""
    shape: Sequence[Any] = spec.dim_order.physical_shape(spec.shape)
    dtype = DTYPES.get(node.meta["val"].dtype, "INT8")  # also unsigned ones
    dense = whole(writer.input(node.name, shape, dtype))
    return dense.permute(tuple(spec.dim_order.inverse)) if spec.boundary == "logical" else dense


def _place(node: Node) -> str:
    return f"{node.target} ({where(node)})"


@contextmanager
def _blamed(place: str, fix: str = FIX) -> Iterator[None]:
    """Raise an error of the writer as one about the operator, input or output that it was writing."""
    try:
        yield
    except (UnsupportedError, UsageError) as error:
        raise UnsupportedError(place, error.found, fix) from error
