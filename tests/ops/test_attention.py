"""Attention, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dimorder
from dimorder.ops.attention import ATTENTION
from dimorder.ops.dialect import OPS
from tests.ops.rules import Case, case, check, constant, conv

FAMILIES: dict[str, dict[str, Case]] = {
    "attention": {
        "plain": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
        ),
        "causal": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
        ),
        "constant mask": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=m.mask),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
            mask=constant(5, 6),
        ),
        "constant mask with a hidden row": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=m.mask),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
            mask=torch.arange(30.0).reshape(5, 6).masked_fill(torch.arange(5)[:, None] == 3, float("-inf")),
        ),
        "boolean mask": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=m.mask),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
            mask=torch.ones(5, 6, dtype=torch.bool).tril(1),
        ),
        "computed mask": case(
            lambda m, q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
            (2, 1, 5, 6),
        ),
        "computed boolean mask": case(
            lambda m, q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask > -1),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
            (2, 1, 5, 6),
        ),
        "scale": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
        ),
        "grouped heads": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            (2, 6, 5, 8),
            (2, 3, 7, 8),
            (2, 2, 7, 9),
        ),
        "3-D": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v), (3, 5, 8), (3, 6, 8), (3, 6, 7)
        ),
        "multihead": case(
            lambda m, x: m.layer(x, x, x)[0], (2, 5, 12), layer=nn.MultiheadAttention(12, 3, batch_first=True)
        ),
        "multihead, sequence first": case(
            lambda m, x: m.layer(x, x, x), (5, 2, 12), layer=nn.MultiheadAttention(12, 3)
        ),
        "encoder layer": conv(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), 2, 5, 12),
    },
}


@pytest.mark.parametrize("fused", [(), (ATTENTION,)], ids=["in matmuls", "as one operator"])
@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str, fused: tuple[Any, ...]) -> None:
    check(FAMILIES[family], fused)


class Attention(nn.Module):
    """Attention of a picture's rows, with a mask (or not) that has this shape."""

    def __init__(self, *mask: int, is_causal: bool = False) -> None:
        super().__init__()
        self.linear, self.is_causal = nn.Linear(12, 36), is_causal
        self.mask = constant(*mask) if mask else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in self.linear(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, self.mask, is_causal=self.is_causal, scale=0.3)
        return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("target", ["torch", "xnnpack"])
@pytest.mark.parametrize(
    ("network", "is_one"),
    [
        (Attention(), True),
        (Attention(is_causal=True), True),
        (Attention(5, 5), True),
        (Attention(2, 1, 1, 5), True),
        (Attention(3, 5, 5), False),  # each head has its own
    ],
    ids=["plain", "causal", "mask", "mask of a batch", "mask of heads"],
)
def test_a_target_with_attention_keeps_it_between_linears_without_a_conversion(
    network: Attention, is_one: bool, target: str
) -> None:
    x = torch.randn(2, 5, 12)
    lowered = dimorder.lower(network, (x,), target=target)
    torch.testing.assert_close(lowered.run(x), network(x))
    targets = [node.target for node in lowered.physical.graph.nodes]
    one = is_one and target == "torch"
    assert targets.count(OPS.attention_nlhe.default) == one
    assert not one or lowered.plan.conversions == ()


def test_ranges_have_attention_too() -> None:
    network, size = Attention(), torch.export.Dim("L", min=2, max=40)
    lowered = dimorder.lower(network, (torch.randn(2, 5, 12),), dynamic_shapes=({1: size},), target="torch")
    for length in (2, 7, 40):
        x = torch.randn(2, length, 12)
        torch.testing.assert_close(lowered.run(x), network(x))
    assert OPS.attention_nlhe.default in [node.target for node in lowered.physical.graph.nodes]
