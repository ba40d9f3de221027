"""Define target xnnpack: its capabilities, costs and files. Its import needs no executorch."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from dimorder.capture.split_attention_heads import HeadLimits
from dimorder.contract import Contract
from dimorder.contract_file import constant_methods, seal
from dimorder.errors import installed
from dimorder.executorch import pte
from dimorder.graph.dynamic_sizes import DynamicCall
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.costs import counted
from dimorder.ops.contraction import few_features_first, has_two_dynamic_rows
from dimorder.ops.convolution import depthwise_in_parts
from dimorder.ops.convolution_kernels import cuts_phases, has_phases
from dimorder.ops.resize import RESIZED_BY_MATMUL, resizes_to
from dimorder.ops.table import PLAIN
from dimorder.physical.fuse_quantized import FusedProgram
from dimorder.targets.base import Artifact, DynamicSizes, FileSummary, Target, TargetFiles, TargetRuntime
from dimorder.targets.table import Table, results
from dimorder.targets.xnnpack import INFO
from dimorder.targets.xnnpack.by_time import by_time
from dimorder.targets.xnnpack.kernels import KernelRun
from dimorder.targets.xnnpack.ops import FLOATS, IN_PARTS, MAX_RANK, OPERATORS, wrong_outside
from dimorder.targets.xnnpack.partition import partition
from dimorder.targets.xnnpack.recipes import RECIPES
from dimorder.targets.xnnpack.spatial import PART_TAPS
from dimorder.verification.verify import Run

aten = torch.ops.aten


@dataclass(frozen=True)
class Pte(Artifact):
    """A sealed `.pte` with its contract inside.

    For fixed sizes it has the `kernels` that its delegates run.
    """

    data: bytes
    delegates: int
    outside: Mapping[str, int]
    reference_run: Run | None = None
    kernels: tuple[KernelRun, ...] = ()

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        from dimorder.targets.xnnpack import run

        return run(self.data, inputs)

    def start(self) -> pte.PteMethod:
        return pte.method_of(self.data)


def emit(
    program: ExportedProgram,
    contract: Contract,
    operators: Table = OPERATORS,
) -> Pte:
    """Emit a `.pte`, for all sizes if the program has dynamic ones.

    Raises `UnsupportedError` for an operator without a kernel, or without one for all sizes.
    """
    from dimorder.targets.xnnpack.emit import emit as emit_pte

    emitted = emit_pte(
        program,
        constant_methods=constant_methods(contract),
        operators=operators,
        contract=contract,
    )
    return Pte(
        seal(emitted.pte),
        emitted.delegates,
        dict(emitted.outside),
        emitted.exactly,
        emitted.kernels,
    )


def check(path: str, data: bytes) -> FileSummary:
    """Return the content of any tool's .pte, and the verdicts on its operators in their orders."""
    from dimorder.executorch import check_file

    return check_file(path)


# XNNPACK computes 16 channels at a time. 8 pieces of 4 take 2.6 times as long as one linear and its slices, 8
# of 8 take 1.7 times, and 8 of 16 as long.
_SPLIT_CHANNELS = 16
# Its matmul packs the right operand, as a transposition would: both take as long for 4 to 64 features.
_FEW_FEATURES = 16
# XNNPACK computes 16 or 32 channels at a time. Attention with heads of 32 or 64 takes 0.88 to 0.98 of the
# time, with heads of 16 to 24 as long, with heads of 36 or 48 1.03 times. More than 32 slices take longer
# than one delegate saves.
_HEADS = HeadLimits(channels=32, most_joined=32)
_IN_PHASES = "aten.convolution/transposed in phases"
_RESIZED_BY_MATMUL = frozenset(f"{resize}/by matmul" for resize in RESIZED_BY_MATMUL)
# XNNPACK computes these too, but no measurement has shown that they save more than they cost.
_NOT_WORTH_IT = frozenset({"aten.linear/features first", "aten.layer_norm/any", "aten.matmul/transposed"})
_IMPLEMENTATIONS = (
    (PLAIN - _NOT_WORTH_IT)
    | _RESIZED_BY_MATMUL
    | {
        "aten.linear/as a convolution",
        "aten.linear/as a matmul",
        "aten.convolution/without outer taps",
        _IN_PHASES,
        "aten.convolution/depth tap by tap",
        "aten.convolution/transposed depth tap by tap",
        "aten.max_pool2d/tap by tap",
        "aten.max_pool3d/tap by tap",
        "aten.slice.Tensor/step by view",
        "aten.flip/digit by digit",
        "aten.amax/by halves",
        "aten.amin/by halves",
        "aten.prod.dim_int/by halves",
        "aten.log_softmax.int/by halves",
        "aten.cumsum/by doubling",
        "aten.cumprod/by doubling",
    }
)

