"""TOSA in float16 and bfloat16: each row, as near to float64 as PyTorch's own half precision."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.targets.tosa.graph import inspect_tosa
from tests.targets.halves import NOT_IN_TORCH, TYPES, halved, share_of_allowed
from tests.targets.tosa_cases import CALLS, CASES
from tests.targets.tosa_runs import emitted


@TYPES
@pytest.mark.parametrize("name", CALLS)
def test_physical_call(name: str, dtype: torch.dtype) -> None:
    network, inputs = halved(CALLS[name], dtype)
    got = emitted(network, inputs).run(list(inputs))
    assert share_of_allowed(got, network, inputs) <= 1


@TYPES
@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_IN_TORCH])
def test_operator(name: str, dtype: torch.dtype) -> None:
    network, inputs = halved(CASES[name], dtype)
    lowered = dimorder.lower(network, inputs, target="tosa")
    assert share_of_allowed(lowered.run(*inputs), network, inputs) <= 1
    assert inspect_tosa(lowered.artifact.data).transposes == len(lowered.plan.conversions)
