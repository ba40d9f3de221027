"""Cases that a run of the tests leaves out: slow ones, and those of targets that are not installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(cases: Iterable[Any], quick: Iterable[Any]) -> list[Any]:
    """Mark all cases of a test as slow but the quick ones. A tuple has the several arguments of one case."""
    cases, quick = list(cases), list(quick)
    assert all(case in cases for case in quick), "a quick case is none of the cases"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if case in quick else pytest.mark.slow
        )
        for case in cases
    ]


# The package that runs the files of a target.
RUNTIMES = {"xnnpack": "executorch", "litert": "ai_edge_litert", "tosa": "tosa_serializer"}


def require_runtime(target: str) -> None:
    """Skip the test if what runs a target's files is not installed."""
    pytest.importorskip(RUNTIMES.get(target, "torch"))
