"""Target torch: the physical program in plain ATen, its convolutions on strided views so that torch's
channels-last kernels run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from dimorder.program.contract import CONTRACT_METHOD, Contract
from dimorder.program.dialect import decompose
from dimorder.targets.base import Target


@dataclass(frozen=True)
class TorchArtifact:
    """An exported program without the dialect; it runs on any device, compiles, and is saved as a `.pt2`."""

    program: ExportedProgram
    contract: Contract
    delegates: int = 0

    @property
    def outside(self) -> Mapping[str, int]:
        return {}

    @property
    def beside(self) -> Mapping[str, bytes]:
        return {}

    @property
    def data(self) -> bytes:
        buffer = io.BytesIO()
        torch.export.save(self.program, buffer, extra_files={CONTRACT_METHOD: self.contract.to_json()})
        return buffer.getvalue()

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return list(self.program.module()(*inputs))


def emit(program: ExportedProgram, contract: Contract) -> TorchArtifact:
    """The program with every dialect operator written out in ATen."""
    return TorchArtifact(decompose(program), contract)


TARGET = Target("torch", ".pt2", emit)
