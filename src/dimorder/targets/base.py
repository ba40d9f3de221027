"""Define a target: what it computes, how it emits a physical program, and how its files are read back.

A `Target` is one value, which the pipeline reads. An `Artifact` is what a target emits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.export import ExportedProgram
from torch.fx import Graph

from dimorder.contract import Contract
from dimorder.errors import UsageError
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.costs import Costs, counted
from dimorder.plans.network_plan import Place
from dimorder.sizes.symbolic import SizeTable
from dimorder.targets.npu_report import NpuReport
from dimorder.verification.verify import Run


class Artifact(Protocol):
    """The output of a target for one physical program: bytes to save, and a way to run them.

    Attributes:
        data: the content of the file.
        delegates: the number of delegates in it.
        outside: the calls of each operator that runs in portable kernels outside the delegates.
        float_islands: the operators of a quantised network that run in float32, each with the reason.
    """

    @property
    def data(self) -> bytes: ...

    @property
    def delegates(self) -> int: ...

    @property
    def outside(self) -> Mapping[str, int]: ...

    @property
    def float_islands(self) -> Sequence[tuple[Place, str]]: ...

    @property
    def beside(self) -> Mapping[str, bytes]:
        """The content of each companion file in `Target.beside`."""

    @property
    def exactly(self) -> Run | None:
        """A second way to compute the bits that `run` gives, for programs in integers; else None."""

    @property
    def npu(self) -> NpuReport | None:
        """The estimates of an NPU's compiler, where one compiled the program."""

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs for inputs in the shapes of the program's own signature."""


class StatefulArtifact(Artifact, Protocol):
    """An artifact of a program that writes buffers."""

    def started(self) -> Run:
        """Return the program in a state of its own, which begins as the file holds it.

        Each call goes on from the state after the last one. `restart` begins anew.
        """


class WholeArtifact:
    """Defaults for an `Artifact` in one file that computes everything in integers, or everything in floats.

    Nothing runs outside its delegates, and no companion file exists.
    """

    @property
    def float_islands(self) -> tuple[()]:
        return ()

    @property
    def outside(self) -> Mapping[str, int]:
        return {}

    @property
    def beside(self) -> Mapping[str, bytes]:
        return {}


class FloatArtifact:
    """Defaults for an `Artifact` that computes nothing in integers."""

    @property
    def float_islands(self) -> tuple[()]:
        return ()

    @property
    def exactly(self) -> None:
        return None

    @property
    def npu(self) -> None:
        return None


class FileSummary(Protocol):
    """The findings of `dimorder check` in one file, for printing or for JSON."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Target:
    """A target: its capabilities, its costs, and the functions that write, load and check its files.

    `target_info.TargetInfo` holds the facts that are known without an import of the target.

    Attributes:
        name: the name after `--target`.
        suffix: the suffix of its files.
        emit: writes a physical program under a contract.
        capabilities: the operators that it computes (see `capabilities.Capabilities`).
        costs: the charges for a plan, by objective (see `costs.Costs`).
        channels_last: the types of 4-D channels-last inputs and outputs that its files hold in their logical
            shape. None means all types. For other types the files hold the dense physical tensor.
        beside: the suffixes that companion files add to the name of the main file.
        load: reads a file back, and returns its contract and a function that runs it.
        runs_fast: whether `lower` runs the artifact once and compares it with the network.
        check: summarises a file, from its path and its content.
        install: the command that installs a missing module which one of these functions imports.
        runtime: the name of the runtime in error messages.
        set_threads: sets the number of threads that programs have in this process.
        quantized: the target that replaces this one for quantised networks. It reads and returns integers.
        configured: returns this target with other options, which are keywords with string values.
        contenders: pairs of an objective and a target, for each objective that only a compiler can measure.
            The plan of each pair is emitted, and the plan with the fewest cycles is kept.
        state: whether a program may write its buffers.
        emit_ranges: writes one artifact for ranges of sizes, from physical programs at several points. None
            means that dynamic sizes are refused.
        sized: returns the capabilities for a captured graph in which the given sizes are dynamic, where it
            differs.
    """

    name: str
    suffix: str
    emit: Callable[[ExportedProgram, Contract], Artifact]
    capabilities: Capabilities = field(default_factory=Capabilities)
    costs: Mapping[str, Costs] = field(default_factory=counted)
    channels_last: Collection[torch.dtype] | None = None
    beside: tuple[str, ...] = ()
    load: Callable[[Path], tuple[Contract, Run]] | None = None
    runs_fast: bool = True
    check: Callable[[str, bytes], FileSummary] | None = None
    install: str = ""
    runtime: str | None = None
    set_threads: Callable[[int], None] | None = None
    quantized: Target | None = None
    configured: Callable[..., Target] | None = None
    contenders: Mapping[str, Sequence[tuple[str, Target]]] = field(default_factory=dict)
    state: bool = False
    emit_ranges: Callable[[Sequence[ExportedProgram], SizeTable, Contract], Artifact] | None = None
    sized: Callable[[frozenset[int], Graph], Capabilities] | None = None

    def check_name(self, path: Path) -> None:
        """Raise `UsageError` for a file name from which `load` could not be chosen."""
        if path.suffix != self.suffix:
            raise UsageError(
                str(path),
                f"no {self.suffix}, which is what target {self.name} writes",
                f"name it {path.stem}{self.suffix}, or choose another target",
            )
