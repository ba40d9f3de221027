"""Define target litert: its capabilities, costs and files. Its import needs no ai-edge-litert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch.export import ExportedProgram
from torch.fx import Graph

from dimorder.capture.decompose_dynamic_resize import (
    ANTIALIASED,
    CUBIC,
    MEAN_POOLS,
    NEAREST,
    NEAREST_EXACT,
    ResizeLimits,
)
from dimorder.contract import Contract, TensorSpec
from dimorder.errors import UnsupportedError, UsageError
from dimorder.graph.dynamic_sizes import FIX
from dimorder.graph.exported import CarriedState, initial_state, turn_buffers_into_inputs
from dimorder.graph.nodes import args_of, dynamic_dims, is_uneven
from dimorder.graph.tracing import shape_of
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.costs import counted
from dimorder.ops.parts import PARTS
from dimorder.ops.parts_bits import SIGN_BITS
from dimorder.ops.parts_elementary import LIMITS, places_of
from dimorder.ops.parts_remainder import QUOTIENTS, REMAINDERS
from dimorder.ops.quantization import is_quantized
from dimorder.physical.annotations import FusedProgram
from dimorder.sizes.specialization import specialize
from dimorder.targets import by_xnnpack
from dimorder.targets.base import Artifact, DynamicSizes, Signatures, Target, TargetFiles, TargetRuntime
from dimorder.targets.litert import INFO
from dimorder.targets.litert.emit import WrittenGraph, calls_of_dynamic_size, fused_program, write
from dimorder.targets.litert.exact import ExactRun, OperatorsRun
from dimorder.targets.litert.file import operators
from dimorder.targets.litert.flatbuffer import MAX_RANK, MAX_SLICED, TfLiteGraph
from dimorder.targets.litert.model import LiteRtModel, is_rounded
from dimorder.targets.litert.ops import FLIP, OPERATORS, SLICE, unfit_input, with_moves
from dimorder.targets.litert.runtime import (
    DEFAULT_KERNELS,
    KERNELS,
    NO_REFERENCE,
    LiteRtProgram,
    ReferenceProgram,
    check,
    load,
    load_signatures,
    set_threads,
)
from dimorder.targets.litert.signatures import join_graphs
from dimorder.targets.litert.sketch import unfit_sizes
from dimorder.targets.program_io import call_place
from dimorder.targets.table import Table
from dimorder.verification.network_calls import Run


@dataclass(frozen=True)
class TfLite(Artifact):
    """A sealed `.tflite` with its contract inside, and the kernels that run it here."""

    data: bytes = field(repr=False)
    graph: TfLiteGraph = field(repr=False)
    contract: Contract
    kernels: str = DEFAULT_KERNELS
    exact: ExactRun | None = None

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self._program(inputs)

    def start(self) -> LiteRtProgram:
        return LiteRtProgram(self.data, self.contract, self.kernels)

    @cached_property
    def _program(self) -> LiteRtProgram:
        return self.start()

    @cached_property
    def delegates(self) -> int:
        return self._program.partitions()[0]

    @cached_property
    def outside(self) -> Mapping[str, int]:
        return dict(self._program.partitions()[1])

    @property
    def reference_run(self) -> Run | None:
        """Return the model of XNNPACK's arithmetic, which a program of integers has."""
        if self.kernels != DEFAULT_KERNELS or self.exact is None:
            return None
        return CarriedState(self.exact, self.exact.state)

    @property
    def other_runs(self) -> Mapping[str, Run]:
        """Return the reference kernels, if they compute all operators of the file right."""
        if self.kernels != DEFAULT_KERNELS or NO_REFERENCE & set(operators(self.data)):
            return {}
        if self.exact is not None:
            if LiteRtModel(self.exact.written.graph).needs_xnnpack:
                return {}
            return {
                "LiteRT's reference kernels": CarriedState(
                    OperatorsRun(self.exact.written, self.exact.contract, "reference"), self.exact.state
                )
            }
        return {"LiteRT's reference kernels": ReferenceProgram(self.data, self.contract)}


def emit(program: ExportedProgram, contract: Contract, table: Table, kernels: str) -> TfLite:
    """Emit a `.tflite`. Raises `UnsupportedError` for an operator that LiteRT lacks."""
    written = write(program, contract, table)
    if not is_quantized(program.graph_module):
        return TfLite(written.data, written.graph, contract, kernels)
    if program.range_constraints:
        _require_in_delegate(written, program, contract)
    functional, state = turn_buffers_into_inputs(program), initial_state(program)
    wide = _with_state(contract, state)
    exact = ExactRun(write(functional, wide, table) if state else written, functional, wide, state)
    return TfLite(written.data, written.graph, contract, kernels, exact)


