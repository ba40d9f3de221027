"""Read the inputs, outputs and constants of a physical program for an emitter, and name them in errors.

An operator that reads only constants is evaluated here, and so becomes a constant itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from dimorder.capture.fold import evaluated
from dimorder.capture.state import left_in_state
from dimorder.contract import Contract, TensorSpec
from dimorder.errors import UnsupportedError, UsageError
from dimorder.graph.exported import state_of
from dimorder.graph.nodes import where
from dimorder.targets.table import View

FIX = "replace it in the module, or choose another target"
BOUNDARY_FIX = "change its type or shape, or choose another target"


def refuse_empty_outputs(contract: Contract) -> None:
    """Raise `UnsupportedError` for an output without elements, with which some runtimes load no file."""
    for spec in contract.outputs:
        if 0 in spec.shape:
            raise UnsupportedError(f"output {spec.name!r}", f"the empty shape {spec.shape}", BOUNDARY_FIX)


Shown = TypeVar("Shown", View[Any], Tensor)


@dataclass
class Signature:
    """The input and output nodes of a program, and the value of each constant node.

    `state` maps the names of the buffers that the program writes to their initial values. A call reads each
    buffer from one of the first `inputs`, and writes it to one of the first `outputs`, in this sequence.
    """

    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    constants: dict[Node, Tensor] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)


def read_signature(program: ExportedProgram) -> Signature:
    """Return the signature, with every operator evaluated that reads only constants.

    Raises `UnsupportedError` for an input or output that is not a tensor or has a dynamic size, and for an
    input that is written.
    """
    signature, written = Signature(), state_of(program)
    nodes = {node.name: node for node in program.graph.nodes}
    held = {**program.constants, **program.state_dict}
    for spec in program.graph_signature.input_specs:
        node = nodes.get(spec.arg.name)
        if spec.kind is InputKind.USER_INPUT:
            signature.inputs.append(_static(node, spec.arg.name))
        elif node is not None and spec.arg.name in written:
            signature.inputs.insert(len(signature.state), node)
            name = written[spec.arg.name]
            signature.state[name] = held[name].detach()
        elif node is not None and spec.target in held:
            signature.constants[node] = held[spec.target].detach()
        else:
            kind = spec.kind.name.lower()
            raise UnsupportedError(f"input {spec.arg.name!r}", kind, "remove it from the program")
    left = left_in_state(program)
    signature.outputs += [left[name] for name in signature.state]
    for result in program.graph_signature.output_specs:
        if result.kind is OutputKind.BUFFER_MUTATION:
            continue
        if result.kind is not OutputKind.USER_OUTPUT:
            found = f"{result.kind.name.lower()} of {result.target!r}: the program writes to it"
            raise UnsupportedError(
                f"output {result.arg.name!r}", found, "make what it writes an output, or a buffer"
            )
        if result.arg.name not in nodes:
            raise UnsupportedError(f"output {result.arg.name!r}", "no tensor", "return tensors only")
        signature.outputs.append(nodes[result.arg.name])
    signature.constants |= evaluated(program.graph, signature.constants)
    return signature


def _static(node: Node | None, name: str) -> Node:
    value = None if node is None else node.meta.get("val")
    if node is None or not isinstance(value, Tensor):
        raise UnsupportedError(
            f"input {name!r}", "no tensor", "fix it in the module: only tensors are passed"
        )
    if not all(isinstance(size, int) for size in value.shape):
        found = f"the symbolic shape {tuple(value.shape)}"
        raise UnsupportedError(f"input {name!r}", found, "lower it once for each fixed shape that you need")
    return node


def is_channels_last(value: Tensor) -> bool:
    """Return whether a 4-D value is channels-last and its strides are not ambiguous."""
    if value.ndim != 4:
        return False
    _, c, h, w = value.shape
    if c == 1 or h == w == 1:  # contiguous strides are the same order
        return False
    return bool(value.is_contiguous(memory_format=torch.channels_last))


def empty(value: Tensor, channels_last: bool) -> Tensor:
    """Return a real tensor of the value's shape, in one of the two orders that a boundary has."""
    dense = torch.empty(tuple(value.shape), dtype=value.dtype)
    return dense.to(memory_format=torch.channels_last) if channels_last else dense


def physical_shape(spec: TensorSpec) -> tuple[Any, ...]:
    """Return the shape of the dense tensor that the contract promises."""
    return tuple(spec.dim_order.physical_shape(spec.shape))


def as_called(dense: Shown, spec: TensorSpec) -> Shown:
    """Return a dense input or output of the contract in the shape of the program's signature."""
    return dense.permute(tuple(spec.dim_order.inverse)) if spec.boundary == "logical" else dense


def as_promised(value: Shown, spec: TensorSpec) -> Shown:
    """Return an input or output of the program in the order that the contract promises."""
    return value.permute(tuple(spec.dim_order)) if spec.boundary == "logical" else value


def call_place(node: Node) -> str:
    """Return where an error about a call happened."""
    return f"{node.target} ({where(node)})"


@contextmanager
def blamed(place: str, fix: str) -> Iterator[None]:
    """Raise an error of a writer as one about the operator, input or output that it was writing."""
    try:
        yield
    except (UnsupportedError, UsageError) as error:
        raise UnsupportedError(place, error.found, fix) from error
