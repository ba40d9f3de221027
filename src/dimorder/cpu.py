"""Name the kind of this machine's CPU.

A measurement on one CPU counts for all CPUs of its kind.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

_MAKERS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}


@functools.cache
def family() -> str:
    """Return the kind of CPU, which is a key of the tables of measurements.

    The kind is the architecture, torch's name for the CPU's capability, and the vendor if it is known, such
    as `x86_64 AVX512 AMD`.

    >>> " " in family()
    True
    """
    words = platform.machine(), torch.backends.cpu.get_cpu_capability(), maker()
    return " ".join(word for word in words if word)


def maker() -> str:
    """Return the vendor of an x86 CPU, or an empty text."""
    told = linux_says("vendor_id") or platform.processor()  # other systems say `..., GenuineIntel`
    return next((name for vendor, name in _MAKERS.items() if vendor in told), "")


def linux_says(field: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo, or an empty text."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
