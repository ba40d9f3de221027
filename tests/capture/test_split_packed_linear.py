"""Packed linears are cut where slices copy, and stay whole where that is cheaper."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from tests.capture.linears import aten, operators, rewritten, values
from tests.small_networks import Net


def _attention(m: Any, x: Tensor) -> list[Tensor]:
    """As timm has it: three times some heads."""
    return list(m.a(x).unflatten(-1, (3, 2, 9)).permute(2, 0, 3, 1, 4).unbind(0))


def _in_projection(m: Any, x: Tensor) -> list[Tensor]:
    """As torch's own attention has it."""
    packed = m.a(x).unflatten(-1, (3, 18)).unsqueeze(0).transpose(0, -2).squeeze(-2)
    return [packed[0], packed[1], packed[2]]


CUT: dict[str, tuple[nn.Module, tuple[int, ...], list[str]]] = {
    "chunks": (Net(lambda m, x: m.a(x).chunk(3, -1), a=nn.Linear(5, 54)), (2, 3, 5), ["linear"] * 3),
    "pieces of several sizes": (
        Net(lambda m, x: m.a(x).split((16, 20, 18), -1), a=nn.Linear(5, 54)),
        (2, 3, 5),
        ["linear"] * 3,
    ),
    "a piece of a piece": (
        Net(lambda m, x: m.a(x)[..., :40].chunk(2, -1), a=nn.Linear(5, 54)),
        (2, 3, 5),
        ["linear"] * 2,
    ),
    "every second feature": (
        Net(lambda m, x: [(y := m.a(x))[..., ::2], y[..., 1::2]], a=nn.Linear(5, 54)),
        (2, 3, 5),
        ["linear"] * 2,
    ),
    "heads": (Net(_attention, a=nn.Linear(5, 54)), (2, 7, 5), ["linear"] * 3),
    "an inner factor of the features": (
        Net(lambda m, x: m.a(x).unflatten(-1, (9, 3, 2)).transpose(1, 3).unbind(1), a=nn.Linear(5, 54)),
        (2, 7, 5),
        ["linear"] * 3,
    ),
    "torch's attention": (Net(_in_projection, a=nn.Linear(5, 54)), (2, 7, 5), ["linear"] * 3),
    "channels": (
        Net(lambda m, x: m.a(x).chunk(2, 1), a=nn.Conv2d(5, 36, 3, padding=1, stride=2)),
        (2, 5, 8, 9),
        ["convolution"] * 2,
    ),
    "channels behind an activation": (
        Net(lambda m, x: F.silu(m.a(x)).chunk(2, 1), a=nn.Conv2d(5, 36, 3)),
        (2, 5, 8, 9),
        ["convolution", "silu", "convolution", "silu"],
    ),
    "a gate": (
        Net(lambda m, x: F.glu(m.a(x), 1), a=nn.Conv1d(5, 36, 3)),
        (2, 5, 8),
        ["convolution", "convolution", "sigmoid", "mul"],
    ),
    "features that nothing reads": (
        Net(lambda m, x: m.a(x)[..., 7:29], a=nn.Linear(5, 54)),
        (2, 3, 5),
        ["linear"],
    ),
    "a factor behind one piece": (
        Net(lambda m, x: [(y := _attention(m, x))[0] * 0.3, *y[1:]], a=nn.Linear(5, 54)),
        (2, 7, 5),
        ["linear"] * 3,
    ),
}


@pytest.mark.parametrize("name", CUT)
def test_a_product_whose_result_is_only_cut_is_one_for_each_piece(name):
    model, shape, left = CUT[name]
    x = values(*shape, seed=5)
    before, after = rewritten(model, x)
    assert sorted(operators(after)) == sorted(left)
    assert after.constant_bytes <= before.constant_bytes
    assert "slice" in operators(rewritten(model, x, cuts=False)[1])  # where a slice is a view


WHOLE: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "pieces that overlap": (
        Net(lambda m, x: [(y := m.a(x))[..., :30], y[..., 20:]], a=nn.Linear(5, 54)),
        (2, 5),
    ),
    "another reader": (Net(lambda m, x: [(y := m.a(x))[..., :30], y.sin()], a=nn.Linear(5, 54)), (2, 5)),
    "a result": (Net(lambda m, x: [(y := m.a(x))[..., :30], y], a=nn.Linear(5, 54)), (2, 5)),
    "a weight that is read twice": (
        Net(lambda m, x: [(y := m.a(x))[..., :20], m.a(y[..., 20:])], a=nn.Linear(20, 40)),
        (2, 20),
    ),
    "a slice of rows": (Net(lambda m, x: m.a(x)[:, 1:], a=nn.Linear(5, 54)), (2, 3, 5)),
    "a slice of rows and features together": (
        Net(lambda m, x: m.a(x).reshape(2, 81, 2).chunk(3, 1), a=nn.Linear(5, 54)),
        (2, 3, 5),
    ),
    "a convolution in groups": (
        Net(lambda m, x: m.a(x).chunk(2, 1), a=nn.Conv2d(4, 36, 3, groups=2)),
        (2, 4, 5, 7),
    ),
    "narrow pieces": (Net(lambda m, x: m.a(x).chunk(4, -1), a=nn.Linear(5, 32)), (2, 5)),
    "a softmax between": (Net(lambda m, x: m.a(x).softmax(-1).chunk(2, -1), a=nn.Linear(5, 54)), (2, 5)),
    "a computed factor between": (
        Net(lambda m, x: (m.a(x) * x.sum()).chunk(2, -1), a=nn.Linear(5, 54)),
        (2, 5),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_product_stays_whole_where_there_is(name):
    model, shape = WHOLE[name]
    before, after = rewritten(model, values(*shape))
    assert operators(after) == operators(before)


@pytest.mark.parametrize(("objective", "products"), [("bytes", 3), ("count", 1)])
def test_packed_products_stay_whole_where_conversions_are_counted(objective, products):
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.packed = nn.Linear(6, 3 * 16)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (each.reshape(2, 5, 2, 8).transpose(1, 2) for each in self.packed(x).chunk(3, -1))
            return (q @ k.transpose(-2, -1)).softmax(-1) @ v

    physical = dimorder.lower(Heads(), (values(2, 5, 6),), target="xnnpack", objective=objective).physical
    assert [node.target for node in physical.graph.nodes].count(aten.linear.default) == products
