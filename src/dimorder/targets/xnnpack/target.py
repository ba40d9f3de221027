"""Target xnnpack: what its kernels accept, and its place in the pipeline. Takes no executorch to import."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from dimorder.contract import Contract
from dimorder.contract_file import constant_methods, seal
from dimorder.executorch import pte
from dimorder.layout.capabilities import Ability
from dimorder.layout.costs import counted
from dimorder.ops.convolution import IN_PHASES, cuts_phases, has_phases
from dimorder.ops.dialect import OPS
from dimorder.ops.resize import BY_PRODUCTS, RESIZED_BY_PRODUCTS
from dimorder.plans.network_plan import Place
from dimorder.sizes.symbolic import SizeTable
from dimorder.targets.base import FileSummary, Target
from dimorder.targets.table import Table, results
from dimorder.targets.xnnpack import LISTING
from dimorder.targets.xnnpack.by_time import by_time
from dimorder.targets.xnnpack.kernels import KernelRun
from dimorder.targets.xnnpack.ops import FLOATS, MAX_RANK, OPERATORS, wrong_outside
from dimorder.verification.verify import Run

aten = torch.ops.aten


@dataclass(frozen=True)
class Pte:
    """A sealed `.pte` with its contract inside; of fixed sizes also the `kernels` that its delegates run."""

    data: bytes
    delegates: int
    outside: Mapping[str, int]
    exactly: Run | None = None
    float_islands: tuple[tuple[Place, str], ...] = ()
    kernels: tuple[KernelRun, ...] = ()

    @property
    def npu(self) -> None:
        return None

    @property
    def beside(self) -> Mapping[str, bytes]:
        return {}

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        from dimorder.targets.xnnpack import run

        return run(self.data, inputs)

    def started(self) -> pte.PteMethod:
        return pte.method_of(self.data)


def emit(
    program: ExportedProgram,
    contract: Contract,
    operators: Table = OPERATORS,
    others: Sequence[ExportedProgram] = (),
    sizes: SizeTable | None = None,
) -> Pte:
    """Raises `UnsupportedError` where an operator has no kernel. `others` are programs of the same plan for
    other sizes, where the contract has symbols."""
    from dimorder.targets.xnnpack.emit import emit as emit_pte

    emitted = emit_pte(
        program,
        constant_methods=constant_methods(contract),
        operators=operators,
        others=others,
        ranges=None if sizes is None else (contract, sizes),
    )
    islands = tuple((Place.of(node), reason) for node, reason in emitted.float_islands)
    return Pte(
        seal(emitted.pte),
        emitted.delegates,
        dict(emitted.outside),
        emitted.exactly,
        tuple(dict(islands).items()),
        emitted.kernels,
    )


def emit_ranges(
    programs: Sequence[ExportedProgram],
    sizes: SizeTable,
    contract: Contract,
    operators: Table = OPERATORS,
) -> Pte:
    """One file for all sizes, of programs of several.

    Raises `UnsupportedError` where an operator has no kernel, or none for all sizes.
    """
    return emit(programs[0], contract, operators, programs[1:], sizes)


def check(path: str, data: bytes) -> FileSummary:
    """What a .pte of any tool holds, and which of its operators are right in the orders they get."""
    from dimorder.executorch import check_file

    return check_file(path)


# XNNPACK computes these too, but no measurement has shown that they save more than they cost.
_DECLINED = frozenset({"aten.linear/features first", "aten.layer_norm/any", "aten.matmul/transposed"})


def _sized(ability: Ability, varying: frozenset[int], graph: Graph) -> Ability:
    """The ability where these sizes of a captured graph are symbols: XNNPACK resizes to fixed ones."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    resized = (node for node in calls if node.target in RESIZED_BY_PRODUCTS)
    declined: frozenset[str] = frozenset()
    if any(not varying.isdisjoint(results(node)[0].shape[2:]) for node in resized):
        declined = BY_PRODUCTS
    convolved = [node for node in calls if node.target is aten.convolution.default]
    if not all(_joins_phases(node, varying) for node in convolved if has_phases(node)):
        declined |= {IN_PHASES}

    def computes(call: Node, constants: Collection[Node]) -> str | None:
        operand: Any = call.args[0] if call.args else None
        if call.target is OPS.upsample_bilinear2d_nhwc.default and not varying.isdisjoint(
            results(call)[0].shape[1:3]
        ):
            return "a bilinear resize to a size that is a symbol"
        if call.target is OPS.upsample_nearest2d_nhwc.default:
            symbols = [size for size in results(operand)[0].shape[:3] if size in varying]
            if len(symbols) > 1:
                return "a nearest resize of several sizes that are symbols"
        return None if ability.computes is None else ability.computes(call, constants)

    declines = tuple(names | declined for names in ability.declines)
    return replace(ability, computes=computes, declines=declines)


def _joins_phases(convolution: Node, varying: frozenset[int]) -> bool:
    """Whether XNNPACK can join the phases of a transposed convolution: a reshape has one symbol at most, and
    a slice, which takes away what is computed beyond the result, none."""
    batch, _, *space = results(convolution)[0].shape
    cut = itertools.compress(space, cuts_phases(convolution))
    return sum(size in varying for size in (batch, *space)) < 2 and varying.isdisjoint(cut)


def target(operators: Table = OPERATORS, *, cpu: str | None = None) -> Target:
    """The target whose delegates compute these operators: all that XNNPACK has, or fewer.

    `cpu` is the family of CPUs that objective `time` plans for, as `x86_64 AVX512 AMD`; None is this one.
    """
    ability = Ability(
        operators.supports,
        wrong_outside,
        (_DECLINED,),
        MAX_RANK,
        slices_copy=True,
        by_heads=True,
        fixed_resizes=True,
    )
    return Target(
        "xnnpack",
        LISTING.suffix,
        partial(emit, operators=operators),
        ability,
        # 28²×58: interleaving single elements adds 176 µs to a cat, transposing explicitly adds 85.
        {**counted(min_run=8), "time": by_time(operators, cpu)},
        # A delegate reads these in NHWC. Others stay on portable kernels outside, which want them contiguous:
        # in their logical shape a copy would come first that no plan holds.
        channels_last=FLOATS,
        load=pte.load,
        check=check,
        install=LISTING.install,
        runtime="ExecuTorch",
        set_threads=pte.set_threads,
        configured=partial(target, operators),
        state=True,
        emit_ranges=partial(emit_ranges, operators=operators),
        sized=partial(_sized, ability),
    )


TARGET = target()
