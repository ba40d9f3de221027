"""Target xnnpack: what its kernels accept, and its place in the pipeline. Takes no executorch to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from dimorder.contract import Contract, constant_methods, seal
from dimorder.errors import UnsupportedError
from dimorder.lowering.costs import counted
from dimorder.lowering.extract import Ability
from dimorder.targets.base import Target
from dimorder.targets.xnnpack.ops import MAX_RANK, OPERATORS, wrong_outside


@dataclass(frozen=True)
class Pte:
    """A sealed `.pte` with its contract inside."""

    data: bytes
    delegates: int
    outside: Mapping[str, int]

    @property
    def beside(self) -> Mapping[str, bytes]:
        return {}

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        from dimorder.targets.xnnpack import run

        return run(self.data, inputs)


def emit(program: ExportedProgram, contract: Contract) -> Pte:
    """Raises `UnsupportedError` where ExecuTorch is not installed or an operator has no kernel."""
    try:
        from dimorder.targets.xnnpack.emit import emit as emit_pte
    except ImportError as error:
        raise UnsupportedError(
            "target xnnpack", f"no ExecuTorch ({error})", "pip install 'dimorder[executorch]'"
        ) from error
    emitted = emit_pte(program, constant_methods=constant_methods(contract))
    return Pte(seal(emitted.pte), emitted.delegates, dict(emitted.outside))


# XNNPACK computes these, but slower than what they would save has been shown to be worth.
_DECLINED = frozenset(
    {
        "aten.linear/features first",
        "aten.layer_norm/any",
        "aten.matmul/transposed",
    }
)

TARGET = Target(
    "xnnpack",
    ".pte",
    emit,
    Ability(OPERATORS.supports, wrong_outside, (_DECLINED,)),
    # 28²×58: interleaving single elements adds 176 µs to a cat, transposing explicitly adds 85.
    counted(min_run=8, max_rank=MAX_RANK),
)
