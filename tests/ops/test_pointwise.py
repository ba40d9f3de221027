"""Pointwise operators and broadcasting, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.ops.rules import Case, X, case, check, constant, conv, ints, unary


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :2] = 0.5
    y[..., 1:] += 1
    return y


FAMILIES: dict[str, dict[str, Case]] = {
    "broadcasting": {
        "bias": case(lambda m, x: x + m.b, X, b=constant(6, 1, 1)),
        "scale of the last dim": case(lambda m, x: x * m.b, X, b=constant(7)),
        "constant on the left": case(lambda m, x: m.b - x, X, b=constant(2, 6, 1, 7)),
        "full constant": case(lambda m, x: m.b / (x.abs() + 1), X, b=constant(*X)),
        "larger constant": case(lambda m, x: x + m.b, (6, 1, 7), b=constant(2, 1, 5, 1)),
        "0-d constant": case(lambda m, x: x * m.b, X, b=torch.tensor(2.5)),
        "two values": case(lambda m, x, y: x + y, X, (6, 1, 7)),
        "each broadcasts": case(lambda m, x, y: x * y, (2, 6, 1, 7), (2, 1, 5, 7)),
        "rank 2 and 4": case(lambda m, x, y: x * y[:, :, None, None], X, (2, 6)),
        "scalar value": case(lambda m, x, y: x * y, X, ()),
        "scalar of a wider type": case(
            lambda m, x, y: x * y + m.c,
            X,
            torch.ones((), dtype=torch.float64),
            c=torch.tensor(2.0, dtype=torch.float64),
        ),
        "slices of size 1": unary(lambda x: (x[::2], x[:, :, 2:3:2], x[:, 4::3]), 1, 6, 5, 7),
        "cat of sizes 1 with a constant": case(
            lambda m, x: torch.cat([x, m.c]), (1, 1, 1, 1), c=constant(1, 1, 1, 1)
        ),
        "scalars": case(lambda m, x, y: x * y + 1, (), ()),
        "outer product": case(lambda m, x, y: x[:, None] * y[None, :], (5,), (7,)),
        "outer difference": unary(lambda x: x[:, :, None] - x[:, None, :], 2, 5),
        "gate": unary(lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(), *X),
        "gate by linear": case(
            lambda m, x: x * m.l(x.mean((2, 3)))[:, :, None, None].sigmoid(), X, l=nn.Linear(6, 6)
        ),
        "spatial gate": unary(lambda x: x * x.mean(1, keepdim=True).sigmoid(), *X),
        "where": case(lambda m, x, y: torch.where(x > 0, x, y), X, (6, 1, 7)),
        "where with scalars": unary(lambda x: torch.where(x > 0, 1.5, x), *X),
        "where with constants": case(
            lambda m, x: torch.where(m.mask, x, m.other), X, mask=constant(5, 7) > 0, other=constant(6, 1, 1)
        ),
        "masked_fill": case(lambda m, x: x.masked_fill(m.mask, -3.0), X, mask=constant(5, 7) > 0),
        "masked_fill, computed": case(lambda m, x, y: x.masked_fill(y > 0, 2.0), X, (6, 1, 7)),
        "masked_fill, tensor value": case(
            lambda m, x, y: x.masked_fill(y > 0, m.v), X, (6, 1, 7), v=torch.tensor(0.5)
        ),
        "prelu": conv(nn.PReLU(6), *X),
        "prelu, one slope": conv(nn.PReLU(), *X),
        "prelu 1-D": conv(nn.PReLU(6), 2, 6, 7),
        "prelu of 2-D": conv(nn.PReLU(6), 2, 6),
        "prelu of a vector": conv(nn.PReLU(), 6),
        "prelu of a number": case(lambda m, x: m.act(x.sum() - 99), X, act=nn.PReLU()),
        "prelu after conv": conv(nn.Sequential(nn.Conv2d(6, 4, 3), nn.PReLU(4), nn.Conv2d(4, 3, 2)), *X),
        "prelu, slope computed": case(lambda m, x, w: F.prelu(x, w.abs()), X, (6,)),
        "prelu flattened": case(lambda m, x: m.p(x.flatten(1)), X, p=nn.PReLU(210)),
        "expand": case(lambda m, x: x.expand(2, 6, 5, 7).relu(), (2, 1, 5, 7)),
        "expand new dims": unary(lambda x: x.expand(3, 4, 5, 7), 5, 7),
        "expand and multiply": case(lambda m, x, y: x.expand_as(y) * y, (1, 6, 1, 7), X),
        "expand, then cut": unary(lambda x: x.expand(2, 6, 5, 7)[:, 1:3], 2, 1, 5, 7),
        "expand, then merge": unary(
            lambda x: x[:, :, None].expand(2, 3, 4, 5).reshape(2, 12, 5).softmax(1), 2, 3, 5
        ),
        "repeat": unary(lambda x: x.repeat(1, 2, 1, 3), *X),
        "repeat, new dims": unary(lambda x: x.repeat(3, 1, 1, 2), 6, 5, 7),
        "repeat_interleave": unary(lambda x: x.repeat_interleave(2, 1), *X),
        "tile": unary(lambda x: x.tile((2, 1)), *X),
        "meshgrid": case(lambda m, x, y: torch.stack(torch.meshgrid(x, y, indexing="ij"), -1), (5,), (7,)),
        "addcmul": case(lambda m, x, y: torch.addcmul(x, y, m.b, value=0.5), X, (6, 1, 7), b=constant(5, 1)),
        "lerp": case(lambda m, x, y: torch.lerp(x, y, 0.3), X, X),
    },
    "elementwise": {
        "activations": unary(
            lambda x: tuple(
                f(x)
                for f in (
                    F.relu,
                    F.relu6,
                    F.gelu,
                    F.silu,
                    F.hardswish,
                    F.hardsigmoid,
                    F.hardtanh,
                    F.leaky_relu,
                    F.elu,
                    F.selu,
                    F.softplus,
                    F.mish,
                    F.logsigmoid,
                    F.tanhshrink,
                    F.softsign,
                    F.celu,
                    F.hardshrink,
                    F.softshrink,
                )
            ),
            *X,
        ),
        "functions": unary(
            lambda x: tuple(
                f(x)
                for f in (
                    torch.sigmoid,
                    torch.tanh,
                    torch.exp,
                    torch.sin,
                    torch.cos,
                    torch.floor,
                    torch.ceil,
                    torch.round,
                    torch.sign,
                    torch.neg,
                    torch.abs,
                    torch.erf,
                    torch.square,
                    torch.reciprocal,
                    torch.isnan,
                    torch.logical_not,
                    torch.atan,
                    torch.expm1,
                    torch.nan_to_num,
                )
            ),
            *X,
        ),
        "roots": unary(
            lambda x: (
                x.abs().sqrt(),
                (x.abs() + 1).rsqrt(),
                (x.abs() + 1).log(),
                x**2,
                x.abs() ** 1.5,
                2**x,
            ),
            *X,
        ),
        "scalars": unary(
            lambda x: (
                x + 1,
                1 - x,
                x * 2,
                3 / (x.abs() + 1),
                x / 2,
                x // 0.5,
                x % 0.7,
                torch.add(x, x, alpha=3),
                torch.rsub(x, 2),
            ),
            *X,
        ),
        "pairs": case(
            lambda m, x, y: (
                x + y,
                x - y,
                x * y,
                x / y,
                torch.maximum(x, y),
                torch.minimum(x, y),
                torch.atan2(x, y),
                torch.fmod(x, y),
            ),
            X,
            X,
        ),
        "comparisons": case(
            lambda m, x, y: (
                x > y,
                x >= y,
                x == y,
                x != 0,
                (x > 0) & (y > 0),
                (x > 0) | ~(y > 0),
                (x > 0) ^ (y > 0),
            ),
            X,
            X,
        ),
        "clamps": case(
            lambda m, x, y: (x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0.5), x.clamp(y - 1, y + 1)), X, X
        ),
        "casts": unary(
            lambda x: (
                x.double(),
                x.int(),
                x.to(torch.float16).float(),
                (x > 0).float(),
                x.to(torch.float32),
            ),
            *X,
        ),
        "integers": case(
            lambda m, x, y: (x + y, x * 2, x // 3, x & y, x % 4, x.float() / 2, x << 1), ints(*X), ints(*X)
        ),
        "mixed types": case(lambda m, x, y: (x + y, x * y), ints(*X), X),
        "dropout": conv(nn.Dropout(0.5), *X),
        "alpha dropout": conv(nn.AlphaDropout(0.5), *X),
        "clone, contiguous, detach": unary(
            lambda x: x.clone().contiguous().detach().contiguous(memory_format=torch.channels_last) + 1, *X
        ),
        "in place": unary(lambda x: (x + 1).relu_().add_(2).mul_(3), *X),
        "in place on a slice": unary(lambda x: _written(x), *X),
        "likes": unary(
            lambda x: (
                x
                + torch.zeros_like(x)
                + torch.ones_like(x) * x.new_full((6, 1, 1), 2.0)
                + torch.full_like(x, 3.0)
            ),
            *X,
        ),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    check(FAMILIES[family])
