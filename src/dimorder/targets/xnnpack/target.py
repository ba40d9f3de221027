"""Define target xnnpack: its capabilities, costs and files. Its import needs no executorch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from dimorder.capture.decompose_dynamic_resize import RESIZES, ResizeLimits
from dimorder.contract import Contract
from dimorder.contract_file import constant_methods, seal
from dimorder.errors import installed
from dimorder.executorch import pte
from dimorder.graph.dynamic_sizes import DynamicCall
from dimorder.graph.nodes import dynamic_dims, results
from dimorder.graph.tracing import FLOATS
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.costs import counted
from dimorder.ops.convolution_kernels import cuts_phases, has_phases
from dimorder.ops.softmax import by_doubling, running_size
from dimorder.physical.annotations import FusedProgram
from dimorder.targets import by_xnnpack
from dimorder.targets.base import DynamicSizes, FileSummary, Target, TargetFiles, TargetRuntime
from dimorder.targets.program_io import refuse_empty_outputs
from dimorder.targets.table import Table
from dimorder.targets.xnnpack import INFO
from dimorder.targets.xnnpack.artifact import Pte
from dimorder.targets.xnnpack.by_time import by_time
from dimorder.targets.xnnpack.ops import IN_PARTS, MAX_RANK, OPERATORS, wrong_outside
from dimorder.targets.xnnpack.partition import partition

aten = torch.ops.aten


def emit(program: ExportedProgram, contract: Contract, operators: Table = OPERATORS) -> Pte:
    """Emit a `.pte`, for all sizes if the program has dynamic ones.

    Raises `UnsupportedError` for an operator without a kernel, or without one for all sizes, and for an
    output without elements.
    """
    refuse_empty_outputs(contract)
    from dimorder.targets.xnnpack.emit import emit as emit_pte

    texts = constant_methods(contract)
    emitted = emit_pte(program, constant_methods=texts, operators=operators, contract=contract)
    return replace(emitted, data=seal(emitted.data))


def check(path: str, data: bytes) -> FileSummary:
    """Return the content of any tool's .pte, and the verdicts on its operators in their orders."""
    from dimorder.executorch import check_file

    return check_file(path)


# LiteRT has operators of its own for such reductions and running sums.
_IMPLEMENTATIONS = by_xnnpack.IMPLEMENTATIONS | {
    "aten.linear/as a convolution",
    "aten.linear/as a matmul",
    "aten.amax/by halves",
    "aten.amin/by halves",
    "aten.prod.dim_int/by halves",
}


# All elements move log2(elements) times, which is slower than the kernel outside for many elements.
_MOST_DOUBLED = 64


def _sums_in_delegate(node: Node) -> bool:
    """Return whether a running sum is of few floats. ExecuTorch has a kernel outside for others."""
    return results(node)[0].is_floating_point() and running_size(node) <= _MOST_DOUBLED


_OWN = {**by_xnnpack.OWN, "aten.cumsum": (by_doubling(aten.add.Tensor, 0, _sums_in_delegate),)}


def _sized(capabilities: Capabilities, graph: Graph) -> Capabilities:
    """Return the capabilities for a captured graph with dynamic sizes."""
    convolved = graph.find_nodes(op="call_function", target=aten.convolution.default)
    joined = all(_joins_phases(node) for node in convolved if has_phases(node))
    missing = frozenset[str]() if joined else frozenset({by_xnnpack.IN_PHASES})
    return by_xnnpack.sized(capabilities, graph, missing)


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


def _joins_phases(convolution: Node) -> bool:
    """Return whether XNNPACK can join the phases of a transposed convolution.

    A reshape may have one dynamic size at most. A slice, which cuts the surplus of the result, may have none.
    """
    dynamic = dynamic_dims(convolution)
    cut = {dim for dim, cuts in enumerate(cuts_phases(convolution), 2) if cuts}
    return len(dynamic) < 2 and cut.isdisjoint(dynamic)


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
        linears=by_xnnpack.LINEARS,
        fixed_resizes=ResizeLimits(RESIZES),
        at_all_sizes=partial(_at_all_sizes, operators),
        in_parts=IN_PARTS,
        in_pairs=True,
    )
    return Target(
        "xnnpack",
        INFO,
        partial(emit, operators=operators),
        capabilities,
        {**counted(min_run=by_xnnpack.MIN_RUN), "time": by_time(operators, cpu)},
        recipes=by_xnnpack.RECIPES,
        # A delegate reads these types in NHWC. Other types stay in portable kernels outside, which want
        # contiguous tensors. In their logical shape a copy would come first that no plan contains.
        files=TargetFiles(pte.load, check, channels_last=FLOATS),
        runtime=TargetRuntime("ExecuTorch", set_threads=pte.set_threads, has_state=True),
        dynamic=DynamicSizes(partial(_sized, capabilities), integers=True),
        with_options=partial(target, operators),
        fused=partial(_fused, operators),
    )


TARGET = target()
