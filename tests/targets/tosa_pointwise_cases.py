"""Pointwise operators that TOSA computes, in all their types."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("tosa_serializer")

from tests.targets.cases import IMAGE, Case, Y, aten, r

P = Y.abs() + 0.1
I = torch.arange(-35, 35).reshape(2, 5, 7)  # noqa: E741
B = Y > 0.3
PLACES = torch.tensor([0, 3, 7, 8, 9, 127, -1], dtype=torch.int8)
HALVES = torch.tensor([-2.5, -1.5, -0.5, 0.5, 0.49999997, 1.5, 2.5, 8388609.0, -3e9, 0.0])
POWERS = torch.tensor([-3.0, -2, 0, 1, 2, 3, 4])
WHOLE = torch.randint(-500, 500, (8, 50), generator=torch.Generator().manual_seed(2)).float()

ELEMENTWISE: dict[str, Case] = {
    "add": (lambda x, y: x + y, (Y, r(2, 5, 7) + 1), ()),
    "add, broadcast": (lambda x, y: x + y, (Y, r(5, 1)), ()),
    "add, integers": (lambda x, y: x + y * 3, (I, I[0]), ()),
    "add, float and integers": (lambda x, y: x + y, (Y, I), ()),
    "add, rank 7": (
        lambda x, y, z: (x + y) * z,
        (r(2, 3, 1, 2, 3, 4, 5).reshape(6, 2, 3, 20), r(6, 1, 3, 1), r(1, 2, 1, 20)),
        (),
    ),
    "div, constant": (lambda x, c: x / c, (Y,), (r(5, 1) + 3,)),
    "div, constant by tensor": (lambda x, c: c / x, (P,), (r(5, 1) + 3,)),
    "div, integers": (lambda x, y: x / y, (I, torch.arange(1, 8)), ()),
    "div, rounded": (
        lambda x: (
            torch.div(x, 0.3, rounding_mode="floor"),
            torch.div(x, 0.3, rounding_mode="trunc"),
            aten.div.Scalar_mode(x, 0.3, rounding_mode=None),
        ),
        (Y,),
        (),
    ),
    "div, integers, truncated": (
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        (I, torch.arange(1, 8)),
        (),
    ),
    "floor division": (
        lambda x, y: (aten.floor_divide(x, y), aten.floor_divide.Scalar(x, 49.0), x // -0.1),
        (WHOLE, WHOLE.flip(0).abs() / 10 + 0.1),
        (),
    ),
    "floor division by 0 and by infinity": (
        lambda x, y: aten.floor_divide(x, y),
        (torch.tensor([3.0, -3.0, 0.0, -2.0, 2.0]), torch.tensor([0.0, 0.0, 4.0, math.inf, math.inf])),
        (),
    ),
    "floor division, integers": (
        lambda x, y: (x // y, aten.floor_divide.Scalar(x, -3), torch.div(x, 4, rounding_mode="floor")),
        (I, torch.arange(1, 8)),
        (),
    ),
    "remainders": (
        lambda x, y: (torch.fmod(x, y), x % y, torch.fmod(x, 0.7), x % -0.7),
        (WHOLE, WHOLE.flip(0) / 10 + 0.05),
        (),
    ),
    "quotients that are whole": (
        lambda x, y: (torch.div(x * y, y, rounding_mode="floor"), torch.div(x * y, y, rounding_mode="trunc")),
        (WHOLE, WHOLE.flip(0).abs() + 1),
        (),
    ),
    "isnan": (torch.isnan, (torch.tensor([1.0, math.nan, math.inf, -2.0]),), ()),
    "log1p": (lambda x: torch.log1p(x), (torch.tensor([1e-8, -3e-5, 0.0099, -0.0101, 2.5, 0.0]),), ()),
    "log1p of what is small": (lambda x: torch.log1p(x.abs() * 1e-9), (Y,), ()),
    "powers by squaring": (lambda x: (x**10, x**7, x**4, x**1), (Y,), ()),
    "maximum, integers": (torch.maximum, (I, I.flip(2)), ()),
    "relu, integers": (lambda x: torch.relu(x), (I,), ()),
    "clamp, crossed": (lambda x: torch.clamp(x, 0.9, -0.2), (Y,), ()),
    "clamp, integers": (lambda x: (torch.clamp(x, -3, 9), torch.clamp(x, min=2)), (I,), ()),
    "clamp, infinite": (lambda x: torch.clamp(x / 0.0, min=0.0), (Y,), ()),
    "clamp, tensors": (lambda x, a, b: torch.clamp(x, a, b), (Y, r(7) - 1, r(5, 1) + 1), ()),
    "mish": (lambda x: F.mish(x * 5), (Y,), ()),
    "softplus": (lambda x: (F.softplus(x * 9), F.softplus(x * 30, 2.0, 5.0)), (Y,), ()),
    "log_sigmoid": (lambda x: aten.log_sigmoid(x * 30), (Y,), ()),
    "prelu, slope given": (F.prelu, (IMAGE, r(6)), ()),
    "log": (torch.log, (P,), ()),
    "erf": (torch.erf, (Y,), ()),
    "sqrt, rsqrt": (lambda x: (torch.sqrt(x - 0.1), torch.rsqrt(x)), (P,), ()),
    "abs": (lambda x, i: (x.abs(), i.abs()), (Y, I), ()),
    "neg": (lambda x, i: (-x, -i), (Y, I), ()),
    "floor, ceil, trunc": (
        lambda x: (torch.floor(x * 3), torch.ceil(x * 3), torch.trunc(x * 3)),
        (Y,),
        (),
    ),
    "round": (torch.round, (HALVES,), ()),
    "powers below 0": (lambda x: (x**-2, x**-5, x**-16), (Y.sign() * (Y.abs() + 0.5),), ()),
    "powers, added": (lambda x: x**3 + x**4 + x**1, (Y,), ()),
    "powers of positive numbers": (lambda x: x**0.5 + x**-0.5 + x**-1 + x**1.7, (P,), ()),
    "powers by tensors of one number": (
        lambda x, e, ones: (x**e, x.abs() ** (e - 0.3 * ones)),
        (Y,),
        (torch.tensor(3.0), torch.ones(7)),
    ),
    "places of integers": (
        lambda i: (i.argmax(1), i.argmin(0), (i % 5).argmax(), i.argmin(-1, True)),
        (I,),
        (),
    ),
    "powers of a number": (lambda x: (2**x, 0.7**x), (Y,), ()),
    "reciprocal": (torch.reciprocal, (P,), ()),
    "comparisons": (
        lambda x, y: (x == y, x != y, x > y, x >= y, x < y, x <= y),
        (I, I.flip(2)),
        (),
    ),
    "comparisons with a number": (
        lambda x: (x == 0.25, x != 0.25, x > 0.25, x >= 0.25, x < 0.25, x <= 0.25),
        ((Y * 4).round() / 4,),
        (),
    ),
    "comparison of integers and a float": (lambda x: (x > 0.5, x <= -2.5), (I,), ()),
    "comparison, broadcast": (lambda x, y: x > y, (Y, r(5, 1)), ()),
    "logic": (
        lambda a, b: (torch.logical_and(a, b), torch.logical_or(a, b), torch.logical_xor(a, b), ~a),
        (B, B.flip(1)),
        (),
    ),
    "logic of numbers": (lambda x, y: (torch.logical_and(x, y), torch.logical_not(x)), (I, Y.relu()), ()),
    "bits of truth": (
        lambda a, b: (aten.bitwise_and(a, b), aten.bitwise_or(a, b), aten.bitwise_xor(a, b)),
        (B, B.flip(1)),
        (),
    ),
    "where": (lambda c, x, y: torch.where(c, x, y), (B, Y, r(7)), ()),
    "where, numbers": (
        lambda c, x: (torch.where(c, x, 0.5), torch.where(c, -1.5, x), torch.where(x > 0, 2.0, 3.0)),
        (B, Y),
        (),
    ),
    "where, broadcast condition": (lambda c, x, y: torch.where(c, x, y), (B[0], r(7), r(2, 1, 7)), ()),
    "masked_fill": (
        lambda x, m, v: (x.masked_fill(m, -math.inf), x.masked_fill(m[0], v)),
        (Y, B, torch.tensor(2.5)),
        (),
    ),
    "exponents": (lambda x, e: x.abs() ** e, (Y,), (torch.tensor([0.5, 1.5, -0.25, 2.5, 0.1, 0.9, 1.1]),)),
    "exponents, computed": (torch.pow, (Y, (r(5, 1) * 3).round()), ()),
    "whole exponents of every base": (torch.pow, (torch.tensor([-2.5, -1, 0, 0.5, 3])[:, None],), (POWERS,)),
    "float64": (lambda x, y: (x * y, (y.double() + x).float(), y > x), (r(5, 7).double(), Y), ()),
    "a constant of float64": (lambda x, c: (x > c, c), (Y,), (r(7).double(),)),
    "bytes": (
        lambda x, y: (
            x.float() / 255,
            x.permute(2, 0, 1).int() * 1000,
            torch.cat([x.flip(1), F.pad(x, (1, 2))[..., 3:]], 1)[:, 1:].reshape(-1, 6),
            (y.abs() * 40).round().to(torch.uint8),
            (y * 90).int().to(torch.uint8),
            (y * 300).to(torch.uint8).float() + 1,
            x.to(torch.int8),
            x.bool(),
        ),
        (torch.arange(70).reshape(2, 5, 7).mul(37).to(torch.uint8), Y),
        (),
    ),
    "casts": (
        lambda x, i, b: (
            aten._to_copy(x, dtype=torch.int32),
            aten._to_copy(x * 9, dtype=torch.int64),
            aten._to_copy(i, dtype=torch.float32),
            aten._to_copy(x, dtype=torch.bool),
            aten._to_copy(i, dtype=torch.bool),
            aten._to_copy(b, dtype=torch.float32),
            aten._to_copy(b, dtype=torch.int32),
            aten._to_copy(i, dtype=torch.int32),
        ),
        (Y.relu() * 5 - 2, I, B),
        (),
    ),
    "bits of integers": (
        lambda i, j: (~i, i & j, i | 12, j ^ i, i << 3, j >> torch.tensor([0, 1, 2, 3, 4, 5, 31])),
        (I, I.flip(1).int()),
        (),
    ),
    "bits of negative integers": (lambda i: (~i & 5, i >> 1, i << 1), (I - 9,), ()),
}
# Those that LiteRT does not have.
TOSA_ALONE: dict[str, Case] = {
    "shifts beyond the type": (
        lambda i: (
            i << 9,
            i >> 9,
            i << PLACES,
            i >> PLACES,
            i.int() << 32,
            i.short() >> 20,
            i.long() >> 70,
        ),
        ((I * 3).to(torch.int8),),
        (),
    ),
    "casts beyond 8 and 16 bits": (
        lambda x: (x.to(torch.int8), x.half().to(torch.int8), x.bfloat16().to(torch.int8), (x * 99).short()),
        (WHOLE + 0.5,),
        (),
    ),
    "powers of -0": (
        lambda x, e: (x**e, 1 / x**e),
        (torch.tensor([-0.0, 0.0, -2.0, 3.0])[:, None],),
        (POWERS,),
    ),
    "a constant of bytes": (lambda x, c: (x * 2, c), (Y,), (torch.tensor([7, 255], dtype=torch.uint8),)),
    "sorts of truth values": (lambda x: (*(x > 0).sort(1), *(x > 0).sort(stable=True, dim=0)), (Y,), ()),
}
