"""Describe the machine on which figures were measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata

from dimorder.cpu import linux_says


def machine(packages: Sequence[str]) -> dict[str, object]:
    """Return the machine, and the versions of these packages."""
    return {
        "machine": platform.platform(),
        "processor": linux_says("model name") or platform.processor(),
        "processors": os.cpu_count(),
        **(_of_torch() if "torch" in packages else {}),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def described(machine: Mapping[str, object]) -> str:
    """Return the machine in one line.

    >>> described({"processors": 2, "python": "3.12.1"})
    'processors 2; python 3.12.1'
    """
    return "; ".join(f"{key} {value}" for key, value in machine.items())


def _of_torch() -> dict[str, object]:
    import torch

    return {"capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}
