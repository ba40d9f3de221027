"""Measure the memory that a program takes, in a process of its own.

    python -m dimorder.latency.peak RUNTIME FILE INPUTS THREADS [MODULE ...]

INPUTS is a file from torch.save. The modules bring kernels that the file needs. The command prints how many
bytes the peak memory grew after all imports.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dimorder.errors import DimorderError

RUNS = 3


def peak_bytes(runtime: str, file: Path, inputs: Path, threads: int, modules: Sequence[str] = ()) -> int:
    """Return the bytes of memory for opening a file and running it, after importing some modules.

    Raises:
        DimorderError: The file does not run, or the system is not Linux.
    """
    command = [sys.executable, "-m", "dimorder.latency.peak", runtime, str(file), str(inputs), str(threads)]
    command += modules
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise DimorderError(f"running {file} in {runtime}", said[-1], "see whether it runs in this process")
    return int(done.stdout.split()[-1])


def _main(name: str, file: str, inputs: str, threads: str, *modules: str) -> None:
    import torch

    from dimorder.latency.runtimes import Given, runtime

    given = Given(None, tuple(torch.load(inputs)), {}, int(threads))
    chosen = runtime(name)
    for module in (*chosen.imports, *modules):
        importlib.import_module(module)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what imports have freed would be used again, and not be counted
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present value
    before = _peak()
    call = chosen.open(given, Path(file))
    for _ in range(RUNS):
        call()
    print(_peak() - before)


def _peak() -> int:
    """Return the peak memory of this process in bytes, as Linux reports it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(found.split()[1]) * 1024


if __name__ == "__main__":
    _main(*sys.argv[1:])
