"""Compile the program that target torch writes with AOTInductor, for one kind of CPU.

The code assumes that its inputs have the strides of compile time, and does not check them. The guard does.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from dimorder.contract import Contract
from dimorder.contract_file import CONTRACT_METHOD
from dimorder.errors import ContractError, UnsupportedError, UsageError
from dimorder.files import require_sound_archive
from dimorder.graph.branches import has_branches
from dimorder.graph.quantized import DEQUANTIZE_CHANNELS
from dimorder.layout.capabilities import Capabilities
from dimorder.ops.attention import FUSED_ATTENTION
from dimorder.ops.dialect import decompose
from dimorder.ops.table import PLAIN
from dimorder.targets.base import Artifact, DynamicSizes, Target, TargetFiles, TargetRuntime
from dimorder.targets.inductor import INFO
from dimorder.verification.network_calls import Run

_MODEL = "model"  # the name of the model in a package with one program
_OPTIONS = {
    "aot_inductor.package": True,
    "freezing": True,  # weights are constants, in the layout that its kernels prefer
    "cpp.dynamic_threads": True,  # use as many threads as torch has at run time, not at compile time
}
# AOTInductor packs the weights of a linear ahead of time, but not those of a matmul.
_NOT_PACKED = frozenset({"aten.linear/features first"})
# The instruction sets that AOTInductor's code needs, and PyTorch's names for them.
_INSTRUCTIONS: Mapping[str, str] = MappingProxyType(
    {"AVX2": "avx2", "AVX512": "avx512_f", "AVX512_VNNI": "avx512_vnni", "AMX_TILE": "amx_tile"}
)


@dataclass(frozen=True)
class CompiledArtifact(Artifact):
    """A package of machine code, with its contract inside."""

    data: bytes = field(repr=False)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return self._loaded(inputs)

    @cached_property
    def _loaded(self) -> CompiledRun:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"program{INFO.suffix}")
            path.write_bytes(self.data)
            return CompiledRun(path)


class CompiledRun:
    """A package as a function of its tensors."""

    def __init__(self, path: Path) -> None:
        loader: Any = torch._C._aoti.AOTIModelPackageLoader
        _require_machine(path, loader.load_metadata_from_package(str(path), _MODEL))
        self._loader = loader(str(path), _MODEL, False, 1, -1)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return list(self._loader.boxed_run(list(inputs)))


def _require_machine(path: Path, made_for: Mapping[str, str]) -> None:
    """Refuse code with instructions that this CPU lacks, which would kill the process."""
    needed, has = made_for.get("AOTI_CPU_ISA", "").split(), torch.cpu.get_capabilities()
    missing = [name for name in needed if name in _INSTRUCTIONS and not has.get(_INSTRUCTIONS[name])]
    if missing:
        raise UnsupportedError(
            f"loading {path}",
            f"code for CPUs with {', '.join(missing)}, which this one has not",
            "lower it on a machine of the kind that runs it, or for target torch",
        )


def emit(program: ExportedProgram, contract: Contract) -> CompiledArtifact:
    """Compile the program without the dialect.

    Raises `UnsupportedError` if there is no compiler, and for a program that AOTInductor cannot compile or
    compiles wrongly.
    """
    if program.graph.find_nodes(op="call_function", target=DEQUANTIZE_CHANNELS):
        found = "quantised weights, whose dequantize AOTInductor does not compile"
        raise UnsupportedError(
            "target inductor", found, "lower it for target torch, or lower the float network"
        )
    if has_branches(program.graph):
        found = "branches, torch.cond, for which AOTInductor gives other numbers"
        raise UnsupportedError("target inductor", found, "lower it for target torch")
    return _compiled(decompose(program), contract)


def _compiled(program: ExportedProgram, contract: Contract) -> CompiledArtifact:
    import torch._inductor
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.export.pt2_archive._package import package_pt2

    assert program.example_inputs is not None
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        options: dict[str, Any] = {**_OPTIONS, "aot_inductor.output_path": folder}
        try:
            files: Any = torch._inductor.aot_compile(
                program.module(check_guards=False), program.example_inputs[0], options=options
            )
        except Exception as error:  # a compiler may raise anything
            if isinstance(getattr(error, "inner_exception", error), InvalidCxxCompiler):
                found = "no C++ compiler works here"
                raise UnsupportedError("target inductor", found, INFO.install) from error
            found = f"AOTInductor: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            fix = "lower it for target torch, and report this network to PyTorch"
            raise UnsupportedError("target inductor", found, fix) from error
        package = Path(folder, f"program{INFO.suffix}")
        package_pt2(
            str(package), aoti_files={_MODEL: files}, extra_files={CONTRACT_METHOD: contract.to_json()}
        )
        return CompiledArtifact(package.read_bytes())


def load(file: Path) -> tuple[Contract, Run]:
    """Return the contract inside one of our compiled `.pt2` files, and the program as a function.

    Raises `UsageError` if the file does not exist. Raises `ContractError` if it is damaged or another tool's.
    Raises `UnsupportedError` if it was compiled for another machine.
    """
    if not file.is_file():
        raise UsageError(f"loading {file}", "no such file", "give the path of a .pt2 file")
    try:
        require_sound_archive(file)
        with zipfile.ZipFile(file) as archive:
            inside = [name for name in archive.namelist() if name.endswith(f"/extra/{CONTRACT_METHOD}")]
            text = archive.read(inside[0]).decode() if inside else ""
    except ValueError as error:
        raise ContractError(
            f"loading {file}", str(error), "lower it again, or copy the file again"
        ) from error
    if not text:
        fix = "lower it with target inductor, or load it with torch._inductor.aoti_load_package"
        raise ContractError(f"loading {file}", "no contract inside: another tool wrote it", fix)
    return Contract.from_json(text), CompiledRun(file)


TARGET = Target(
    "inductor",
    INFO,
    emit,
    capabilities=Capabilities(implementations=((PLAIN - _NOT_PACKED) | {FUSED_ATTENTION},)),
    files=TargetFiles(load),
    runtime=TargetRuntime(set_threads=torch.set_num_threads),
    dynamic=DynamicSizes(),
)
