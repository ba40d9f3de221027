"""Attention, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

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


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    check(FAMILIES[family])
