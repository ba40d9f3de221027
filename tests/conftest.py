"""Set up every test: torch starts from the same seed, and every stage of the pipeline is checked. Commands
that a test starts check it too. The other fixture is for some tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from dimorder.graph import passes

os.environ[passes.CHECK] = "1"
# oneDNN of PyTorch 2.13 never ends some depthwise convolutions in float16 where the CPU has AVX512-FP16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The project's folder is the current one, in which `tests.…` can be imported by a command."""
    monkeypatch.chdir(ROOT)
