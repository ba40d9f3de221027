"""Check the calls of a physical program: the target computes each, and each reads dense tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

from dimorder.errors import StageError
from dimorder.graph.exported import state_of
from dimorder.graph.interpreter import GraphRun
from dimorder.graph.nodes import operator_name, origin_of
from dimorder.graph.passes import FIX
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.problem import Extracted
from dimorder.ops.dialect import SLICE_CONSTANT

aten = torch.ops.aten


def refused_calls(
    program: ExportedProgram, extracted: Extracted, capabilities: Capabilities
) -> Iterator[tuple[Node, str]]:
    """Yield the calls of a physical program that the target neither computes nor leaves outside, and why.

    Calls of an input, an output or a conversion are not among them: extraction did not ask for these, and the
    emitter reports them to the user.
    """
    if capabilities.computes is None:
        return
    for node, why in _not_computed(program, extracted, capabilities):
        beside = why if capabilities.leaves is None else capabilities.leaves(node)
        if beside is not None:
            yield node, why if beside == why else f"{why}, and {beside}"


def require_capabilities(
    program: ExportedProgram, extracted: Extracted, capabilities: Capabilities, target: str
) -> None:
    """Check that the target computes or leaves each call, even without DIMORDER_CHECK.

    Raises:
        StageError: for the first call that the target refuses.
    """
    for node, why in refused_calls(program, extracted, capabilities):
        raise StageError(f"{node} ({operator_name(node)}) of the physical program for {target}", why, FIX)


def left_faults(program: ExportedProgram, extracted: Extracted, capabilities: Capabilities) -> Iterator[str]:
    for node, why in _not_computed(program, extracted, capabilities):
        if extracted.sites[origin_of(node)["site"]].node not in extracted.outside:
            yield f"{node} ({operator_name(node)}): left outside, where the plan has it inside: {why}"


def _not_computed(
    program: ExportedProgram, extracted: Extracted, capabilities: Capabilities
) -> Iterator[tuple[Node, str]]:
    """Yield the calls of operators that the target does not compute, and why."""
    constants = _constants(program)
    for node in program.graph.nodes:
        origin = origin_of(node)
        if node.op != "call_function" or node in constants or "site" not in origin or origin.get("converts"):
            continue
        if not extracted.sites[origin["site"]].implementations or capabilities.computes is None:
            continue
        why = capabilities.computes(node, constants)
        if why is not None:
            yield node, why


def _constants(program: ExportedProgram) -> Collection[Node]:
    """Return the nodes that are known ahead of time.

    Inputs and state are not known, nor are nodes that read them.
    """
    given = {s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT}
    given |= set(state_of(program))
    known: dict[Node, None] = {}
    for node in program.graph.nodes:
        made = node.op == "call_function" and all(operand in known for operand in node.all_input_nodes)
        made = made and node.target is not SLICE_CONSTANT
        if made or (node.op == "placeholder" and node.name not in given):
            known[node] = None
    return known


def run_densely(
    module: GraphModule, inputs: Sequence[torch.Tensor]
) -> tuple[Sequence[torch.Tensor], list[str]]:
    """Run a physical program, and return its results and its reads of tensors that are not dense."""
    run = _DensityRun(module)
    return run.run(*inputs), run.faults


class _DensityRun(GraphRun):
    """A run of a physical program that notes reads of tensors that are not row-major."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.faults: list[str] = []

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        self.faults += misread(node, result)
        return result


def misread(node: Node, value: Any) -> Iterator[str]:
    """Yield the readers of a value that is not row-major.

    Views may be copied, permuted and returned. A matmul may read a view that swaps the last two dimensions.
    """
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return
    swapped = value.dim() > 1 and value.mT.is_contiguous()
    for user in node.users:
        allowed = user.op == "output" or user.target in (aten.clone.default, aten.permute.default)
        if not allowed and not (swapped and user.target is aten.matmul.default):
            yield f"{user} ({operator_name(user)}) reads {node} ({operator_name(node)}), which is not dense"
