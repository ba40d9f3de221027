"""Find the state of an exported program: the buffers that it writes, each with memory of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputKind
from torch.fx import Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dimorder.errors import UnsupportedError
from dimorder.graph.construct import replace_parts
from dimorder.graph.elements import AT_THEIR_PLACES
from dimorder.graph.exported import copy_graph
from dimorder.graph.nodes import tensor_of


@dataclass(frozen=True)
class StateBuffer:
    """A buffer that a network writes: its name there, and its value before the first call."""

    name: str
    initial: torch.Tensor


def left_in_state(program: ExportedProgram) -> dict[str, Node]:
    """Return the last value of each buffer that a functional program writes, by the buffer's name."""
    ends: Any = program.graph.output_node().args[0]
    return {
        str(spec.target): end
        for spec, end in zip(program.graph_signature.output_specs, ends, strict=True)
        if spec.kind is OutputKind.BUFFER_MUTATION
    }


def drop_idle_writes(program: ExportedProgram) -> ExportedProgram:
    """Drop the writes of a functional program that leave a buffer as it is.

    `self.b = self.b.to(x.device)` is one.
    """
    old, left = program.graph_signature, left_in_state(program)
    names = old.inputs_to_buffers
    idle = {name for name, end in left.items() if names.get(_copied(end).name) == name}
    if not idle:
        return program
    kept = [s.kind is not OutputKind.BUFFER_MUTATION or s.target not in idle for s in old.output_specs]
    graph = copy_graph(program.graph)
    output: Any = graph.output_node()
    output.args = (tuple(compress(output.args[0], kept)),)
    graph.eliminate_dead_code()
    signature = ExportGraphSignature(old.input_specs, [*compress(old.output_specs, kept)])
    return replace_parts(program, graph=graph, graph_signature=signature)


def _copied(node: Node) -> Node:
    """Return the value that calls copy in its type."""
    while (
        node.target in AT_THEIR_PLACES and tensor_of(node.all_input_nodes[0]).dtype == tensor_of(node).dtype
    ):
        node = node.all_input_nodes[0]
    return node


def with_one_name(program: ExportedProgram) -> ExportedProgram:
    """Merge the tensors of a program that are also buffers into these buffers.

    torch.export takes a buffer for a constant if it reaches it by another way than the buffer's name. It does
    not decompose programs of which a written buffer has two names.
    """
    specs = program.graph_signature.input_specs
    memory = {spec.arg.name: _memory(program, spec) for spec in specs}
    buffers = {memory[spec.arg.name]: spec.arg.name for spec in specs if spec.kind is InputKind.BUFFER}
    buffers.pop(None, None)
    kinds = (InputKind.CONSTANT_TENSOR, InputKind.BUFFER)
    names = (spec.arg.name for spec in specs if spec.kind in kinds)
    same = {name: buffers[memory[name]] for name in names if buffers.get(memory[name], name) != name}
    if not same:
        return program
    graph = copy_graph(program.graph)
    nodes = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for name, buffer in same.items():
        nodes[name].replace_all_uses_with(nodes[buffer])
        graph.erase_node(nodes[name])
    kept = [spec for spec in specs if spec.arg.name not in same]
    signature = ExportGraphSignature(kept, program.graph_signature.output_specs)
    return replace_parts(program, graph=graph, graph_signature=signature)


def _memory(program: ExportedProgram, spec: InputSpec) -> Any:
    """Return what identifies a tensor of the program, or None if it has no elements."""
    name = spec.target or ""
    tensor = program.state_dict.get(name, program.constants.get(name))
    if not _has_memory(tensor):
        return None
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _has_memory(tensor: Any) -> TypeGuard[torch.Tensor]:
    """Return whether a tensor has elements of its own.

    A sparse tensor has none, and neither has a tensor of tensors (torchao's integers).
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        return False
    return tensor.numel() > 0 and not is_traceable_wrapper_subclass(tensor)


def require_apart(program: ExportedProgram) -> None:
    """Refuse buffers that share memory if the program writes one of them.

    Raises:
        UnsupportedError: Two buffers share memory, and torch.export takes them for separate ones.
    """
    tensors = {**program.state_dict, **program.constants}
    of: dict[int, list[tuple[str, Node]]] = {}
    for node, spec in zip(program.graph.nodes, program.graph_signature.input_specs, strict=False):
        tensor = tensors.get(spec.target or "")
        if _has_memory(tensor) and node.users:
            of.setdefault(tensor.untyped_storage().data_ptr(), []).append((str(spec.target), node))
    for sharers in of.values():
        written = next((name for name, node in sharers if any(map(_writes, node.users))), None)
        if written is not None and len(sharers) > 1:
            other = next(name for name, _ in sharers if name != written)
            raise UnsupportedError(
                f"buffer {written}, which the network writes",
                f"it shares its memory with {other}",
                "register one of the two, and view it in forward",
            )


def _writes(node: Node) -> bool:
    """Return whether a call writes to its first operand, or to a view of it."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return node.target._schema.is_mutable or (node.target.is_view and any(map(_writes, node.users)))


@runtime_checkable
class StatefulRun(Protocol):
    """A program as a function of its tensors that keeps a state from call to call."""

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...

    def reset(self) -> None:
        """Restore the state from before the first call."""


def restart(run: object) -> None:
    """Reset what keeps a state."""
    assert isinstance(run, StatefulRun), f"{run} cannot begin anew"
    run.reset()


@contextmanager
def restored(network: torch.nn.Module, state: Sequence[StateBuffer]) -> Iterator[None]:
    """Put a network into its initial state, and restore its present state afterwards."""
    buffers = {buffer.name: network.get_buffer(buffer.name) for buffer in state}
    before = {name: tensor.detach().clone() for name, tensor in buffers.items()}
    with torch.no_grad():
        for buffer in state:
            buffers[buffer.name].copy_(buffer.initial)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in buffers.items():
                owner, _, leaf = name.rpartition(".")
                setattr(network.get_submodule(owner), leaf, tensor.copy_(before[name]))
