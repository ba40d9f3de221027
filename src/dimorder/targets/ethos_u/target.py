"""Define targets ethos-u*: the capabilities of an Ethos-U for quantised networks, its costs and files.

The import needs neither executorch nor Vela; emitting does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NoReturn

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.contract import Contract
from dimorder.errors import UnsupportedError
from dimorder.graph.elements import Elements
from dimorder.graph.nodes import args_of
from dimorder.graph.quantized import QUANTIZE
from dimorder.graph.tracing import shape_of
from dimorder.ops.dialect import OPS
from dimorder.ops.table import elements_of
from dimorder.plans.explanation import Place
from dimorder.targets.base import Artifact, Target, TargetFiles
from dimorder.targets.ethos_u import accelerator_named, info, is_u85
from dimorder.targets.ethos_u.constraints import require_compilable
from dimorder.targets.ethos_u.estimates import estimated_costs
from dimorder.targets.ethos_u.recipes import RECIPES
from dimorder.targets.npu_report import NpuReport
from dimorder.targets.program_io import read_signature
from dimorder.targets.tosa.integers.forms import FORMS, Forms
from dimorder.targets.tosa.integers.ops import OPERATORS as INTEGERS
from dimorder.targets.tosa.target import TARGET as TOSA
from dimorder.targets.tosa.target import TosaArtifact, emit_integers
from dimorder.verification.network_calls import Run

# For a matmul whose first matrix is constant, Ethos-U55 and U65 compute each element separately.
_WEIGHTS_FIRST = frozenset({"aten.linear/features first"})
# Vela writes the sums of a TRANSPOSE_CONV2D separately and rescales them one by one. Convolutions of its
# phases take a half to a sixth of the cycles.
_IN_PHASES = frozenset({"aten.convolution/quantized, transposed in phases"})
OF_U85 = Forms(permutes_by_convolution=True, cuts_convolutions=True)
# U65 has the form of U55.
_LACKS = ("multiplies_constants", "resizes", "long_strides", "repeats_both", "reverses_last")
OF_U55 = replace(OF_U85, **dict.fromkeys(_LACKS, False))
FLOAT = "a network that is not quantised, where an Ethos-U computes integers alone"


@dataclass(frozen=True)
class NpuPte(Artifact):
    """A sealed `.pte` with its contract inside.

    It runs only on a board. `run` is its TOSA graph on Arm's reference model, which Vela's program matches
    bit for bit.
    """

    data: bytes = field(repr=False)
    graph: TosaArtifact = field(repr=False)
    npu: NpuReport
    delegates: int = 1
    stand_in: str = "TOSA graph"

    @cached_property
    def reference_run(self) -> Run | None:
        return self.graph.reference_run

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.graph.run(inputs)


def _computing(node: Node) -> Node:
    """Return the node that computes the numbers which a node quantises, or shows in another shape."""
    while node.target is QUANTIZE or elements_of(node.target) is Elements.RELABELS:
        if node.all_input_nodes[0].op != "call_function":
            break
        node = node.all_input_nodes[0]
    return node


def emit(
    program: ExportedProgram,
    contract: Contract,
    accelerator: str,
    system_config: str | None,
    memory_mode: str | None,
    tries_forms: bool = False,
) -> NpuPte:
    """Emit a `.pte`.

    `tries_forms` lets Vela compile other forms of the graph too, and keeps the one of fewer cycles.

    Raises `UnsupportedError` for an operator that has no form in integers, or that Vela does not compile.
    """
    from dimorder.targets.ethos_u.pte import pack_pte
    from dimorder.targets.ethos_u.vela import Compiled, compile_by_vela

    for kind, specs, fix in (
        (
            "input",
            contract.inputs,
            "give the example as int32: x.to(torch.int32); the module may take x.long()",
        ),
        ("output", contract.outputs, "return it as int32: y.to(torch.int32)"),
    ):
        for spec in specs:
            if spec.dtype == "int64":
                raise UnsupportedError(f"{kind} {spec.name!r}", "int64, where an Ethos-U has 32 bits", fix)
    written_for = {node.name: node for node in program.graph.nodes}
    written_for |= zip((spec.name for spec in contract.outputs), read_signature(program).outputs, strict=True)

    def place_of(tensor: str) -> Place:
        """Return the place of a tensor, which the writer names after its node or output.

        Vela adds more tensors.
        """
        node = written_for.get(tensor.rsplit(".", 1)[0])
        return Place("a copy", "made by Vela") if node is None else Place.of(_computing(node))

    def compile_graph(graph: TosaArtifact) -> Compiled:
        assert graph.model is not None
        require_compilable(graph.model, accelerator, place_of)
        return compile_by_vela(
            graph.data, accelerator, place_of, system_config=system_config, memory_mode=memory_mode
        )

    forms = OF_U85 if is_u85(accelerator) else OF_U55
    graph = emit_integers(program, contract, forms=forms)
    made, seen = compile_graph(graph), {graph.data}
    for name in FORMS if tries_forms else ():
        other = emit_integers(program, contract, forms=forms.flipped(name))
        if other.data in seen:
            continue
        seen.add(other.data)
        with suppress(UnsupportedError):
            compiled_so = compile_graph(other)
            if compiled_so.report.cycles < made.report.cycles:
                forms, graph, made = forms.flipped(name), other, compiled_so
    return NpuPte(pack_pte(made, contract), graph, made.report)


def target(accelerator: str, *, system_config: str | None = None, memory_mode: str | None = None) -> Target:
    """Return the target for an accelerator in a system.

    The options are sections of Vela's `Arm/vela.ini`, by default ExecuTorch's.

    >>> target("ethos-u85-256", memory_mode="Dedicated_Sram").name
    'ethos-u85-256'
    """
    assert TOSA.quantized is not None
    capabilities = TOSA.quantized.capabilities
    capabilities = replace(
        capabilities, implementations=tuple(each | _IN_PHASES for each in capabilities.implementations)
    )
    weights_last = replace(
        capabilities, implementations=tuple(each - _WEIGHTS_FIRST for each in capabilities.implementations)
    )
    in_parts = {**weights_last.in_parts, torch.ops.aten.argmax.default: _argmax_last}
    of_u55 = replace(weights_last, computes=_computes_on_u55, in_parts=in_parts)
    emits = partial(emit, accelerator=accelerator, system_config=system_config, memory_mode=memory_mode)
    made = replace(
        TOSA.quantized,
        name=accelerator,
        info=info(accelerator),
        capabilities=capabilities if is_u85(accelerator) else of_u55,
        emit=emits,
        files=TargetFiles(),
    )
    trying = replace(made, emit=partial(emits, tries_forms=True))
    plans = [
        (objective, replace(trying, costs={**made.costs, "cycles": estimated_costs(accelerator)}))
        for objective in (*made.costs, "cycles")
    ]
    if is_u85(accelerator):
        plans += [(objective, replace(each, capabilities=weights_last)) for objective, each in plans]
    made = replace(made, contenders={"cycles": plans})
    floats = replace(
        made.capabilities,
        computes=lambda call, constants: FLOAT,
        takes=partial(_refuse_floats, accelerator),
    )
    return replace(
        made, capabilities=floats, quantized=made, recipes=RECIPES, with_options=partial(target, accelerator)
    )


def _computes_on_u55(call: Node, constants: Collection[Node]) -> str | None:
    """Return why Ethos-U55 does not compute a call. In another order or in parts, it may."""
    reason = INTEGERS.supports(call, constants)
    if reason is None and call.target is OPS.conv3d_ndhwc.default and shape_of(args_of(call)[1])[1] > 1:
        return "a convolution with several taps in depth, which Ethos-U85 has"
    if reason is None and call.target is torch.ops.aten.argmax.default:
        x, dim, *_ = args_of(call)
        if dim is not None and math.prod(shape_of(x)[dim:][1:]) != 1:
            return "an argmax along a dimension other than the last, which Ethos-U85 has"
    return reason


def _argmax_last(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Move the dimension of an argmax to the end, unless it is the channels, which lie there anyway."""
    in_place = {x.dim() - 1, 1 if x.dim() > 3 else -1}
    if dim is None or x.dim() < 2 or dim % x.dim() in in_place:
        return NotImplemented
    at = x.transpose(dim, -1).argmax(-1, True).transpose(dim, -1)
    return at if keepdim else at.squeeze(dim)


def _refuse_floats(accelerator: str, value: torch.Tensor) -> NoReturn:
    fix = "quantise it: dimorder.quantize, or --quantize int8 --calibrate PATH"
    raise UnsupportedError(f"target {accelerator}", FLOAT, fix)


def __getattr__(attribute: str) -> Target:
    return target(accelerator_named(__name__, attribute))
