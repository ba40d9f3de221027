"""Linears and products of matrices, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.ops.rules import Case, X, case, check, constant, conv

FAMILIES: dict[str, dict[str, Case]] = {
    "dense": {
        "linear": conv(nn.Linear(7, 4), *X),
        "linear, no bias": conv(nn.Linear(7, 4, bias=False), 3, 7),
        "linear of a vector": conv(nn.Linear(7, 4), 7),
        "linear to one": conv(nn.Linear(7, 1), *X),
        "linear from one": conv(nn.Linear(1, 7), 2, 6, 5, 1),
        "linear, weight computed": case(lambda m, x, w: F.linear(x, w), X, (4, 7)),
        "linear, bias computed": case(lambda m, x, b: F.linear(x, m.w, b), X, (4,), w=constant(4, 7)),
        "linear, weight a vector": case(lambda m, x: F.linear(x, m.w), X, w=constant(7)),
        "linear of a vector, weight computed": case(lambda m, x, w: F.linear(x, w), (7,), (4, 7)),
        "after flatten": case(lambda m, x: m.layer(x.flatten(1)), X, layer=nn.Linear(210, 11)),
        "after permute and flatten": case(
            lambda m, x: m.layer(x.permute(0, 3, 1, 2).flatten(1)), X, layer=nn.Linear(210, 11)
        ),
        "after conv": case(
            lambda m, x: m.dense(m.conv(x).flatten(1)), X, conv=nn.Conv2d(6, 4, 3), dense=nn.Linear(60, 11)
        ),
        "matmul": case(lambda m, x, y: x @ y, (2, 6, 5, 7), (2, 6, 7, 3)),
        "matmul, transposed": case(lambda m, x, y: x @ y.transpose(-1, -2), (2, 6, 5, 7), (2, 6, 3, 7)),
        "matmul, broadcast batch": case(lambda m, x, y: x @ y, (2, 6, 5, 7), (6, 7, 3)),
        "matmul, both broadcast": case(lambda m, x, y: x @ y, (2, 1, 5, 7), (6, 7, 3)),
        "matmul, 2-D by 3-D": case(lambda m, x, y: x @ y, (5, 7), (4, 7, 3)),
        "matmul, 3-D by 2-D": case(lambda m, x, y: x @ y, (4, 5, 7), (7, 3)),
        "matmul, 2-D": case(lambda m, x, y: x @ y, (5, 7), (7, 3)),
        "matmul by a column": case(lambda m, x, y: x @ y, (2, 6, 5, 7), (2, 6, 7, 1)),
        "row by matmul": case(lambda m, x, y: x @ y, (2, 6, 1, 7), (2, 6, 7, 5)),
        "matmul by a vector": case(lambda m, x, y: x @ y, (4, 5, 7), (7,)),
        "vector by matmul": case(lambda m, x, y: x @ y, (7,), (4, 7, 5)),
        "vector by a constant matrix": case(lambda m, x: x @ m.right, (7,), right=constant(7, 5)),
        "constant matrices by a vector": case(lambda m, x: m.left @ x, (5,), left=constant(4, 7, 5)),
        "vector by a vector": case(lambda m, x, y: x * (x @ y), (7,), (7,)),
        "dot": case(lambda m, x, y: x @ y, (7,), (7,)),
        "matmul by a constant": case(lambda m, x: x @ m.w, (2, 6, 5, 7), w=constant(7, 3)),
        "constant by matmul": case(lambda m, x: m.w @ x, (2, 6, 5, 7), w=constant(4, 5)),
        "batched constant": case(lambda m, x: x @ m.w, (2, 6, 5, 7), w=constant(6, 7, 3)),
        "batched constant first": case(lambda m, x: m.w @ x, (2, 6, 5, 7), w=constant(6, 4, 5)),
        "batched constant, all of the batch": case(
            lambda m, x: x @ m.w, (2, 6, 5, 7), w=constant(2, 6, 7, 3)
        ),
        "batched constant, some of the batch": case(
            lambda m, x: m.w @ x, (2, 6, 3, 5, 7), w=constant(2, 1, 3, 4, 5)
        ),
        "batched constant, more of the batch": case(
            lambda m, x: x @ m.w, (6, 1, 5, 7), w=constant(2, 6, 3, 7, 3)
        ),
        "inner size 1": case(lambda m, x, y: x @ y, (2, 5, 1), (2, 1, 3)),
        "outer size 1": case(lambda m, x, y: x @ y, (2, 1, 5), (2, 5, 1)),
        "square of one value": case(lambda m, x: x @ x.transpose(-1, -2), (2, 6, 5, 7)),
        "bmm": case(lambda m, x, y: torch.bmm(x, y), (4, 5, 7), (4, 7, 3)),
        "addmm": case(lambda m, x: torch.addmm(m.b, x, m.w), (5, 7), b=constant(3), w=constant(7, 3)),
        "addmm, scaled": case(
            lambda m, x: torch.addmm(m.b, x, m.w, beta=0.5, alpha=2), (5, 7), b=constant(3), w=constant(7, 3)
        ),
        "addcmul": case(lambda m, x, a: torch.addcmul(m.b, x, a, value=0.5), (5, 7), (5, 1), b=constant(7)),
        "addcdiv": case(lambda m, x, a: torch.addcdiv(x, m.b, a.exp()), (5, 7), (5, 1), b=constant(7)),
        "addmm, all computed": case(lambda m, b, x, w: torch.addmm(b, x, w), (5, 3), (5, 7), (7, 3)),
        "baddbmm": case(lambda m, b, x, w: torch.baddbmm(b, x, w), (4, 5, 3), (4, 5, 7), (4, 7, 3)),
        "einsum, attention": case(
            lambda m, x, y: torch.einsum("bhid,bhjd->bhij", x, y), (2, 3, 5, 7), (2, 3, 6, 7)
        ),
        "einsum, mixed": case(
            lambda m, x, y: torch.einsum("bcij,bdij->bcd", x, y), (2, 3, 5, 7), (2, 6, 5, 7)
        ),
        "einsum, weight": case(lambda m, x: torch.einsum("bchw,oc->bohw", x, m.w), X, w=constant(4, 6)),
        "bilinear": case(lambda m, x, y: m.layer(x, y), (5, 3), (5, 4), layer=nn.Bilinear(3, 4, 6)),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    check(FAMILIES[family])
