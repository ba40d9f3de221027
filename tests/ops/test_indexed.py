"""Operators that join and cut, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.ops.rules import Case, X, case, check, constant, ints, unary

FAMILIES: dict[str, dict[str, Case]] = {
    "joining": {
        **{
            f"cat {d}": case(
                lambda m, x, y, d=d: torch.cat([x, y], d), X, tuple(s + (d == i) for i, s in enumerate(X))
            )
            for d in range(4)
        },
        "cat of equal sizes": case(lambda m, x, y: torch.cat([x, y], 1), X, X),
        "cat of one value twice": unary(lambda x: torch.cat([x, x], 1), *X),
        "cat of three": case(lambda m, x, y, z: torch.cat([x, y, z], -3), X, (2, 3, 5, 7), (2, 9, 5, 7)),
        "cat with a constant": case(
            lambda m, x: torch.cat([m.a, x, m.b], 1), X, a=constant(2, 4, 5, 7), b=constant(2, 2, 5, 7)
        ),
        "cat of size 1": case(lambda m, x, y: torch.cat([x, y], 1), (2, 1, 5, 7), (2, 1, 5, 7)),
        "cat of convs": case(
            lambda m, x: m.c(torch.cat([m.a(x), m.b(x)], 1)),
            X,
            a=nn.Conv2d(6, 4, 3),
            b=nn.Conv2d(6, 8, 3),
            c=nn.Conv2d(12, 5, 2),
        ),
        "cat with an empty one": case(lambda m, x: torch.cat([m.none, x], 1), X, none=torch.zeros(0)),
        "cat of types": case(lambda m, x, y: torch.cat([x, y.double()], 1), X, X),
        **{f"stack {d}": case(lambda m, x, y, d=d: torch.stack([x, y, x], d), X, X) for d in (0, 1, -1)},
        "class token": case(
            lambda m, x: torch.cat([m.token.expand(2, -1, -1), x.flatten(2).transpose(1, 2)], 1),
            X,
            token=constant(1, 1, 6),
        ),
        "pad H and W": unary(lambda x: F.pad(x, (1, 2, 0, 3)), *X),
        "pad with a value": unary(lambda x: F.pad(x, (1, 0), value=2.5), *X),
        "pad C": unary(lambda x: F.pad(x, (0, 0, 0, 0, 2, 4)), *X),
        "pad C unevenly": unary(lambda x: F.pad(x, (0, 0, 0, 0, 1, 4)), *X),
        "pad all": unary(lambda x: F.pad(x, (1, 2, 3, 4, 1, 0, 0, 1), value=-1.0), *X),
        "crop by padding": unary(lambda x: F.pad(x, (-1, -2, 1, 0)), *X),
        "pad nothing": unary(lambda x: F.pad(x, (0, 0)), *X),
        "pad size 1": unary(lambda x: F.pad(x, (0, 0, 1, 2)), 2, 6, 1, 7),
        "reflect": unary(lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), *X),
        "replicate": unary(lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"), *X),
        "circular": unary(lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"), *X),
        "zero pad of integers": case(lambda m, x: F.pad(x, (1, 2)), ints(*X)),
    },
    "cutting": {
        "slice C": unary(lambda x: x[:, 2:4], *X),
        "slice C unevenly": unary(lambda x: x[:, 1:6], *X),
        "slice H, W": unary(lambda x: x[:, :, 1:-1, 2:], *X),
        "slice of one": unary(lambda x: x[:, 3:4], *X),
        "slice batch": unary(lambda x: x[1:], *X),
        "slice step": unary(lambda x: x[:, :, :, ::2], *X),
        "slice step that divides": unary(lambda x: x[:, 1::2], *X),
        "slice step of three": unary(lambda x: x[:, 2::3], *X),
        "slice step, late start": unary(lambda x: x[:, 3::2], *X),
        "slice steps everywhere": unary(lambda x: x[:, ::3, 1::2, 2:7:4], *X),
        "focus": unary(
            lambda x: torch.cat(
                [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1
            ),
            2,
            3,
            4,
            10,
        ),
        "patch merging": unary(
            lambda x: torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1),
            2,
            4,
            10,
            3,
        ),
        "empty slice": unary(lambda x: x[:, 2:2], *X),
        "select": unary(lambda x: (x[:, 2], x[0], x[..., -1]), *X),
        "split": unary(lambda x: x.split(4, 1), *X),
        "split sizes": unary(lambda x: x.split([1, 2, 3], 1), *X),
        "split last": unary(lambda x: x.split(3, -1), *X),
        "chunk": unary(lambda x: x.chunk(3, 1), *X),
        "chunk unevenly": unary(lambda x: x.chunk(4, -1), *X),
        "chunk and gate": unary(lambda x: (lambda a, b: a * b.sigmoid())(*x.chunk(2, 1)), *X),
        "glu": unary(lambda x: F.glu(x, 1), *X),
        "unbind": unary(lambda x: x.unbind(1), *X),
        "unbind last": unary(lambda x: x.unbind(-1), *X),
        "qkv": unary(lambda x: x.reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0), 2, 5, 24),
        "narrow": unary(lambda x: x.narrow(2, 1, 3), *X),
        "flip a prime": unary(lambda x: x.flip(1), 2, 37, 5),
        "flip C": unary(lambda x: x.flip(1), *X),
        "flip H, W": unary(lambda x: x.flip((2, -1)), *X),
        "flip size 1": unary(lambda x: x.flip(1), 2, 1, 5),
        "flip size 1 and another": unary(lambda x: x.flip((1, 2)), 2, 1, 5),
        "slice_scatter": case(lambda m, x, y: torch.slice_scatter(x, y, 1, -5, 4), X, (2, 3, 5, 7)),
        "slice_scatter to the end": case(lambda m, x, y: torch.slice_scatter(x, y, 3, 3), X, (2, 6, 5, 4)),
        "slice_scatter, all": case(lambda m, x, y: torch.slice_scatter(x, y, 2), X, X),
        "slice_scatter, step": case(lambda m, x, y: torch.slice_scatter(x, y, 1, 1, 6, 2), X, (2, 3, 5, 7)),
        "slice_scatter, step, into a constant": unary(
            lambda x: torch.slice_scatter(torch.ones_like(x), x[:, 1::2], 1, 0, None, 2), *X
        ),
        "select_scatter": case(lambda m, x, y: torch.select_scatter(x, y, -2, -3), X, (2, 6, 7)),
        "copy of another shape": case(lambda m, x, y: torch.ops.aten.copy(x, y) + 1, X, (5, 1)),
        "copy of another type": case(lambda m, x, y: torch.ops.aten.copy(x, y.double()) + 1, X, X),
        "roll": unary(lambda x: x.roll((2, -3), (2, 3)), *X),
        "roll last": unary(lambda x: x.roll(1, -1), *X),
        "roll everything": unary(lambda x: x.roll(11), 2, 6, 5),
        "index by a list": unary(lambda x: x[:, [4, 0, 2]], *X),
        "index_select": case(lambda m, x: x.index_select(1, m.index), X, index=torch.tensor([4, 0, 2])),
        "gather": case(lambda m, x, i: x.gather(1, i), X, ints(2, 3, 5, 7, below=6)),
        "triu": unary(lambda x: x.triu(), *X),
        "unfold": unary(lambda x: F.unfold(x, 2), *X),
        "masked write": unary(lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 0, 2), *X),
        "select scatter": unary(lambda x: torch.select_scatter(x, x[:, 2] + 1, 1, 4), *X),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    check(FAMILIES[family])
