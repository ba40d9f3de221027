"""Marks of cases that most runs of the tests leave out."""

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
