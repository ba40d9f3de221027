"""Conversions of more dimensions than a target's transpose has: several transposes, one after another."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

import dimorder
from dimorder.ops.problem_map import transpose_rank, transposes
from dimorder.targets import find
from dimorder.verification.relative_error import relative_error
from tests.marks import require_runtime
from tests.small_networks import Net


@given(st.permutations(range(11)), st.integers(4, 6))
def test_transposes_of_a_limited_rank_lead_to_every_order(target: list[int], max_rank: int) -> None:
    source, wanted = tuple(range(11)), tuple(target)
    steps = transposes(source, wanted, max_rank)
    assert steps is not None and steps[-1] == wanted
    assert all(transpose_rank(*pair) <= max_rank for pair in itertools.pairwise((source, *steps)))
    assert all(sorted(step) == list(source) for step in steps)
    assert len(steps) <= max(1, transpose_rank(source, wanted) - max_rank + 1)


def test_one_transpose_is_enough_within_the_rank_and_without_a_limit() -> None:
    orders = (0, 1, 2, 3, 4, 5, 6), (6, 4, 2, 0, 5, 3, 1)
    assert transposes(*orders, None) == transposes(*orders, 7) == [orders[1]]
    assert transposes(*orders, 2) is None


def seven(net: Net, x: Tensor) -> Tensor:
    """Blocks of pixels, of frames and of channels as channels, as networks that see videos have them."""
    halves = x.reshape(2, 3, 2, 3, 2, 3, 2).permute(6, 4, 2, 0, 5, 3, 1)
    return halves.softmax(3).reshape(16, 27)


def eight(net: Net, x: Tensor) -> Tensor:
    blocks = x.reshape(2, 3, 2, 3, 2, 3, 2, 2).permute(7, 5, 3, 1, 6, 4, 2, 0)
    return blocks.softmax(3).reshape(18, 48) + 1


@pytest.mark.parametrize("function", [seven, eight])
@pytest.mark.parametrize("target", ["xnnpack", "litert", "tosa"])
def test_blocks_of_seven_and_more_dimensions_are_converted_twice(
    target: str, function: Callable[..., Tensor]
) -> None:
    require_runtime(target)
    net, x = Net(function), torch.randn(36, 12 if function is seven else 24)
    lowered = dimorder.lower(net, (x,), target=target)
    assert relative_error(lowered.run(x), net(x)) < 1e-6
    assert f"{2 * 4 * x.numel():,} bytes in 2 transposes" in str(lowered.plan)


def test_an_order_that_no_transposes_lead_to_is_refused() -> None:
    tosa = find("tosa")
    narrow = dataclasses.replace(tosa, capabilities=dataclasses.replace(tosa.capabilities, max_rank=2))
    with pytest.raises(dimorder.DimorderError) as raised:
        dimorder.plan(Net(seven), (torch.randn(36, 12),), target=narrow)
    first, *rest = str(raised.value).splitlines()
    assert first.startswith("input 'args_0' or aten.softmax.int (small_networks.py:")
    assert rest == [
        "  found: its result is wanted in an order that no transposes of 2 dimensions lead to",
        "  fix: permute fewer dimensions at once, or choose another target",
    ]
