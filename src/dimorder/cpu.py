"""Decides which CPUs count as one kind: what was measured on one is taken for all."""

from __future__ import annotations

import platform

import torch


def family() -> str:
    """The kind of CPU as torch sees it, a key of the tables of what was measured.

    >>> " " in family()
    True
    """
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
