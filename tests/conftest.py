"""Decides what holds for every test: torch starts each from the same seed; and what some share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The project's folder is the current one, in which `tests.…` can be imported by a command."""
    monkeypatch.chdir(ROOT)
