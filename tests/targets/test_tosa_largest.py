"""Test the largest values of many on target tosa: taken one after the other, where pairs are too many."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("tosa_serializer")

import dimorder
from tests.small_networks import Net

GENERATOR = torch.Generator().manual_seed(8)
MANY = torch.randn(3, 2500, generator=GENERATOR)
WITH_NANS = torch.cat([torch.tensor([1.0, math.nan, 3.0, math.nan, -math.inf]), torch.zeros(5000)])


@pytest.mark.parametrize(
    ("x", "k", "dim"),
    [(MANY, 4, -1), (MANY.t(), 3, 0), (WITH_NANS, 5, 0), (torch.full((1, 5000), -math.inf), 3, 1)],
    ids=["rows", "columns", "NaN", "equal"],
)
def test_the_largest_of_many(x: Tensor, k: int, dim: int) -> None:
    lowered = dimorder.lower(Net(lambda m, x: x.topk(k, dim)), (x,), target="tosa", run_artifact=True)
    found, wanted = lowered.run(x), x.topk(k, dim)
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0, equal_nan=True)
    stable = torch.sort(x, dim=dim, descending=True, stable=True)[1].narrow(dim, 0, k)
    assert torch.equal(found[1], stable)


@pytest.mark.parametrize(("recipe", "near"), [("int8", 0.015), ("int16x8", 0.001)])
def test_the_largest_scores_of_many_in_integers(recipe: str, near: float) -> None:
    pytest.importorskip("executorch")
    net = Net(lambda m, x: x.sigmoid().flatten(1).topk(5))
    x = MANY.reshape(1, 3, 50, 50)
    quantized = dimorder.quantize(net, [x, 0.5 * x], recipe, target="tosa")
    lowered = dimorder.lower(quantized, (x,), target="tosa", run_artifact=True)
    (taken,), (scores, _) = lowered.contract.inputs, lowered.contract.outputs
    values, places = lowered.run(taken.quantized(x))
    computed = scores.real(values)
    assert (computed - net(x)[0]).abs().max() < near
    given = x.sigmoid().flatten(1).gather(1, places)
    assert (given - computed).abs().max() < near
    assert places.unique().numel() == 5


def test_a_choice_of_two_values_of_one_type_keeps_its_integers() -> None:
    """The largest one is then that of the integers, without a rounding between."""
    pytest.importorskip("executorch")
    net = Net(lambda m, x: torch.where(x[:, :2] > 0.3, x[:, 1:], x[:, :2]).amax(-1))
    x = torch.randn(2, 3, 5, 7, generator=GENERATOR)
    quantized = dimorder.quantize(net, [x, x.flip(1)], target="tosa")
    lowered = dimorder.lower(quantized, (x,), target="tosa", run_artifact=True)
    (taken,), (given,) = lowered.contract.inputs, lowered.contract.outputs
    assert (given.real(lowered.run(taken.quantized(x))) - net(x)).abs().max() <= taken.scale * 1.5


@pytest.mark.parametrize("call", [lambda x: x.sort(-1)[0], lambda x: x.topk(200)[1]], ids=["sort", "topk"])
def test_a_sort_of_many_values_is_refused_with_their_number(call: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(dimorder.DimorderError) as raised:
        dimorder.lower(Net(lambda m, x: call(x)), (torch.randn(1, 5000),), target="tosa")
    found = str(raised.value).splitlines()[1]
    assert found == (
        "  found: TOSA has no aten.sort.stable, and a sort of 5,000 values compares 25,000,000 pairs, "
        "at most 16,777,216: sort fewer values, or take the topk of 128 or fewer"
    )
