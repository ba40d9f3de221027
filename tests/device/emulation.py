"""Build `dimorder-run` for this machine and for Arm, and run it, on emulated Arm cores too.

Arm needs Debian's `g++-aarch64-linux-gnu` and `qemu-user-static`, and ExecuTorch's wheel for aarch64, by pip.
The builds lie in `build/device`, and are built again if a source changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dimorder.cmake import CPP, PACKAGE, executorch_package
from dimorder.contract import Contract

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "device"
HOST = "x86-64"
# Without dot products; with dot products and float16; with bfloat16 and int8 matrix products beside.
CORES = ("cortex-a53", "cortex-a76", "max,sve=off,sme=off")
_CROSS = ("aarch64-linux-gnu-g++", "qemu-aarch64-static")
_TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--allow-shlib-undefined")
"""


@dataclass(frozen=True)
class Finished:
    """The result of a run of `dimorder-run`: exit code, printed text, printed errors, and outputs."""

    code: int
    text: str
    error: str
    outputs: tuple[Tensor, ...]


def missing(core: str) -> str:
    """Why nothing can be run on a core here; empty where it can."""
    needed = ("cmake", "c++") if core == HOST else ("cmake", *_CROSS)
    lacks = [tool for tool in needed if shutil.which(tool) is None]
    if not lacks:
        return ""
    packages = "cmake g++" if core == HOST else "cmake g++-aarch64-linux-gnu qemu-user-static"
    return f"no {', '.join(lacks)}: apt-get install {packages}"


@functools.cache
def arm_sdk() -> Path:
    """ExecuTorch's CMake package for aarch64, of the version that is installed here."""
    with building("sdk"):
        return _arm_sdk()


def _arm_sdk() -> Path:
    version = metadata.version("executorch").split("+")[0]
    folder = BUILD / f"executorch-{version}-aarch64"
    package = folder / "executorch" / "share" / "cmake"
    if not package.exists():
        wheels = BUILD / "wheels"
        _done(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
            *("--python-version", "3.11", "--platform", "manylinux_2_28_aarch64", "--dest", str(wheels)),
            f"executorch=={version}",
        )
        with zipfile.ZipFile(next(wheels.glob("executorch*aarch64.whl"))) as wheel:
            wheel.extractall(folder)
    return package


def built(core: str = HOST) -> Path:
    """The runner for a core, built anew where a source changed."""
    return _built(core != HOST)


@functools.cache
def _built(arm: bool) -> Path:
    folder = BUILD / ("aarch64" if arm else "x86-64")
    package = arm_sdk() if arm else executorch_package()
    options = [f"-Ddimorder_DIR={PACKAGE}", f"-Dexecutorch_DIR={package}", "-DCMAKE_BUILD_TYPE=Release"]
    if arm:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "toolchain.cmake").write_text(_TOOLCHAIN)
        options.append(f"-DCMAKE_TOOLCHAIN_FILE={folder / 'toolchain.cmake'}")
    cmake(CPP / "runner", folder, *options)
    return folder / "dimorder-run"


def cmake(source: Path, folder: Path, *options: str) -> None:
    """Configure and build a project; what did not change is not built again."""
    with building(folder.name):
        _done("cmake", "-S", str(source), "-B", str(folder), *options)
        _done("cmake", "--build", str(folder), "--parallel", "2")


@contextlib.contextmanager
def building(name: str) -> Iterator[None]:
    """Wait until no other process of the tests builds this."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(
    program: Path,
    inputs: Mapping[str, Tensor],
    contract: Contract,
    folder: Path,
    *,
    core: str = HOST,
    options: Sequence[str] = (),
) -> Finished:
    """Run a program on inputs by name, and read what it gives back."""
    named = []
    for name, value in inputs.items():
        held = value.float() if value.dtype == torch.bfloat16 else value  # numpy has no bfloat16
        np.save(folder / f"{name}.npy", held.numpy())
        named += ["--input", f"{name}={folder / name}.npy"]
    several = len(contract.outputs) > 1
    made = folder / "outputs" if several else folder / "output.npy"
    if made.is_dir():
        shutil.rmtree(made)
    made.unlink(missing_ok=True)
    command = [str(built(core)), str(program), *named, "-o", str(made), *options]
    if core != HOST:
        libraries = arm_sdk().parents[1] / "lib"
        emulator = ["qemu-aarch64-static", "-cpu", core, "-L", "/usr/aarch64-linux-gnu"]
        command = [*emulator, "-E", f"LD_LIBRARY_PATH={libraries}", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    names = [f"{made}/{spec.name}.npy" for spec in contract.outputs] if several else [str(made)]
    outputs = tuple(
        torch.from_numpy(np.load(name)).to(getattr(torch, spec.dtype))
        for name, spec in zip(names, contract.outputs, strict=True)
        if not done.returncode
    )
    return Finished(done.returncode, done.stdout, done.stderr, outputs)


def _done(*command: str) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, (
        f"{' '.join(command)}\n{finished.stdout[-3000:]}{finished.stderr[-3000:]}"
    )
