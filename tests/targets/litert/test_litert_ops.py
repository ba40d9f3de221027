"""What LiteRT computes, run by its XNNPACK delegate, its own and its reference kernels, against torch."""

from __future__ import annotations

from functools import cache

import pytest

from dimorder.lowered import Lowered
from tests.targets import test_xnnpack_ops, tosa_cases
from tests.targets.cases import Case, Net
from tests.targets.litert import litert_cases
from tests.targets.litert.litert_runs import compare, compare_lowered

CALLS: dict[str, Case] = {**test_xnnpack_ops.CALLS, **tosa_cases.CALLS}
CASES: dict[str, Case] = {**test_xnnpack_ops.CASES, **tosa_cases.CASES, **litert_cases.CASES}
for name in test_xnnpack_ops.INTEGERS:
    del CASES[name]


@cache
def lowered(name: str) -> Lowered:
    function, inputs, constants = CASES[name]
    return compare_lowered(Net(function, constants), inputs)


@pytest.mark.parametrize("name", CALLS)
def test_physical_call(name: str) -> None:
    function, inputs, constants = CALLS[name]
    compare(Net(function, constants), inputs)


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    assert lowered(name).artifact.delegates == 1