_OWN_WITH_TWO_DYNAMIC_ROWS = {"aten.convolution": (depthwise_in_parts(PART_TAPS),)}
_OWN = {**_OWN_WITH_TWO_DYNAMIC_ROWS, "aten.linear": (few_features_first(_FEW_FEATURES),)}


def _sized(capabilities: Capabilities, varying: frozenset[int], graph: Graph) -> Capabilities:
    """Return the capabilities for a captured graph in which these sizes are dynamic.

    XNNPACK resizes only to fixed ones.
    """
    calls = [node for node in graph.nodes if node.op == "call_function"]
    missing = _RESIZED_BY_MATMUL if resizes_to(varying, graph) else frozenset[str]()
    convolved = [node for node in calls if node.target is aten.convolution.default]
    if not all(_joins_phases(node, varying) for node in convolved if has_phases(node)):
        missing |= {_IN_PHASES}

    implementations = tuple(names - missing for names in capabilities.implementations)
    own = _OWN_WITH_TWO_DYNAMIC_ROWS if has_two_dynamic_rows(varying, graph) else _OWN
    return replace(capabilities, implementations=implementations, own_implementations=own)


def _at_all_sizes(
    operators: Table, call: Node, constants: Collection[Node], numbers: Mapping[Node, DynamicCall]
) -> str | None:
    """Return why XNNPACK does not compute a call at all sizes, or None."""
    with installed("target xnnpack", INFO.install):
        from dimorder.targets.xnnpack.sketch import unfit_sizes
    return unfit_sizes(call, operators, constants, numbers)


def _fused(operators: Table, program: ExportedProgram, contract: Contract) -> FusedProgram:
    if not program.range_constraints:
        return partition(program, operators).fused()
    with installed("target xnnpack", INFO.install):
        from dimorder.targets.xnnpack.sketch import partition_for_ranges
    return partition_for_ranges(program, operators, contract)[0].fused()


def _joins_phases(convolution: Node, varying: frozenset[int]) -> bool:
    """Return whether XNNPACK can join the phases of a transposed convolution.

    A reshape may have one dynamic size at most. A slice, which cuts the surplus of the result, may have none.
    """
    batch, _, *space = results(convolution)[0].shape
    cut = itertools.compress(space, cuts_phases(convolution))
    return sum(size in varying for size in (batch, *space)) < 2 and varying.isdisjoint(cut)


def target(operators: Table = OPERATORS, *, cpu: str | None = None) -> Target:
    """Return the target whose delegates compute these operators: all that XNNPACK has, or fewer.

    `cpu` is the family of CPUs that objective `time` plans for, such as `x86_64 AVX512 AMD`. None means this
    one.
    """
    capabilities = Capabilities(
        operators.supports,
        wrong_outside,
        (_IMPLEMENTATIONS,),
        MAX_RANK,
        own_implementations=_OWN,
        split_channels=_SPLIT_CHANNELS,
        heads=_HEADS,
        fixed_resizes=True,
        at_all_sizes=partial(_at_all_sizes, operators),
        in_parts=IN_PARTS,
        in_pairs=True,
    )
    return Target(
        "xnnpack",
        INFO,
        partial(emit, operators=operators),
        capabilities,
        # 28²×58: interleaving single elements adds 176 µs to a cat, transposing explicitly adds 85.
        {**counted(min_run=8), "time": by_time(operators, cpu)},
        # A delegate reads these types in NHWC. Other types stay in portable kernels outside, which want
        # contiguous tensors. In their logical shape a copy would come first that no plan contains.
        recipes=RECIPES,
        files=TargetFiles(pte.load, check, channels_last=FLOATS),
        runtime=TargetRuntime("ExecuTorch", set_threads=pte.set_threads, has_state=True),
        dynamic=DynamicSizes(partial(_sized, capabilities), integers=True),
        with_options=partial(target, operators),
        fused=partial(_fused, operators),
    )


TARGET = target()
