"""Networks whose attention hides scores, in the spellings in which people write masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

BATCH, LENGTH, WIDTH = 2, 7, 24
LOWEST = torch.finfo(torch.float32).min

# Scores and truth values, true for what is kept → scores of which some are hidden.
SPELLINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "filled with -inf": lambda a, m: a.masked_fill(~m, -math.inf),
    "filled with the lowest": lambda a, m: a.masked_fill(~m, LOWEST),
    "filled in place": lambda a, m: a.masked_fill_(~m, -1e9),
    "chosen": lambda a, m: torch.where(m, a, torch.tensor(-1e9)),
    "chosen, the other way": lambda a, m: torch.where(~m, -1e4, a),
    "a sum with a choice": lambda a, m: a + torch.where(m, 0.0, LOWEST),
    "a sum with a choice of bias": lambda a, m: a + torch.where(m, torch.ones(LENGTH) * 0.3, LOWEST),
    "a sum with a fill": lambda a, m: (
        a + torch.zeros_like(m, dtype=torch.float32).masked_fill_(~m, -math.inf)
    ),
    "a sum with a product": lambda a, m: a + (1.0 - m.float()) * LOWEST,
    "a sum with a product of the hidden": lambda a, m: a + (~m).float() * -1e4,
    "a product before a move": lambda a, m: a + ((1 - m[:, :, 0].float()) * -1e9)[:, :, None],
    "two masks": lambda a, m: a.masked_fill(~m, -1e9).masked_fill(~causal(), -1e9),
    "a constant sum": lambda a, m: a + torch.triu(torch.full((LENGTH, LENGTH), -math.inf), 1),
    "a constant choice": lambda a, m: a.masked_fill(~causal(), -math.inf),
    "windows": lambda a, m: (a.view(1, BATCH, 3, LENGTH, LENGTH) + hidden_pairs()).view(a.shape),
}

# The same in calls whose meaning no rule knows: examples show which numbers are far below the scores.
RARE_SPELLINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "added in place": lambda a, m: a.add_(torch.where(m, 0.0, -1e9)),
    "at places": lambda a, m: at_places(a.clone(), ~m),
    "a difference": lambda a, m: a - (1 - m.float()) * 1e9,
    "a difference with a choice": lambda a, m: a - torch.where(m, 0.0, 1e9),
    "expanded": lambda a, m: a + ((1 - m.float()) * -1e9).expand_as(a),
    "a triangle in place": lambda a, m: a + torch.full((LENGTH, LENGTH), -1e9).triu_(1),
    "scaled afterwards": lambda a, m: a.masked_fill(~m, -1e9) * 0.5,
    "not below the lowest": lambda a, m: torch.max(a + torch.where(m, 0.0, LOWEST), torch.tensor(LOWEST)),
    "a logarithm": lambda a, m: a + (m.float() + 1e-30).log(),
    "two fills": lambda a, m: a + m.float().masked_fill(m == 0, -1e9).masked_fill(m == 1, 0.0),
    "less the largest": lambda a, m: less_the_largest(a.masked_fill(~m, -1e9)),
    "beside a sink": lambda a, m: torch.cat([a.masked_fill(~m, -1e9), a[..., :1] * 0.5], -1)[..., :LENGTH],
    "selected": lambda a, m: (a + torch.where(m, 0.0, -1e9))[:, [0, 1, 2]],
    "a view of a choice": lambda a, m: (
        (a.view(1, BATCH, 3, LENGTH, LENGTH) + torch.where(m, 0.0, -1e9)).view(a.shape).masked_fill(~m, -1e9)
    ),
    "padded": lambda a, m: functional.pad(a, (0, 2), value=-math.inf)[..., :LENGTH],
}


def at_places(scores: Tensor, hidden: Tensor) -> Tensor:
    scores[hidden.expand(scores.shape)] = -1e9
    return scores


def less_the_largest(scores: Tensor) -> Tensor:
    return scores - scores.amax(-1, keepdim=True)


def causal() -> Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


def hidden_pairs() -> Tensor:
    """Return what is added to the scores of two windows, as Swin does."""
    mask = torch.zeros(BATCH, 1, LENGTH, LENGTH)
    mask[1, :, :3, 3:] = mask[1, :, 3:, :3] = -100.0
    return mask


class Attention(nn.Module):
    """Attention with three heads; `spelling` names how it hides scores, or `attend` computes all of it."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling = spelling
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        q, k, v = (f(x).view(BATCH, LENGTH, 3, 8).transpose(1, 2) for f in (self.query, self.key, self.value))
        kept = kept[:, None, None, :]
        if self.spelling == "attention":
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=kept)
        elif self.spelling == "causal attention":
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(8)
            y = {**SPELLINGS, **RARE_SPELLINGS}[self.spelling](scores, kept).softmax(-1) @ v
        out: Tensor = self.out(y.transpose(1, 2).reshape(x.shape))
        return out


class Library(nn.Module):
    """A layer of torch that hides scores: by which keys are padding, and by which come later."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        layers: Mapping[str, Callable[..., nn.Module]] = {
            "MultiheadAttention": nn.MultiheadAttention,
            "TransformerEncoderLayer": lambda *sizes, **how: nn.TransformerEncoderLayer(*sizes, 48, **how),
        }
        self.layer = layers[kind](WIDTH, 3, batch_first=True)
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        layer: Any = self.layer
        if self.kind == "MultiheadAttention":
            return layer(x, x, x, key_padding_mask=~kept, attn_mask=self.later)[0]  # type: ignore[no-any-return]
        return layer(x, src_mask=self.later, src_key_padding_mask=~kept)  # type: ignore[no-any-return]


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    **{name: lambda name=name: Attention(name) for name in (*SPELLINGS, "attention", "causal attention")},
    **{name: lambda name=name: Library(name) for name in ("MultiheadAttention", "TransformerEncoderLayer")},
}
RARE: Mapping[str, Callable[[], nn.Module]] = {
    name: lambda name=name: Attention(name) for name in RARE_SPELLINGS
}


def example() -> tuple[Tensor, Tensor]:
    """Return values, and which keys are kept: the first one of each row, and most others."""
    kept = torch.rand(BATCH, LENGTH) > 0.3
    kept[:, 0] = True
    return torch.randn(BATCH, LENGTH, WIDTH), kept
