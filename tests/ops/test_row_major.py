"""Operators that run row-major, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.ops.rules import Case, X, case, check, ints, unary

FAMILIES: dict[str, dict[str, Case]] = {
    "opaque": {
        "embedding": case(lambda m, x: m.e(x), ints(2, 5), e=nn.Embedding(10, 6)),
        "embedding bag": case(
            lambda m, x, o: m.e(x, o),
            ints(9),
            torch.tensor([0, 4, 4]),
            e=nn.EmbeddingBag(10, 6, mode="mean"),
        ),
        "median": unary(lambda x: (x.median(1), x.median()), 2, 5, 7),
        "embedding, then conv": case(
            lambda m, x: m.c(m.e(x).transpose(1, 2)), ints(2, 5), e=nn.Embedding(10, 6), c=nn.Conv1d(6, 4, 3)
        ),
        "embedding of an image": case(
            lambda m, x: m.c(m.e(x).permute(0, 3, 1, 2)),
            ints(2, 5, 7),
            e=nn.Embedding(10, 6),
            c=nn.Conv2d(6, 4, 3),
        ),
        "topk": unary(lambda x: x.topk(3, 1), *X),
        "topk, twice": unary(lambda x: (x.topk(3, 1)[1], x.topk(3, 1)[1] + 1), *X),
        "topk, one result": unary(lambda x: x.topk(3, -1)[0], *X),
        "sort": unary(lambda x: x.sort(1), *X),
        "svd": unary(lambda x: torch.linalg.svdvals(x), 2, 5, 7),
        "lstm": case(lambda m, x: m.l(x)[0], (5, 2, 6), l=nn.LSTM(6, 4)),
        "gru": case(lambda m, x: m.l(x), (2, 5, 6), l=nn.GRU(6, 4, batch_first=True)),
        "between convs": case(
            lambda m, x: m.b(m.a(x).sort(1)[0]), X, a=nn.Conv2d(6, 4, 3), b=nn.Conv2d(4, 3, 2)
        ),
        "one hot": case(lambda m, x: F.one_hot(x, 10).float(), ints(2, 5)),
        "bincount free scatter": case(
            lambda m, x, i: torch.zeros_like(x).scatter_add(1, i, x), X, ints(*X, below=6)
        ),
        "cdist": case(lambda m, x, y: torch.cdist(x, y), (2, 5, 3), (2, 7, 3)),
        "complex": unary(lambda x: torch.fft.rfft2(x).abs(), *X),
        "outer index": unary(lambda x: x[:, torch.tensor([0, 3])][:, :, torch.tensor([1])], *X),
        "nothing": case(lambda m, x: x.new_tensor([1.0, 2.0]) + x[0, 0, 0, :2], X),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    check(FAMILIES[family])
