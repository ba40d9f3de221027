"""Target xnnpack: what its kernels accept, and its place in the pipeline. Takes no executorch to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.export import ExportedProgram

from dimorder.contract import Contract, constant_methods, seal
from dimorder.executorch import pte
from dimorder.lowering.ability import Ability
from dimorder.lowering.costs import counted
from dimorder.lowering.network_plan import Place
from dimorder.lowering.symbolic import SizeTable
from dimorder.lowering.verify import Run
from dimorder.targets.base import FileSummary, Target
from dimorder.targets.table import Table
from dimorder.targets.xnnpack import LISTING
from dimorder.targets.xnnpack.ops import FLOATS, MAX_RANK, OPERATORS, wrong_outside


@dataclass(frozen=True)
class Pte:
    """A sealed `.pte` with its contract inside."""

    data: bytes
    delegates: int
    outside: Mapping[str, int]
    exactly: Run | None = None
    float_islands: tuple[tuple[Place, str], ...] = ()

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
) -> Pte:
    """Raises `UnsupportedError` where an operator has no kernel. `others` are programs of the same plan for
    other sizes, where the contract has symbols."""
    from dimorder.targets.xnnpack.emit import emit as emit_pte

    emitted = emit_pte(
        program,
        constant_methods=constant_methods(contract),
        operators=operators,
        others=others,
        contract=contract,
    )
    islands = tuple((Place.of(node), reason) for node, reason in emitted.float_islands)
    return Pte(
        seal(emitted.pte),
        emitted.delegates,
        dict(emitted.outside),
        emitted.exactly,
        tuple(dict(islands).items()),
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
    return emit(programs[0], contract, operators, programs[1:])


def check(path: str, data: bytes) -> FileSummary:
    """What a .pte of any tool holds, and which of its operators are right in the orders they get."""
    from dimorder.executorch import check_file

    return check_file(path)


# XNNPACK computes these too, but no measurement has shown that they save more than they cost.
_DECLINED = frozenset({"aten.linear/features first", "aten.layer_norm/any", "aten.matmul/transposed"})


def target(operators: Table = OPERATORS) -> Target:
    """The target whose delegates compute these operators: all that XNNPACK has, or fewer."""
    return Target(
        "xnnpack",
        LISTING.suffix,
        partial(emit, operators=operators),
        Ability(operators.supports, wrong_outside, (_DECLINED,), MAX_RANK),
        # 28²×58: interleaving single elements adds 176 µs to a cat, transposing explicitly adds 85.
        counted(min_run=8),
        # A delegate reads these in NHWC. Others stay on portable kernels outside, which want them contiguous:
        # in their logical shape a copy would come first that no plan holds.
        channels_last=FLOATS,
        load=pte.load,
        check=check,
        install=LISTING.install,
        runtime="ExecuTorch",
        set_threads=pte.set_threads,
        state=True,
        emit_ranges=partial(emit_ranges, operators=operators),
    )


TARGET = target()
