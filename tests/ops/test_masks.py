"""Masks of ids and truth values become numbers, and choices become bounds: a cast alone is left of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("executorch")

import dimorder
from dimorder.capture.captured import capture
from tests.small_networks import Net

SCORES = torch.randn((2, 3, 5, 7), generator=torch.Generator().manual_seed(0))
WIDE = torch.randn((2, 5, 7), generator=torch.Generator().manual_seed(1))
KEYS = torch.tensor([[1, 1, 0, 1, 1, 0, 0], [1] * 7])  # one row sees all
NOTHING = torch.tensor([[1, 1, 0, 1, 1, 0, 0], [0] * 7])  # one row sees nothing
IDS = torch.tensor([[1, 5, 0, 7, 2**30, 3, -4], [3] * 7])
LOWEST = torch.finfo(torch.float32).min


def over_keys(mask: Tensor) -> Tensor:
    return mask[:, None, None, :]


# Name → the network and its inputs, of which the first is of numbers.
MASKED: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "hidden by -inf": (lambda s, m: s.masked_fill(over_keys(m) == 0, -math.inf).softmax(-1), (SCORES, KEYS)),
    "hidden by the lowest number": (
        lambda s, m: torch.where(over_keys(m).bool(), s, LOWEST).softmax(-1),
        (SCORES, NOTHING),
    ),
    "hidden by a low number": (
        lambda s, m: s.masked_fill(~over_keys(m.bool()), -1e9).softmax(-1),
        (SCORES, NOTHING),
    ),
    "hidden by a number that scores may reach": (
        lambda s, m: torch.where(over_keys(m) > 3, s, -0.5).softmax(-1),
        (SCORES, IDS),
    ),
    "the other way round": (
        lambda s, m: torch.where(over_keys(m) >= 3, -0.5, s).log_softmax(-1).exp(),
        (SCORES, IDS),
    ),
    "lengths": (
        lambda s, n: s.masked_fill(over_keys(torch.arange(7) >= n[:, None]), LOWEST).softmax(-1),
        (SCORES, torch.tensor([3, 7])),
    ),
    "hidden twice": (
        lambda s, m: (
            s[..., :5]
            .masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
            .masked_fill(over_keys(m[:, :5]) == 0, LOWEST)
            .softmax(-1)
        ),
        (SCORES, NOTHING),
    ),
    "causal": (
        lambda s: s[..., :5].masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf).softmax(-1),
        (SCORES,),
    ),
    "truth values": (
        lambda s, m, k: s * over_keys((m.bool() | k) ^ ~(k & (m <= 1)) ^ (m.bool() & (m < 3))).float(),
        (SCORES, IDS, KEYS.bool()),
    ),
    "comparisons": (
        lambda s, m: (
            s
            + over_keys(
                (m == 3).float()
                + 2 * (m != 2).float()
                + 4 * (m < 5).float()
                + 8 * torch.gt(torch.tensor(0), m).float()
            )
        ),
        (SCORES, IDS),
    ),
    "between constants": (
        lambda x, m: x + torch.where(m[:, None] != 3, torch.arange(7.0) - 2, -3.0),
        (WIDE, IDS),
    ),
    "attention": (
        lambda s, m: F.scaled_dot_product_attention(s, s + 1, s * 2, over_keys(m[:, :5]) != 0),
        (SCORES, NOTHING),
    ),
    "attention of padding": (
        lambda s, m: F.scaled_dot_product_attention(
            s, s + 1, s * 2, torch.zeros(2, 5).masked_fill(m[:, :5] == 0, -math.inf)[:, None, None]
        ),
        (SCORES, NOTHING),
    ),
    "attention of padding, chosen": (
        lambda s, m: F.scaled_dot_product_attention(
            s, s + 1, s * 2, over_keys(torch.where(m[:, :5] != 0, 0.0, -math.inf))
        ),
        (SCORES, NOTHING),
    ),
    "attention of a grid of positions": (
        lambda s, m: F.scaled_dot_product_attention(
            s,
            s,
            s,
            m.bool()[torch.arange(2).view(2, 1, 1, 1), torch.arange(5)] & torch.ones(5, 5).tril().bool(),
        ),
        (SCORES, KEYS),
    ),
}


@pytest.mark.parametrize("name", MASKED)
def test_only_casts_of_the_inputs_stay_outside(name: str) -> None:
    function, inputs = MASKED[name]
    module = Net(lambda m, *x: function(*x))
    outside = {"dim_order_ops::_to_dim_order_copy.out"} if len(inputs) > 1 else set()
    lowered = dimorder.lower(module, inputs, target="xnnpack")
    if "the other way" not in name:  # XNNPACK has no logarithm of a softmax
        assert (lowered.artifact.delegates, set(lowered.artifact.outside)) == (1, outside)
    infinite = inputs[0].index_fill(-1, torch.tensor([1]), math.inf)
    for scores in (inputs[0],) if "attention" in name else (inputs[0], infinite):
        got, wanted = (run(scores, *inputs[1:]) for run in (lowered.run, module))
        torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("name", MASKED)
def test_tosa_gives_the_same_numbers(name: str) -> None:
    function, inputs = MASKED[name]
    module = Net(lambda m, *x: function(*x))
    lowered = dimorder.lower(module, inputs, target="tosa")
    torch.testing.assert_close(lowered.run(*inputs), module(*inputs))


def test_a_choice_by_the_numbers_themselves_stays_a_choice() -> None:
    """Arithmetic would make NaN of the logarithm that is not taken."""
    module = Net(lambda m, x: torch.where(x > 0, x.log(), 0.0) + x.masked_fill(x.isnan(), 1.0).softmax(-1))
    kept = [str(node.target) for node in capture(module, (WIDE,)).nodes if node.op == "call_function"]
    assert "aten.where.ScalarOther" in kept and "aten.masked_fill.Scalar" in kept


def test_layers_share_a_mask() -> None:
    def two(m: object, s: Tensor, mask: Tensor) -> Tensor:
        hidden = over_keys(mask) == 0
        for _ in range(2):
            s = s.masked_fill(hidden, LOWEST).softmax(-1)
        return s

    called = [node.target for node in capture(Net(two), (SCORES, KEYS)).nodes]
    assert called.count(torch.ops.aten.log.default) == 2
    assert called.count(torch.ops.aten.minimum.default) == 2


@pytest.mark.parametrize("target", ["torch", "xnnpack", "tosa"])
def test_numbers_beside_bits_have_torchs_type(target: str) -> None:
    def compute(m: torch.nn.Module, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        a = x > 0
        return a | 1, a ^ 2, a & True, i & 300, i | -129, 1 & i

    network, given = Net(compute), (SCORES, torch.arange(-128, 128, dtype=torch.int8))
    got = dimorder.lower(network, given, target=target).run(*given)
    for found, wanted in zip(got, network(*given), strict=True):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
