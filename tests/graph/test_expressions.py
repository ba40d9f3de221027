"""Expressions of sizes are computed as Python computes them."""

from __future__ import annotations

import sympy
from torch.utils._sympy.functions import FloatTrueDiv, IntTrueDiv, ToFloat, TruncToInt

from dimorder.graph.expressions import function_of

H, W = sympy.symbols("h w", integer=True, positive=True)


def test_quotients_of_floats_are_rounded_once() -> None:
    windows = TruncToInt(FloatTrueDiv(ToFloat(H * W), FloatTrueDiv(IntTrueDiv(16 * H * W, 4), 4.0)))
    batch = function_of(windows, (H, W))
    assert {batch(h, w) for h in range(2, 30) for w in range(2, 30)} == {1}


def test_floats_have_all_their_digits() -> None:
    assert function_of(ToFloat(H) * sympy.Float(0.1 + 0.2), (H,))(1) == 0.1 + 0.2


def test_claims_are_computed_too() -> None:
    claim = sympy.Eq(H // 3, 2) & sympy.Ne(H, W)
    assert [function_of(claim, (H, W))(h, 7) for h in (5, 6, 7, 8)] == [False, True, False, True]