def join(artifacts: Mapping[str, TfLite], share_state: bool) -> bytes:
    """Return one file with a signature for each artifact."""
    graphs = {name: each.graph for name, each in artifacts.items()}
    return join_graphs(graphs, [each.contract for each in artifacts.values()], share_state)


def _fused(table: Table, program: ExportedProgram, contract: Contract) -> FusedProgram:
    fixed = specialize(program, contract.symbols).program if program.range_constraints else program
    return fused_program(fixed, table, calls_of_dynamic_size(program))


def _require_in_delegate(written: WrittenGraph, program: ExportedProgram, contract: Contract) -> None:
    """Refuse integers that dynamic sizes keep out of the delegate: LiteRT's kernels round otherwise."""
    outside = LiteRtProgram(written.data, contract).computed_outside()
    for node in written.graph.nodes:
        if is_rounded(node, written.graph) and not outside.isdisjoint(node.outputs):
            place = next((call_place(n) for n in program.graph.nodes if n.name == node.origin), node.origin)
            found = f"an int8 {node.kind} that dynamic sizes keep out of XNNPACK's delegate"
            raise UnsupportedError(place, found, FIX)


def _with_state(contract: Contract, state: Sequence[torch.Tensor]) -> Contract:
    """Return the contract of a program that is given its state, and returns the new one."""
    specs = [TensorSpec.row_major(f"state {i}", tensor) for i, tensor in enumerate(state)]
    outputs = [replace(spec, name=f"new {spec.name}") for spec in specs]
    return replace(
        contract, inputs=(*specs, *contract.inputs), outputs=(*outputs, *contract.outputs), state=()
    )


def _sized(capabilities: Capabilities, table: Table, graph: Graph) -> Capabilities:
    """Return the capabilities for a captured graph with dynamic sizes."""
    slices, flips = (graph.find_nodes(op="call_function", target=target) for target in (SLICE, FLIP))
    if any(is_uneven(node) and args_of(node)[4] != 1 for node in slices):
        table = with_moves(table, SLICE)
    flips = [node for node in flips if len(shape_of(node)) <= MAX_SLICED]
    if any(dim % len(shape_of(node)) in dynamic_dims(node) for node in flips for dim in args_of(node)[1]):
        table = with_moves(table, FLIP)
    fitting = replace(capabilities, computes=table.supports, at_all_sizes=partial(unfit_sizes, table))
    return by_xnnpack.sized(fitting, graph)


def target(table: Table = OPERATORS, *, kernels: str = DEFAULT_KERNELS) -> Target:
    """Return the target whose files have these operators: all that LiteRT has, or fewer.

    `kernels` run its files in this process: "xnnpack", "builtin" or "reference".
    """
    if kernels not in KERNELS:
        raise UsageError(
            f"kernels {kernels!r}", "no kernels of LiteRT", f"choose one of {', '.join(KERNELS)}"
        )
    capabilities = Capabilities(
        table.supports,
        implementations=(by_xnnpack.IMPLEMENTATIONS,),
        max_rank=MAX_RANK,
        at_all_sizes=partial(unfit_sizes, table),
        takes=unfit_input,
        own_implementations=by_xnnpack.OWN,
        linears=by_xnnpack.LINEARS,
        in_parts={
            **{name: parts for name, parts in {**PARTS, **LIMITS}.items() if name not in REMAINDERS},
            **QUOTIENTS,
            **places_of({torch.int64}),
            **SIGN_BITS,
        },
        in_float32=frozenset({torch.float64}),
        in_pairs=True,
        # LiteRT resizes linearly, and repeats elements, to any sizes.
        fixed_resizes=ResizeLimits(
            frozenset((*NEAREST, *NEAREST_EXACT, CUBIC, *ANTIALIASED, *MEAN_POOLS)),
            repeats=MAX_RANK,
            last_steps=False,
        ),
    )
    return Target(
        "litert",
        INFO,
        partial(emit, table=table, kernels=kernels),
        capabilities,
        counted(min_run=by_xnnpack.MIN_RUN),
        recipes=by_xnnpack.RECIPES,
        files=TargetFiles(
            partial(load, kernels=kernels),
            check,
            channels_last=(),
            signatures=Signatures(join, partial(load_signatures, kernels=kernels)),
        ),
        runtime=TargetRuntime("LiteRT", set_threads=set_threads, has_state=True),
        dynamic=DynamicSizes(partial(_sized, capabilities, table), integers=True),
        with_options=partial(target, table),
        fused=partial(_fused, table),
    )


TARGET = target()
