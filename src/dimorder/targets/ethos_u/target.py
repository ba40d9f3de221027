"""Targets ethos-u*: what an Ethos-U computes of a quantised network, and its place in the pipeline.

Importing this takes neither executorch nor Vela; emitting does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.contract import Contract
from dimorder.errors import UnsupportedError
from dimorder.lowering.ability import Ability
from dimorder.lowering.network_plan import Place
from dimorder.lowering.operators.quantisation import QUANTIZE
from dimorder.lowering.verify import Run
from dimorder.targets.base import Target, WholeArtifact
from dimorder.targets.ethos_u import INSTALL, is_u85, named
from dimorder.targets.ethos_u.constraints import require_compilable
from dimorder.targets.npu_report import NpuReport
from dimorder.targets.signature import read_signature
from dimorder.targets.tosa.target import TARGET as TOSA
from dimorder.targets.tosa.target import TosaArtifact, emit_integers

# Of a product whose first matrix is constant Ethos-U55 and U65 compute each element by itself.
_CUT_UP = frozenset({"aten.linear/features first"})
FLOAT = (
    "an Ethos-U computes integers alone: quantise the network first (dimorder.quantize, or --quantize int8)"
)


@dataclass(frozen=True)
class NpuPte(WholeArtifact):
    """A sealed `.pte` with its contract inside. It runs on a board alone: `run` is its TOSA graph on Arm's
    reference model, which Vela's program gives bit for bit."""

    data: bytes
    graph: TosaArtifact
    npu: NpuReport
    delegates: int = 1

    @property
    def exactly(self) -> Run | None:
        return self.graph.exactly

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.graph.run(inputs)


_PASSED_ON = {
    QUANTIZE,
    torch.ops.aten.view.default,
    torch.ops.aten.permute.default,
    torch.ops.aten.clone.default,
}


def _computing(node: Node) -> Node:
    """What computes the numbers that a node quantises, or shows in another shape."""
    while node.target in _PASSED_ON and node.all_input_nodes[0].op == "call_function":
        node = node.all_input_nodes[0]
    return node


def emit(
    program: ExportedProgram,
    contract: Contract,
    accelerator: str,
    system_config: str | None,
    memory_mode: str | None,
) -> NpuPte:
    """Raises `UnsupportedError` for what has no form in integers, and for what Vela does not compile."""
    from dimorder.targets.ethos_u.pte import packed
    from dimorder.targets.ethos_u.vela import compiled

    for kind, specs in (("input", contract.inputs), ("output", contract.outputs)):
        for spec in specs:
            if spec.dtype == "int64":
                fix = "pass and return what is quantised: take the largest of scores on the CPU"
                raise UnsupportedError(f"{kind} {spec.name!r}", "int64, where an Ethos-U has 32 bits", fix)
    graph = emit_integers(program, contract, has_free_products=is_u85(accelerator))
    assert graph.model is not None
    written_for = {node.name: node for node in program.graph.nodes}
    written_for |= zip((spec.name for spec in contract.outputs), read_signature(program).outputs, strict=True)

    def place_of(tensor: str) -> Place:
        """The writer calls a tensor after the node or the output that it is written for; Vela makes more."""
        node = written_for.get(tensor.rsplit(".", 1)[0])
        return Place("a copy", "made by Vela") if node is None else Place.of(_computing(node))

    require_compilable(graph.model, accelerator, place_of)
    made = compiled(graph.data, accelerator, place_of, system_config=system_config, memory_mode=memory_mode)
    return NpuPte(packed(made, contract), graph, made.report)


def target(accelerator: str, *, system_config: str | None = None, memory_mode: str | None = None) -> Target:
    """The target for an accelerator, in a system: sections of Vela's `Arm/vela.ini`, by default ExecuTorch's.

    >>> target("ethos-u85-256", memory_mode="Dedicated_Sram").name
    'ethos-u85-256'
    """
    assert TOSA.quantised is not None
    ability = TOSA.quantised.ability
    if not is_u85(accelerator):
        ability = replace(ability, declines=tuple(each | _CUT_UP for each in ability.declines))
    made = replace(
        TOSA.quantised,
        contenders={"cycles": ("bytes", "count")},
        name=accelerator,
        suffix=".pte",
        ability=ability,
        emit=partial(emit, accelerator=accelerator, system_config=system_config, memory_mode=memory_mode),
        beside=(),
        load=None,
        check=None,
        install=INSTALL,
    )
    floats = Ability(lambda call, constants: FLOAT, takes=lambda value: FLOAT)
    return replace(made, ability=floats, quantised=made, configured=partial(target, accelerator))


def __getattr__(attribute: str) -> Target:
    accelerator = named(attribute)
    if accelerator is None:
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
    return target(accelerator)
