"""Describe this machine: its software, and the family of its CPU. Measurements are valid for a family."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import torch

from dimorder.errors import UsageError, as_int

_MOST_THREADS = 1024  # runtimes take memory for each thread before the first runs
_MAKERS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}


@functools.cache
def family() -> str:
    """Return the kind of CPU, a key of the tables of measurements: such as `x86_64 AVX512 AMD`.

    >>> " " in family()
    True
    """
    vendor = linux_says("vendor_id") or platform.processor()  # other systems say `..., GenuineIntel`
    maker = [name for word, name in _MAKERS.items() if word in vendor]
    return " ".join([platform.machine(), torch.backends.cpu.get_cpu_capability(), *maker])


def require_threads(count: int) -> None:
    """Raise `UsageError` for a count that is no number of threads from 1 to 1024."""
    count = as_int(count, f"{count!r} threads", "say 1 or more")
    if count < 1:
        raise UsageError(f"{count} threads", "no threads to run with", "say 1 or more")
    if count > _MOST_THREADS:
        found = f"more than {_MOST_THREADS} threads"
        raise UsageError(f"{count} threads", found, f"say at most as many as processors: {os.cpu_count()}")


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch have so many threads, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def linux_says(field: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo, or an empty text."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def machine(packages: Sequence[str]) -> dict[str, object]:
    """Return the machine, and the versions of these packages."""
    of_torch = {"capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}
    return {
        "machine": platform.platform(),
        "processor": linux_says("model name") or platform.processor(),
        "processors": os.cpu_count(),
        **(of_torch if "torch" in packages else {}),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def describe_machine(machine: Mapping[str, object]) -> str:
    """Return the machine in one line.

    >>> describe_machine({"processors": 2, "python": "3.12.1"})
    'processors 2; python 3.12.1'
    """
    return "; ".join(f"{key} {value}" for key, value in machine.items())
