"""Decides what an exported program keeps when parts of it are replaced: everything else."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram
from torch.fx import Graph


def remade(
    program: ExportedProgram, kind: type[ExportedProgram] = ExportedProgram, **parts: Any
) -> ExportedProgram:
    """A program of class `kind` with these parts, named as in its constructor, and the rest of `program`'s.

    >>> import torch
    >>> program = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),))
    >>> remade(program, constants={"c": torch.ones(5)}).constants["c"].shape, program.constants
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
    return kind(**{**kept, **parts})


def keep_names(copied: Graph, original: Graph) -> None:
    """Give the nodes of a copied graph their names again: the signature knows them by these.

    A copy shuns names of Python's own: an `input` becomes `input_1`.
    """
    for node, old in zip(copied.nodes, original.nodes, strict=True):
        node.name = old.name
