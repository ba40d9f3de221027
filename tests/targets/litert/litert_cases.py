"""Operators that LiteRT computes and TOSA and XNNPACK do not, and types that these have not."""

from __future__ import annotations

import math

import torch

from tests.targets.cases import Case, Y, aten, r

B = Y > 0.3
WHOLE = torch.arange(-35, 35).reshape(2, 5, 7)
ODD = torch.tensor([1.0, math.nan, math.inf, -2.0, -math.inf, 0.25])

CASES: dict[str, Case] = {
    "exponentials": (
        lambda x: (torch.exp2(x * 5), torch.expm1(x), torch.sinh(x), torch.cosh(x)),
        (Y,),
        (),
    ),
    "expm1 and sinh of what is small": (lambda x: (torch.expm1(x * 1e-6), torch.sinh(x * 1e-6)), (Y,), ()),
    "angles": (
        lambda x, y: (torch.tan(x), torch.atan(x), torch.atan2(x, y), torch.asin(y), torch.acos(y)),
        (Y, r(2, 5, 7).tanh()),
        (),
    ),
    "the angle of a sum and a number": (lambda x: torch.atan2(torch.tensor(0.7), x.sum()), (Y,), ()),
    "powers of a tensor": (lambda x, y: torch.pow(x, y), (Y.abs() + 0.1, r(7)), ()),
    "a large power": (lambda x: (x**17, x**2.3), (Y.abs(),), ()),
    "six dimensions": (
        lambda x, y, z: torch.nn.functional.layer_norm((x + y) * z - y, (7,)) + x,
        (r(2, 3, 4, 2, 5, 7), r(2, 1, 4, 1, 5, 1), r(3, 1, 2, 1, 7)),
        (),
    ),
    "signs": (lambda x, i: (torch.sign(x), torch.sgn(x), torch.sign(i.int())), (Y.relu() - 0.5, WHOLE), ()),
    "shrunk": (
        lambda x: (torch.nn.functional.softshrink(x, 0.3), torch.nn.functional.hardshrink(x, 0.4)),
        (Y,),
        (),
    ),
    "what is no number": (
        lambda x: (torch.isinf(x), torch.isfinite(x), torch.nan_to_num(x, 0.5, 3.0, -4.0)),
        (ODD,),
        (),
    ),
    "clamps by tensors": (
        lambda x, y: (aten.clamp_min.Tensor(x, y), aten.clamp_max.Tensor(x, y)),
        (Y, r(7)),
        (),
    ),
    "greater and less": (lambda x, y: (aten.max.other(x, y), aten.min.other(x, y)), (Y, r(7)), ()),
    "arithmetic of truth": (
        lambda a, b: (a + b, a * b, torch.maximum(a, b), torch.minimum(a, b), a.amax(1), a.amin(2)),
        (B, B.flip(1)),
        (),
    ),
    "in order": (
        lambda x: (
            *torch.topk(x, 3),
            *torch.topk(x, 2, -1, False),
            *torch.sort(x),
            *torch.sort(x, -1, True),
            *torch.sort(x, stable=True),
        ),
        (Y,),
        (),
    ),
    "diagonals": (
        lambda x, i: (aten.diagonal(x, 1, 1, 2), aten.diagonal(i, 0, 0, 1), aten.diagonal(x, 0, -1, 0)),
        (Y, WHOLE),
        (),
    ),
    "full": (lambda x: aten.full_like(x, 2.5) + x, (Y,), ()),
    "running sums": (lambda x, i, b: (x.cumsum(1), i.cumsum(-1), b.cumsum(0)), (Y, WHOLE, B), ()),
    "integers that are moved": (
        lambda i, b: (
            i.flip(1),
            i[:, ::2],
            b[:, 1::3],
            b.flip(0, 2),
            i.expand(3, 2, 5, 7),
            b.expand(3, 2, 5, 7),
        ),
        (WHOLE, B),
        (),
    ),
    "bytes": (
        lambda u, x: (
            u.float() / 255,
            u / 255,
            u * 0.5 - x,
            u.flip(1).int() + 3,
            u.to(torch.int8),
            (x.abs() * 40).round().to(torch.uint8),
            (x * 90).int().to(torch.uint8),
            (x * 90).int().to(torch.int8).float(),
        ),
        (torch.arange(70).reshape(2, 5, 7).mul(37).to(torch.uint8), Y),
        (),
    ),
    "integers that are divided": (
        lambda i, j: (i // j, i % j, torch.fmod(i, j), torch.div(i, j, rounding_mode="trunc"), i.int() // 3),
        (WHOLE, torch.tensor([3, -2, 7, 1, -5, 4, 9])),
        (),
    ),
    "reductions of integers": (
        lambda i: (i.amax(1), i.amin(2), i.sum(0), i.int().amax(1), (i % 5 - 2).prod(1), i.int().argmax(1)),
        (WHOLE,),
        (),
    ),
    "truth values at indices": (
        lambda b, i: (b[i], aten.gather(b, 1, i[:2, None, None])),
        (B, torch.tensor([1, 0, 1])),
        (),
    ),
    "truth values that are written": (
        lambda b, i: aten.index_put(b, [None, i], b[:, :3]),
        (B, torch.tensor([1, 4, 1])),
        (),
    ),
}
