"""Inputs and outputs of all kinds, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.ops.rules import Case, X, case, check, constant, ints, unary

FAMILIES: dict[str, dict[str, Case]] = {
    "boundary": {
        "an output twice": case(lambda m, x: (lambda y: (y, y, y))(m.c(x)), X, c=nn.Conv2d(6, 4, 3)),
        "an output and its views": case(
            lambda m, x: (lambda y: (y, y.flatten(1), y.permute(0, 2, 3, 1)))(m.c(x)), X, c=nn.Conv2d(6, 4, 3)
        ),
        "an input": case(lambda m, x: (x, x + 1), X),
        "an input and its view": case(lambda m, x: (x.permute(0, 2, 3, 1), x.flatten(1)), X),
        "a constant": case(lambda m, x: (m.c, x + 1, m.c * 2, m.c), X, c=constant(3, 4)),
        "a 4-D constant": case(lambda m, x: (m.c, x + 1), X, c=constant(2, 4, 5, 3)),
        "an unused input": case(lambda m, x, y: x + 1, X, X),
        "an unused result": case(lambda m, x: (x.sort(1)[1], x * 2)[0], X),
        "an input used twice": case(
            lambda m, x: m.c(x) + m.d(x), X, c=nn.Conv2d(6, 4, 3), d=nn.Conv2d(6, 4, 3)
        ),
        "0-d": case(lambda m, x: (x * 2, x.sigmoid()), ()),
        "batch 1": case(lambda m, x: m.c(x).flatten(1), (1, 6, 5, 7), c=nn.Conv2d(6, 4, 3)),
        "one channel": case(
            lambda m, x: m.c(x) * m.d(x), (2, 1, 5, 7), c=nn.Conv2d(1, 4, 3), d=nn.Conv2d(1, 1, 3)
        ),
        "one place": case(
            lambda m, x: (m.c(x), x.softmax(1), x.mean((2, 3)), torch.cat([x, x], 2)),
            (2, 6, 1, 1),
            c=nn.Conv2d(6, 4, 1),
        ),
        "all sizes 1": case(
            lambda m, x: (m.c(x), x + 1, x.flatten(), x.mean((2, 3)), x.softmax(1), F.layer_norm(x, (1, 1))),
            (1, 1, 1, 1),
            c=nn.Conv2d(1, 1, 1),
        ),
        "5-D": unary(lambda x: (x + 1, x.permute(0, 2, 3, 4, 1).relu(), x.mean((2, 4))), 2, 3, 5, 4, 7),
        "6-D": unary(lambda x: (x.transpose(1, 4) * 2, x.sum(3)), 2, 3, 5, 4, 7, 6),
        "8-D": unary(
            lambda x: x.reshape(2, 2, 3, 2, 2, 3, 5, 2).permute(7, 0, 6, 1, 5, 2, 4, 3).relu(), 4, 6, 6, 10
        ),
        "booleans": case(lambda m, x: ~x, ints(*X) > 4),
        "structure": case(lambda m, x, y: {"sum": x + y, "both": [x * y, (y - x,)]}, X, X),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    check(FAMILIES[family])
