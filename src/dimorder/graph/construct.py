"""Construct exported programs, of a graph whose nodes have their values, or of another program's parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._export.verifier import TrainingIRVerifier
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from dimorder.graph.branches import Branches, has_branches
from dimorder.graph.nodes import VALUE


class _Verifier(TrainingIRVerifier):
    """torch.export's verifier, which also accepts calls of `Branches`."""

    dialect = "DIMORDER"

    def allowed_op_types(self) -> tuple[type[Any], ...]:
        return (*super().allowed_op_types(), Branches)


def program_of_values(
    root: torch.nn.Module,
    graph: Graph,
    examples: Sequence[torch.Tensor],
    state: Mapping[str, torch.Tensor] = MappingProxyType({}),
    buffers: Mapping[str, Node] = MappingProxyType({}),
    ranges: Mapping[Any, Any] = MappingProxyType({}),
    kind: type[ExportedProgram] = ExportedProgram,
) -> ExportedProgram:
    """Return the exported program of a graph whose nodes have their values already.

    Args:
        root: The modules that the graph reads.
        graph: The graph, which returns calls' results.
        examples: One tensor for each input.
        state: The buffers.
        buffers: The placeholder of each buffer.
        ranges: The ranges of the dynamic sizes.
        kind: The class of the program.

    Returns:
        A program that asks nothing of its sizes.
    """
    results: Any = graph.output_node().args[0]
    inputs = [n for n in graph.find_nodes(op="placeholder") if n not in buffers.values()]
    returned, taken = ([TensorArgument(node.name) for node in nodes] for nodes in (results, inputs))
    specs = [
        InputSpec(InputKind.BUFFER, TensorArgument(node.name), name, persistent=True)
        for name, node in buffers.items()
    ]
    specs += [InputSpec(InputKind.USER_INPUT, argument, None) for argument in taken]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, result, None) for result in returned]
    call: tuple[tuple[torch.Tensor, ...], dict[str, Any]] = ((*examples,), {})
    return _constructed(
        kind,
        [],
        root=root,
        graph=graph,
        graph_signature=ExportGraphSignature(specs, outputs),
        state_dict=dict(state),
        range_constraints=dict(ranges),
        module_call_graph=call_graph(call, len(returned)),
        example_inputs=call,
        verifiers=[_Verifier if has_branches(graph) else TrainingIRVerifier],
    )


def call_graph(call: Any, results: int) -> list[ModuleCallEntry]:
    """Return how a program with so many results is called; as torch.export does, without its nodes' names."""
    trees = pytree.tree_structure(call), pytree.tree_structure((0,) * results)
    return [ModuleCallEntry("", ModuleCallSignature([], [], *trees))]


def replace_parts(
    program: ExportedProgram, kind: type[ExportedProgram] = ExportedProgram, **parts: Any
) -> ExportedProgram:
    """Return a program of class `kind` with other parts, named as in the constructor of `ExportedProgram`.

    >>> import torch
    >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),))
    >>> replace_parts(program, constants={"c": torch.ones(5)}).constants["c"].shape, program.constants
    (torch.Size([5]), {})
    """
    kept: dict[str, Any] = {
        "root": program.graph_module,
        "graph": program.graph,
        "graph_signature": program.graph_signature,
        "state_dict": program.state_dict,
        "range_constraints": program.range_constraints,
        "module_call_graph": program.module_call_graph,
        "example_inputs": program.example_inputs,
        "constants": program.constants,
        "verifiers": program.verifiers,
    }
    return _constructed(kind, program._guards_code, **{**kept, **parts})


def _constructed(
    kind: type[ExportedProgram], guards: list[str], graph: Graph, **parts: Any
) -> ExportedProgram:
    """Return a program that asks `guards` of its sizes.

    Its constructor would write all that was ever asked in the mode of its values. For a Swin with dynamic
    sizes that takes 0.3 seconds, in dozens of programs.
    """
    mode = detect_fake_mode([node.meta.get(VALUE) for node in graph.nodes])
    sizes = None if mode is None else mode.shape_env
    asked = [] if sizes is None else sizes.guards
    try:
        if sizes is not None:
            sizes.guards = []
        program = kind(graph=graph, **parts)
    finally:
        if sizes is not None:
            sizes.guards = asked
    program._guards_code = guards
    return program
