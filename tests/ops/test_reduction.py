"""Reductions, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

import pytest
import torch

from tests.ops.rules import Case, X, case, check, ints, unary

FAMILIES: dict[str, dict[str, Case]] = {
    "reductions": {
        **{
            f"mean {d} {k}": unary(lambda x, d=d, k=k: x.mean(d, k), *X)
            for d in (0, 1, 3, (2, 3), (-1, 1), (0, 1, 2, 3))
            for k in (False, True)
        },
        **{f"sum {d}": unary(lambda x, d=d: x.sum(d), *X) for d in (1, (0, 2), (1, 2, 3))},
        **{
            f"amax {d} {k}": unary(lambda x, d=d, k=k: x.amax(d, k), *X)
            for d in (1, (2, 3))
            for k in (False, True)
        },
        **{f"amin {d}": unary(lambda x, d=d: x.amin(d), *X) for d in (0, (1, 3))},
        "mean of all": unary(lambda x: x.mean(), *X),
        "sum of all": unary(lambda x: x.sum(), *X),
        "amax of all": unary(lambda x: x.amax(), *X),
        "max of all": unary(lambda x: x.max(), *X),
        "max with indices": unary(lambda x: x.max(1), *X),
        "sum, dtype": unary(lambda x: x.sum((1, 2), dtype=torch.float64), *X),
        "mean, dtype": unary(lambda x: x.mean((1, 2), dtype=torch.float64), *X),
        "sum of integers": case(lambda m, x: x.sum(1), ints(*X)),
        "mean of size 1": unary(lambda x: x.mean((2, 3)), 2, 6, 1, 1),
        "sum of size 1 of integers": case(lambda m, x: x.sum(1), ints(2, 1, 5, dtype=torch.int32)),
        "mean over a part of a merged dim": unary(lambda x: x.reshape(2, 3, 2, 5, 7).mean(2), *X),
        "prod": unary(lambda x: x.prod(1), *X),
        "var": unary(lambda x: x.var((2, 3)), *X),
        "std": unary(lambda x: x.std(1, keepdim=True), *X),
        "norm": unary(lambda x: x.norm(dim=1), *X),
        "logsumexp": unary(lambda x: x.logsumexp(1), *X),
        "any, all": case(lambda m, x: ((x > 0).any(1), (x > -2).all(2)), X),
        **{
            f"argmax {d} {k}": unary(lambda x, d=d, k=k: x.argmax(d, k), *X)
            for d in (1, 3)
            for k in (False, True)
        },
        "argmin": unary(lambda x: x.argmin(2), *X),
        "argmax of all": unary(lambda x: x.argmax(), *X),
        "argmax of size 1": unary(lambda x: x.argmax(1), 2, 1, 5),
        "argmax over merged dims": unary(lambda x: x.flatten(1).argmax(1), *X),
        "argmax, ties": case(lambda m, x: x.argmax(1), ints(2, 9, 5, below=3).float()),
        **{f"cumsum {d}": unary(lambda x, d=d: x.cumsum(d), *X) for d in (0, 1, 3)},
        "cumsum of size 1": unary(lambda x: x.cumsum(1), 2, 1, 5),
        "cumsum over merged dims": unary(lambda x: x.flatten(1).cumsum(1).reshape(X), *X),
        "cumsum of integers": case(lambda m, x: x.cumsum(1), ints(*X, dtype=torch.int32)),
        "cumprod": unary(lambda x: x.cumprod(1), *X),
        "cummax": unary(lambda x: x.cummax(1), *X),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    check(FAMILIES[family])
