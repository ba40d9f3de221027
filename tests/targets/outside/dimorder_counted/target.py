"""Target counted: a program in plain ATen, with a count of its operators and its contract in front."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import counted_format
import torch
from torch.export import ExportedProgram

from dimorder.contract import Contract
from dimorder.errors import ContractError, UsageError
from dimorder.ops.dialect import decompose
from dimorder.targets.base import Artifact, Run, Target, TargetFiles
from dimorder_counted import INFO


@dataclass(frozen=True)
class CountedArtifact(Artifact):
    program: ExportedProgram
    contract: Contract

    @property
    def operators(self) -> Mapping[str, int]:
        calls = (node for node in self.program.graph.nodes if node.op == "call_function")
        return dict(sorted(Counter(str(call.target) for call in calls).items()))

    @property
    def data(self) -> bytes:
        buffer = io.BytesIO()
        torch.export.save(self.program, buffer)
        head = {"operators": self.operators, "contract": self.contract.to_json()}
        return counted_format.encode(head, buffer.getvalue())

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return list(self.program.module()(*inputs))


@dataclass(frozen=True)
class CountedSummary:
    operators: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        return {"format": "counted", "operators": dict(self.operators)}

    def __str__(self) -> str:
        return "\n".join(f"{count:4}  {name}" for name, count in self.operators.items())


def emit(program: ExportedProgram, contract: Contract) -> CountedArtifact:
    return CountedArtifact(decompose(program), contract)


def load(file: Path) -> tuple[Contract, Run]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"loading {file}", str(error.strerror), "give the path of a .counted file"
        ) from error
    try:
        head, program = counted_format.decode(data)
    except ValueError as error:
        raise ContractError(
            f"loading {file}", str(error), "lower it again, or copy the file again"
        ) from error
    contract = Contract.from_json(head["contract"])
    return contract, CountedArtifact(torch.export.load(io.BytesIO(program)), contract).run


def check(path: str, data: bytes) -> CountedSummary:
    try:
        return CountedSummary(counted_format.decode(data)[0]["operators"])
    except ValueError as error:
        raise UsageError(path, str(error), "write the file again") from error


TARGET = Target("counted", INFO, emit, files=TargetFiles(load, check))
