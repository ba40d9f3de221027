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
from typing import Any


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


def rows_kept(path: Path, environment: Mapping[str, object]) -> list[dict[str, Any]]:
    """The rows of an earlier run, if there was one in the same environment: figures of two are not mixed."""
    record = json.loads(path.read_text()) if path.exists() else {}
    return record["rows"] if record.get("environment") == environment else []


def failed(error: Exception) -> dict[str, str]:
    """What is recorded of a way that raised this, in place of its figures."""
    return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}


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
