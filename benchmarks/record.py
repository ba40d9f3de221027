"""Decides what is kept of a benchmark: its command, machine, versions and results."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path


def machine(packages: Sequence[str]) -> dict[str, object]:
    """What a figure was measured on, and with which versions of these packages."""
    return {
        "machine": platform.platform(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        **(_of_torch() if "torch" in packages else {}),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def described(machine: Mapping[str, object]) -> str:
    return "; ".join(f"{key} {value}" for key, value in machine.items())


def write(out: Path, module: str, packages: Sequence[str], **results: object) -> None:
    """Write the results of `python -m benchmarks.MODULE` as JSON."""
    command = shlex.join(["python", "-m", f"benchmarks.{module}", *sys.argv[1:]])
    record = {"command": command, "machine": machine(packages), **results}
    from dimorder.files import write_whole

    write_whole(out, (json.dumps(record, indent=2) + "\n").encode())


def _of_torch() -> dict[str, object]:
    import torch

    return {"capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
