"""Decides which CPUs count as one kind: what was measured on one is taken for all."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

_MAKERS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}


@functools.cache
def family() -> str:
    """The kind of CPU, a key of the tables of what was measured: its architecture, what torch calls its
    capability, and who made it where that is known, as in `x86_64 AVX512 AMD`.

    >>> " " in family()
    True
    """
    words = platform.machine(), torch.backends.cpu.get_cpu_capability(), maker()
    return " ".join(word for word in words if word)


def maker() -> str:
    """Who made an x86 CPU, else nothing."""
    told = linux_says("vendor_id") or platform.processor()  # elsewhere as `..., GenuineIntel`
    return next((name for vendor, name in _MAKERS.items() if vendor in told), "")


def linux_says(field: str) -> str:
    """A field of the first processor in /proc/cpuinfo, or nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
