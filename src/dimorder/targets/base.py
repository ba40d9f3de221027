"""Define a target: what it computes, how it emits a physical program, and how its files are read back.

A `Target` is one value, which the pipeline reads. An `Artifact` is what a target emits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch.export import ExportedProgram
from torch.fx import Graph

from dimorder.contract import Contract
from dimorder.errors import ContractError, UnsupportedError, UsageError
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.costs import Costs, counted
from dimorder.physical.annotations import FusedProgram
from dimorder.targets.npu_report import NpuReport
from dimorder.targets.target_info import TargetInfo
from dimorder.verification.network_calls import Run

Content = TypeVar("Content")

# The defaults of the fields that an artifact does not define itself.
_NOTHING: Mapping[str, Any] = MappingProxyType(
    {
        "companions": {},
        "delegates": 0,
        "outside": {},
        "reference_run": None,
        "other_runs": {},
        "stand_in": None,
        "npu": None,
    }
)


class Artifact:
    """The output of a target for one physical program: bytes to save, and a way to run them.

    A target's own class defines `data` and `run`, and those of the other fields that apply to it.

    Attributes:
        data: The content of the file.
        companions: The content of each companion file, by the suffix that it adds to the name of the file.
        delegates: The number of delegates in the file.
        outside: The calls of each operator that runs in portable kernels outside the delegates.
        reference_run: A second way to compute the bits that `run` gives, for programs in integers.
        other_runs: Other kernels that may run the file, by name; they are compared with the network too.
        stand_in: The form that `run` runs if the file runs only on a device. None means the file itself.
        npu: The estimates of an NPU's compiler, if one compiled the program.
    """

    if TYPE_CHECKING:  # read-only, so that a subclass may have a field or a property of that name

        @property
        def data(self) -> bytes: ...
        @property
        def companions(self) -> Mapping[str, bytes]: ...
        @property
        def delegates(self) -> int: ...
        @property
        def outside(self) -> Mapping[str, int]: ...
        @property
        def reference_run(self) -> Run | None: ...
        @property
        def other_runs(self) -> Mapping[str, Run]: ...
        @property
        def stand_in(self) -> str | None: ...
        @property
        def npu(self) -> NpuReport | None: ...
    else:

        def __getattr__(self, name: str) -> Any:  # only called for what a subclass does not define
            if name not in _NOTHING:
                raise AttributeError(f"{type(self).__name__} has no {name!r}")
            return _NOTHING[name]

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs for inputs in the shapes of the program's own signature."""
        raise NotImplementedError

    def start(self) -> Run:
        """Return a program that writes buffers, in a state of its own, which begins as the file has it.

        Each call goes on from the state after the last one. `restart` begins anew. A program without state
        needs no other definition.
        """
        return self.run


class FileSummary(Protocol):
    """The findings of `dimorder check` in one file, for printing or for JSON.

    `conversion_count` is how many operators of the file move memory into another order; None if the format
    does not show it.
    """

    @property
    def conversion_count(self) -> int | None: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class OperatorCounts:
    """A `FileSummary` of how many operators of each kind are in a file.

    >>> print(OperatorCounts("toy", {"conv2d": 20, "add": 8}))
       8  add
      20  conv2d
    """

    format: str
    operators: Mapping[str, int]
    conversion_count: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"format": self.format, "operators": dict(sorted(self.operators.items()))}

    def __str__(self) -> str:
        return "\n".join(f"{count:4}  {name}" for name, count in sorted(self.operators.items()))


@dataclass(frozen=True)
class Signatures:
    """The functions that write and read files of several programs.

    Attributes:
        join: Returns one file of the artifacts by name, whose programs have one state or each its own.
        load: Returns the programs in a file by name: each one's contract and a function that runs it. It may
            raise `ValueError` for a damaged file.
    """

    join: Callable[[Mapping[str, Any], bool], bytes]
    load: Callable[[bytes], Mapping[str, tuple[Contract, Run]]]


@dataclass(frozen=True)
class TargetFiles:
    """The functions that read and check a target's files.

    Attributes:
        load: Reads a file back, and returns its contract and a function that runs it. It may raise `OSError`
            for a file that it cannot open, and `ValueError` for a damaged one.
        check: Summarises a file, whichever tool wrote it, from its path and its content. It may raise
            `ValueError` for a damaged one.
        companions: The suffixes that companion files add to the name of the main file.
        channels_last: The types of 4-D channels-last inputs and outputs that the files have in their logical
            shape. None means all types. For other types the files have the dense physical tensor.
        signatures: How files have several programs. None means that a file has one.
    """

    load: Callable[[Path], tuple[Contract, Run]] | None = None
    check: Callable[[str, bytes], FileSummary] | None = None
    companions: tuple[str, ...] = ()
    channels_last: Collection[torch.dtype] | None = None
    signatures: Signatures | None = None

    def read(self, file: Path) -> tuple[Contract, Run]:
        """Return what `load` returns, and raise what it raises as errors of three lines."""
        assert self.load is not None
        return _read(file, self.load)

    def read_signatures(self, file: Path) -> Mapping[str, tuple[Contract, Run]]:
        """Return the programs in a file, and raise errors of three lines."""
        signatures = self.signatures
        assert signatures is not None
        return _read(file, lambda path: signatures.load(path.read_bytes()))

    def summarize(self, path: str, data: bytes) -> FileSummary:
        """Return what `check` returns, and raise a damaged file as an error of three lines."""
        assert self.check is not None
        try:
            return self.check(path, data)
        except ValueError as error:
            raise UsageError(path, str(error), "write the file again") from error


