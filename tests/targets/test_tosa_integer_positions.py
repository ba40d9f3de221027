"""On target tosa, a quantised network computes with its positions and truth values as in floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("tosa_serializer")
pytest.importorskip("torchao")

import dimorder
from dimorder.errors import UnsupportedError, VerificationError
from dimorder.lowered import Lowered
from dimorder.targets.tosa.integers.ops import OPERATORS as INTEGERS
from dimorder.targets.tosa.target import target as tosa
from tests.small_networks import Net
from tests.targets.quantised import quantised

aten = torch.ops.aten

X = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1))
P, Q = (
    torch.randint(-9, 9, (2, 6, 5), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    for seed in (2, 3)
)
ODD = Q * 2 + 1  # never 0
A, B = P > 0, Q > 2
BYTES, MORE = (
    torch.randint(0, 256, (2, 6, 5), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    for seed in (4, 5)
)

# Each returns a tuple of integers and truth values.
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "arithmetic": (lambda i, j: (i + j, i - j, i * j, -i, i.abs(), i + 3, torch.rsub(i, j), 7 - i), (P, Q)),
    "bounds": (
        lambda i, j: (
            torch.maximum(i, j),
            torch.minimum(i, j),
            i.clamp(-3, 4),
            i.clamp(min=-2),
            i.clamp(max=2),
            aten.clamp.Tensor(i, j - 2, j + 2),
            i.relu(),
        ),
        (P, Q),
    ),
    "quotients": (
        lambda i, j: (
            torch.div(i, j, rounding_mode="floor"),
            torch.div(i, j, rounding_mode="trunc"),
            torch.div(i, 3, rounding_mode="floor"),
            aten.div.Scalar_mode(i, -3, rounding_mode="trunc"),
            aten.floor_divide(i, j),
            aten.floor_divide.Scalar(i, 4),
        ),
        (P, ODD),
    ),
    "comparisons": (lambda i, j: (i == j, i != j, i > j, i < j, i >= j, i <= j), (P, Q)),
    "comparisons with a number": (lambda i: (i == 2, i != 2, i > 2, i < 2, i >= 2, i <= 2), (P,)),
    "logic": (
        lambda a, b: (torch.logical_and(a, b), torch.logical_or(a, b), torch.logical_xor(a, b), ~a),
        (A, B),
    ),
    "logic, bit by bit": (lambda a, b: (a & b, a | b, a ^ b, torch.logical_not(b)), (A, B)),
    "selections": (
        lambda a, i, j: (
            torch.where(a, i, j),
            torch.where(a, i, 3),
            torch.where(a, 3, i),
            torch.where(a, 3, 4),
            i.masked_fill(a, -4),
            aten.masked_fill.Tensor(i, a, j[0, 0, 0]),
        ),
        (A, P, Q),
    ),
    "casts": (lambda a, i: (a.int(), i.bool(), a.long() + 1), (A, P)),
    "reductions": (lambda a, i: (a.any(1), a.all(2), a.any(), (i > -9).all(1)), (A, P)),
    "bytes as numbers": (
        lambda b: (b.int() + 1, b.to(torch.int8), b.bool(), (b.long() * 5).byte()),
        (BYTES,),
    ),
    "arithmetic of bytes": (lambda b, c: (b + c, b - c, b * 3, -b, b + 100, b // 7, b.sum(1)), (BYTES, MORE)),
    "bits of bytes": (lambda b, c: (b & 15, b | c, b ^ c, ~b, b << 1, b >> 2), (BYTES, MORE)),
    "comparisons of bytes": (lambda b, c: (b > 100, b <= c, b == c, b == MORE), (BYTES, MORE)),
    "bounds of bytes": (
        lambda b, c: (torch.maximum(b, c), torch.minimum(b, MORE), b.clamp(10, 150), b.max(), b.amin(1)),
        (BYTES, MORE),
    ),
    "selections of bytes": (
        lambda b, c: (torch.where(b > 100, b, c), b.masked_fill(c > 9, 250), torch.where(c > 9, b, MORE)),
        (BYTES, MORE),
    ),
    "moves of bytes": (
        lambda b: (
            b.flip(1),
            torch.cat([b, b.mT.mT]),
            F.pad(b, (1, 2), value=200),
            b[:, [3, 0]],
            MORE.clone(),
        ),
        (BYTES,),
    ),
    "truth of bytes": (lambda b: (b.any(1), b.all(2), torch.logical_not(b), (b > 100).byte()), (BYTES,)),
    "a largest integer": (lambda i: (i.max(), i.amin(1)), (P,)),
    "rows of a table": (lambda i: (F.embedding(i.abs() % 5, ODD[0, :5]),), (P,)),
    "a running sum": (lambda i: (torch.cumsum(i, 1),), (P,)),
}


@cache
def lowered(name: str) -> Lowered:
    function, given = CASES[name]
    network = Net(lambda m, x, *more: (quantised(x, 0.0247, 5), *function(*more)))
    return dimorder.lower(network, (X, *given), target="tosa", run_artifact=True)


@pytest.mark.parametrize("name", CASES)
def test_the_reference_model_gives_pytorchs_integers(name: str) -> None:
    function, given = CASES[name]
    made = lowered(name)
    assert made.verified.artifact_ran
    read = [made.contract.inputs[0].quantized(X), *given]
    for found, wanted in zip(made.artifact.run(read)[1:], function(*given), strict=True):
        assert torch.equal(found.to(wanted.dtype), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_truth_values_mask_numbers(dtype: torch.dtype) -> None:
    def masked(m: torch.nn.Module, x: Tensor, kept: Tensor) -> Tensor:
        y, weights = quantised(x, 0.0247, 5).to(dtype), kept.int().to(dtype)
        return quantised((y * weights + (1 - weights) * -2.5).float(), 0.0313, -17)

    made = dimorder.lower(Net(masked), (X, A), target="tosa", run_artifact=True)
    (got,) = made.artifact.run([made.contract.inputs[0].quantized(X), A])
    assert torch.equal(made.contract.outputs[0].real(got), masked(torch.nn.Module(), X, A))


def test_a_wrong_integer_is_refused() -> None:
    rows = {**INTEGERS.rows, aten.add.Tensor: INTEGERS.rows[aten.sub.Tensor]}
    network = Net(lambda m, x, i, j: (quantised(x, 0.0247, 5), i + j))
    with pytest.raises(
        VerificationError, match="elements of output 1 differ from PyTorch's, and nothing rounds"
    ):
        dimorder.lower(network, (X, P, Q), target=tosa(integers=replace(INTEGERS, rows=rows)))


def test_integers_without_bounds_are_no_numbers() -> None:
    network = Net(lambda m, x, i: quantised(quantised(x, 0.0247, 5) * i.float(), 0.0313, -17))
    with pytest.raises(UnsupportedError, match="of integers without bounds; a mask may be"):
        dimorder.lower(network, (X, P), target="tosa")
