"""XNNPACK in float16: each row and each way to run an operator, as near to float64 as PyTorch's float16."""

from __future__ import annotations

import pytest

pytest.importorskip("executorch")

import dimorder
from dimorder.executorch import conversions_in
from dimorder.targets.xnnpack import run
from tests.targets.halves import halved, share_of_allowed
from tests.targets.test_xnnpack_ops import CALLS, CASES, INTEGERS, emitted

FLOATS = [name for name in CASES if name not in INTEGERS]


@pytest.mark.parametrize("name", CALLS)
def test_physical_call(name: str) -> None:
    network, inputs = halved(CALLS[name])
    result = emitted(network, inputs)
    assert (result.delegates, result.outside) == (1, {})
    got = run(result.pte, list(inputs))
    assert share_of_allowed(got, network, inputs) <= 1


@pytest.mark.parametrize("name", FLOATS)
def test_operator(name: str) -> None:
    """A plan's conversions move half of the bytes."""
    network, inputs = halved(CASES[name])
    lowered = dimorder.lower(network, inputs, target="xnnpack")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert share_of_allowed(lowered.run(*inputs), network, inputs) <= 1
    planned, found = lowered.plan.conversions, conversions_in(lowered.artifact.data)
    assert (found.conversion_count, found.bytes) == (len(planned), sum(c.bytes for c in planned))
