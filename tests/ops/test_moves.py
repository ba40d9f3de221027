"""Views, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.ops.rules import Case, X, case, check, conv, unary

FAMILIES: dict[str, dict[str, Case]] = {
    "views": {
        "flatten": unary(lambda x: x.flatten(1), *X),
        "flatten middle": unary(lambda x: x.flatten(1, 2), *X),
        "flatten all": unary(lambda x: x.flatten(), *X),
        "permute": unary(lambda x: x.permute(0, 2, 3, 1), *X),
        "permute twice": unary(lambda x: x.permute(2, 0, 3, 1).permute(1, 0, 3, 2), *X),
        "transpose": unary(lambda x: x.transpose(1, -1), *X),
        "mT": unary(lambda x: x.mT, *X),
        "t": unary(lambda x: x.t(), 5, 7),
        "squeeze": unary(lambda x: (x.squeeze(), x.squeeze(1), x.squeeze((0, 1)), x.squeeze(2)), 1, 1, 5, 7),
        "unsqueeze": unary(lambda x: (x.unsqueeze(0), x.unsqueeze(-1), x.unsqueeze(2)), *X),
        "movedim": unary(lambda x: x.movedim(1, 3), *X),
        "split a channel": unary(lambda x: x.unflatten(1, (3, 2)) * 2, *X),
        "merge across": unary(lambda x: x.permute(0, 2, 3, 1).reshape(2, 35, 6).relu(), *X),
        "channel shuffle": unary(lambda x: x.reshape(2, 3, 2, 5, 7).transpose(1, 2).reshape(X), *X),
        "nn.ChannelShuffle": conv(nn.ChannelShuffle(3), *X),
        "pixel shuffle": unary(lambda x: F.pixel_shuffle(x, 2), 2, 12, 5, 7),
        "pixel unshuffle": unary(lambda x: F.pixel_unshuffle(x, 2), 2, 3, 10, 6),
        "space to depth by hand": unary(
            lambda x: x.reshape(2, 3, 5, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(2, 12, 5, 3), 2, 3, 10, 6
        ),
        "window partition": unary(
            lambda x: x.view(2, 3, 4, 2, 4, 5).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 5).softmax(1),
            2,
            12,
            8,
            5,
        ),
        "window round trip": unary(
            lambda x: (
                x.view(2, 3, 4, 2, 4, 5)
                .permute(0, 1, 3, 2, 4, 5)
                .reshape(12, 16, 5)
                .relu()
                .view(2, 3, 2, 4, 4, 5)
                .permute(0, 1, 3, 2, 4, 5)
                .reshape(2, 12, 8, 5)
            ),
            2,
            12,
            8,
            5,
        ),
        "awkward": unary(lambda x: x.reshape(2, 4, 24).relu(), 2, 6, 16),
        "awkward and back": unary(lambda x: x.reshape(2, 4, 24).softmax(1).reshape(2, 6, 16), 2, 6, 16),
        "awkward, transposed": unary(lambda x: x.transpose(1, 2).reshape(2, 24, 4).mean(1), 2, 6, 16),
        "awkward after conv": case(
            lambda m, x: m.b(m.a(x).reshape(2, 4, 18, 6).relu()),
            X,
            a=nn.Conv2d(6, 12, 2, padding=(1, 0)),
            b=nn.Conv2d(4, 3, 2),
        ),
        "conflicting cuts": unary(
            lambda x: (x.reshape(2, 2, 48, 5).relu(), x.reshape(2, 3, 32, 5).softmax(1)), 2, 96, 5
        ),
        "conflicting cuts, both reduced": unary(
            lambda x: (x.reshape(2, 2, 6, 5).softmax(1), x.reshape(2, 3, 4, 5).amax(2)), 2, 12, 5
        ),
        "split and interleave": unary(lambda x: torch.stack([x[:, ::2], x[:, 1::2]], 2).flatten(1, 2), *X),
        "rotate halves": unary(lambda x: torch.cat([-x[..., 4:], x[..., :4]], -1), 2, 3, 5, 8),
        "rotate pairs": unary(
            lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2), 2, 3, 5, 8
        ),
        "to a scalar": unary(lambda x: x.reshape(()), 1, 1),
        "from a scalar": unary(lambda x: x.reshape(1, 1)),
        "of size 1 axes": unary(lambda x: x.reshape(1, 2, 1, 6, 35).relu(), *X),
        "view dtype free": unary(lambda x: x.view(x.shape) + 1, *X),
        "view as": case(lambda m, x, y: x.view_as(y) + y, (2, 30, 7), X),
        "conv, tokens, conv": case(
            lambda m, x: m.b((m.n(m.a(x).flatten(2).transpose(1, 2))).transpose(1, 2).reshape(2, 4, 3, 5)),
            X,
            a=nn.Conv2d(6, 4, 3),
            n=nn.LayerNorm(4),
            b=nn.Conv2d(4, 3, 2),
        ),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    check(FAMILIES[family])