def _read(file: Path, load: Callable[[Path], Content]) -> Content:
    try:
        return load(file)
    except OSError as error:
        fix = f"give the path of a {file.suffix} file"
        raise UsageError(f"loading {file}", error.strerror or str(error), fix) from error
    except ValueError as error:
        fix = "lower it again, or copy the file again"
        raise ContractError(f"loading {file}", str(error), fix) from error


class UnpredictableError(UnsupportedError):
    """An input for which the target's format does not define what a program computes."""


@dataclass(frozen=True)
class TargetRuntime:
    """The runtime of a target's programs in this process.

    Attributes:
        name: Its name in error messages. The default is the target's.
        most_operations: The most operations of arithmetic in a network whose artifact `lower` runs by default
            to check it, as torch's counter counts them. A slow runtime has a bound.
        set_threads: Sets the number of threads that programs have.
        has_state: Whether a program may write its buffers.
    """

    name: str = ""
    most_operations: float = math.inf
    set_threads: Callable[[int], None] | None = None
    has_state: bool = False


@dataclass(frozen=True)
class DynamicSizes:
    """The support of a target for dynamic sizes: its `emit` accepts programs that have them.

    Attributes:
        capabilities: Returns the capabilities for a captured graph with dynamic sizes. None means that they
            are the same.
        integers: Whether a quantised network may have them.
    """

    capabilities: Callable[[Graph], Capabilities] | None = None
    integers: bool = False


@dataclass(frozen=True)
class Recipe:
    """One way of quantising a float network for a target.

    Attributes:
        quantizer: Returns torchao's `Quantizer`, which says what is quantised, and how.
        install: The advice in the error about a missing module.
        dynamic: Whether the scales of values are found as the network runs, without calibration.
        in_parts: Whether some norms and masked softmaxes reach the quantizer in operators that it knows.
    """

    quantizer: Callable[[], Any]
    install: str
    dynamic: bool = False
    in_parts: bool = False


@dataclass(frozen=True)
class Target:
    """A target: its capabilities, its costs, and the functions that write, load and check its files.

    Attributes:
        name: The name after `--target`.
        info: The facts about it that need no import of its dependencies.
        emit: Writes a physical program under a contract.
        capabilities: The operators that it computes.
        costs: The charges for a plan, by objective. The first objective is the default.
        contenders: Pairs of an objective and a target, for each objective that only a compiler can measure.
            The plan of each pair is emitted, and the plan with the fewest cycles is kept.
        recipes: The ways of quantising a network for it, by name. The first recipe is the default.
        files: The functions that read and check its files.
        runtime: The runtime of its programs in this process.
        dynamic: Its support for ranges of sizes. None means that dynamic sizes are refused.
        quantized: The target that replaces this one for quantised networks. It reads and returns integers.
        with_options: Returns this target with other options, which are keywords with string values.
        fused: Returns what a physical program of a contract computes in integers, by `fuse_quantized`. None
            means that the target has no float islands to report.
    """

    name: str
    info: TargetInfo
    emit: Callable[[ExportedProgram, Contract], Artifact]
    capabilities: Capabilities = field(default_factory=Capabilities)
    costs: Mapping[str, Costs] = field(default_factory=counted)
    contenders: Mapping[str, Sequence[tuple[str, Target]]] = field(default_factory=dict)
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    files: TargetFiles = TargetFiles()
    runtime: TargetRuntime = TargetRuntime()
    dynamic: DynamicSizes | None = None
    quantized: Target | None = None
    with_options: Callable[..., Target] | None = None
    fused: Callable[[ExportedProgram, Contract], FusedProgram] | None = None

    def __repr__(self) -> str:
        return f"Target({self.name!r})"

    @property
    def suffix(self) -> str:
        return self.info.suffix

    @property
    def install(self) -> str:
        return self.info.install

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives of `lower`, the default first."""
        return (*self.costs, *self.contenders)

    def check_name(self, path: Path) -> None:
        """Raise `UsageError` for a file name from which `load` could not be chosen."""
        if path.suffix != self.suffix:
            raise UsageError(
                str(path),
                f"no {self.suffix}, which is what target {self.name} writes",
                f"name it {path.stem}{self.suffix}, or choose another target",
            )
