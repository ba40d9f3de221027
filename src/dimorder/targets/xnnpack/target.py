"""Target xnnpack: what its kernels accept, and its place in the pipeline. Takes no executorch to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from dimorder.contract import Contract, constant_methods, seal
from dimorder.executorch import pte
from dimorder.targets.base import FileSummary, Target
from dimorder.targets.xnnpack import LISTING

XNN_MAX_RANK = 6  # XNN_MAX_TENSOR_DIMS


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
    """Raises `UnsupportedError` where an operator has no kernel."""
    from dimorder.targets.xnnpack.emit import emit as emit_pte

    emitted = emit_pte(program, constant_methods=constant_methods(contract))
    return Pte(seal(emitted.pte), emitted.delegates, dict(emitted.outside))


def refuses(node: torch.fx.Node) -> str | None:
    """XNNPACK convolves in two dimensions."""
    if node.target is torch.ops.aten.convolution.default and node.meta["val"].dim() > 4:
        return "XNNPACK has no 3-D convolution"
    return None


def check(path: str, data: bytes) -> FileSummary:
    """What a .pte holds, whoever wrote it, and which of its operators are right in the orders they get."""
    from dimorder.executorch import check_file

    return check_file(path)


TARGET = Target(
    "xnnpack",
    LISTING.suffix,
    emit,
    refuses=refuses,
    max_rank=XNN_MAX_RANK,
    load=pte.load,
    check=check,
    install=LISTING.install,
    runtime="ExecuTorch",
)
