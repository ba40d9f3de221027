"""Decides what a target is: which orders its operators take, how a physical program is emitted and run."""

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
from dimorder.layout.capabilities import Ability
from dimorder.layout.costs import Costs, counted
from dimorder.plans.network_plan import Place
from dimorder.sizes.symbolic import SizeTable
from dimorder.targets.npu_report import NpuReport
from dimorder.verification.verify import Run


class Artifact(Protocol):
    """What a target makes of a physical program: bytes to save, and a way to run them.

    `delegates` and `outside` (operator → calls) say what the target took and what it left to portable
    kernels, `float_islands` which operators of a quantised network it computes in float32, and why.
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
        """The content of each of `Target.beside`."""

    @property
    def exactly(self) -> Run | None:
        """What `run` gives bit for bit where it computes in integers, by other means; else None."""

    @property
    def npu(self) -> NpuReport | None:
        """What an NPU's compiler estimates, where one compiled it."""

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs for inputs as the program's own signature holds them."""


class StatefulArtifact(Artifact, Protocol):
    """An artifact of a program that writes buffers."""

    def started(self) -> Run:
        """The program in a state of its own, as it was written; each call goes on where the last one ended,
        and `restart` begins anew."""


class WholeArtifact:
    """What an `Artifact` has that computes all in integers, or all in floats: nothing runs or lies beside."""

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
    """What an `Artifact` has that computes nothing in integers."""

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
    """What `dimorder check` found in a file: printed as it is, or written as JSON."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Target:
    """A target's side of the bargain.

    `ability` says what it computes (see `ability.Ability`), `costs` what a plan is charged, by objective (see
    `costs.Costs`). `channels_last` are the types of which its files hold a 4-D channels-last input or output
    in its logical shape (None: all); of other types they hold the dense physical tensor. `suffix` is what its
    files are called, `beside` what is put behind that name for the files that lie beside one, and `load`
    reads them back: what the program promises, and how it runs. What `runs_fast` is run once by `lower`, and
    compared with the network. `check`, from path and content, says what a file holds; `install` what to
    install where a module is missing that one of these imports; `runtime` is what errors call whatever runs a
    program, and `set_threads` says how many threads that has in this process. `quantised` is what takes the
    target's place for quantised networks; it takes and gives integers. `configured` is the same target with
    other options, which it has as keywords of strings. `contenders` are, for an objective
    that only a compiler can tell, the plans that are all emitted, each by an objective of a target that takes
    this one's place: the one of the fewest cycles is taken.
    `emit_ranges` makes one artifact for ranges of sizes, of the physical programs at several points; without
    it, symbolic sizes are refused. `sized` is the ability for a captured graph where these of its sizes are
    symbols, if that is another. What is told of a target without importing it is in its `Listing`.
    """

    name: str
    suffix: str
    emit: Callable[[ExportedProgram, Contract], Artifact]
    ability: Ability = field(default_factory=Ability)
    costs: Mapping[str, Costs] = field(default_factory=counted)
    channels_last: Collection[torch.dtype] | None = None
    beside: tuple[str, ...] = ()
    load: Callable[[Path], tuple[Contract, Run]] | None = None
    runs_fast: bool = True
    check: Callable[[str, bytes], FileSummary] | None = None
    install: str = ""
    runtime: str | None = None
    set_threads: Callable[[int], None] | None = None
    quantised: Target | None = None
    configured: Callable[..., Target] | None = None
    contenders: Mapping[str, Sequence[tuple[str, Target]]] = field(default_factory=dict)
    state: bool = False
    emit_ranges: Callable[[Sequence[ExportedProgram], SizeTable, Contract], Artifact] | None = None
    sized: Callable[[frozenset[int], Graph], Ability] | None = None

    def check_name(self, path: Path) -> None:
        """Raises `UsageError` for a file name by which nobody would know how to load the file."""
        if path.suffix != self.suffix:
            raise UsageError(
                str(path),
                f"no {self.suffix}, which is what target {self.name} writes",
                f"name it {path.stem}{self.suffix}, or choose another target",
            )
