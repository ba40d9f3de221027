"""Emit the physical program in plain ATen, for target torch.

Its convolutions read strided views, so that torch runs its channels-last kernels.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch.export import ExportedProgram

from dimorder.capture.export import load_exported
from dimorder.contract import Contract
from dimorder.contract_file import CONTRACT_METHOD
from dimorder.errors import ContractError, UsageError
from dimorder.graph.exported import ProgramRun
from dimorder.layout.capabilities import Capabilities
from dimorder.ops.attention import FUSED_ATTENTION
from dimorder.ops.dialect import decompose
from dimorder.ops.table import PLAIN
from dimorder.targets.base import Artifact, DynamicSizes, Target, TargetFiles, TargetRuntime
from dimorder.targets.torch import INFO
from dimorder.verification.network_calls import Run


@dataclass(frozen=True)
class TorchArtifact(Artifact):
    """An exported program without the dialect. It runs on any device, compiles, and is saved as a `.pt2`."""

    program: ExportedProgram = field(repr=False)
    contract: Contract

    @cached_property
    def data(self) -> bytes:
        buffer = io.BytesIO()
        torch.export.save(self.program, buffer, extra_files={CONTRACT_METHOD: self.contract.to_json()})
        return buffer.getvalue()

    @cached_property
    def _once(self) -> ProgramRun:
        return self.start()

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self._once.reset()
        return self._once(inputs)

    def start(self) -> ProgramRun:
        return ProgramRun(self.program)


def emit(program: ExportedProgram, contract: Contract) -> TorchArtifact:
    """Return the program with every dialect operator written in ATen."""
    return TorchArtifact(decompose(program), contract)


def load(file: Path) -> tuple[Contract, Run]:
    """Return the contract inside one of our `.pt2` files, and the program as a function.

    Raises `UsageError` if the file does not exist, and `ContractError` if it is damaged or another tool's.
    """
    if not file.is_file():
        raise UsageError(f"loading {file}", "no such file", "give the path of a .pt2 file")
    extra = {CONTRACT_METHOD: ""}
    try:
        program = load_exported(file, extra)
    # For damaged bytes it may raise anything: RuntimeError, BadZipFile, KeyError, UnpicklingError ...
    except Exception as error:
        found = " ".join(str(error).split())[:200]
        raise ContractError(f"loading {file}", found, "lower it again, or copy the file again") from error
    if not extra[CONTRACT_METHOD]:
        fix = "lower it with target torch, or load it with torch.export.load"
        raise ContractError(f"loading {file}", "no contract inside: another tool wrote it", fix)
    contract = Contract.from_json(extra[CONTRACT_METHOD])
    return contract, ProgramRun(program)


TARGET = Target(
    "torch",
    INFO,
    emit,
    capabilities=Capabilities(implementations=(PLAIN | {FUSED_ATTENTION},)),
    files=TargetFiles(load),
    runtime=TargetRuntime(set_threads=torch.set_num_threads, has_state=True),
    dynamic=DynamicSizes(integers=True),
)
