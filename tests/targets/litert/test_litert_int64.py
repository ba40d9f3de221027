"""Integers beyond 32 bits: LiteRT's kernels give every bit of what torch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.targets.litert.runtime import KERNELS, LiteRtProgram
from tests.targets.cases import Net, aten

MOST = 2**63 - 1
X = torch.tensor(
    [
        [3, -5, 2**31, 2**33 + 7, -(2**35) - 1, 2**40 + 3, -(2**62) + 1],
        [1, 0, -1, 2**53 + 1, -(2**53) - 1, 2**32, 7],
        [MOST, -MOST, MOST, -MOST - 1, MOST, 2**62, 1],
    ]
)
Y = torch.tensor(
    [
        [3, 2, -7, 2**20 + 1, 5, -9, 11],
        [2**31, -(2**33), 2, 3, 7, 2**32 + 1, 2**40],
        [1, 1, -1, 1, 2, -3, MOST],
    ]
)
CASES: dict[str, Callable[..., Any]] = {
    "divided and rounded down": lambda x, y: (x // y, x // 3, x // -7),
    "divided towards zero": lambda x, y: (
        torch.div(x, y, rounding_mode="trunc"),
        torch.div(x, -3, rounding_mode="trunc"),
    ),
    "remainders": lambda x, y: (x % y, x % 7, torch.fmod(x, y), torch.fmod(x, -7)),
    "arithmetic": lambda x, y: (
        x + y,
        x - y,
        x * y,
        -x,
        x.abs(),
        x * 3,
        x + 2**33,
        2**34 - x,
        torch.sign(x),
        x**2,
    ),
    "bounds": lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), x.clamp(-(2**34), 2**34), x.relu()),
    "comparisons": lambda x, y: (x > y, x < y, x >= y, x <= y, x == y, x != y, x > 2**33, x == 2**33 + 7),
    "selections": lambda x, y: (torch.where(x > y, x, y), x.masked_fill(y > 7, 2**37)),
    "reductions": lambda x, y: (x.sum(0), x.sum(1), x.amax(1), x.amin(0), y[:1].prod(1), x.cumsum(1)),
    "moves": lambda x, y: (
        torch.cat([x, y], 1),
        x.flip(1),
        x[:, 1:4],
        x[:, ::2],
        x.repeat(2, 3),
        x.t(),
        aten.constant_pad_nd(x, [1, 2], 2**35),
    ),
    "in order": lambda x, y: (
        *torch.topk(x // 8 * 8 + torch.arange(7), 3),
        *torch.topk(x // 8 * 8 + torch.arange(7), 2, largest=False),
        *torch.sort(y % 5, stable=True),
        *torch.sort(y % 5, stable=True, descending=True),
    ),
    "read at indices": lambda x, y: (x[:, [2, 3]], aten.gather(x, 1, y % 7), x[y[0] % 3]),
    "written at indices": lambda x, y: (
        aten.index_put(x, [y[0] % 3], y[y[0] % 3] * 2),
        aten.index_put(x[:2], [y[0] % 2], y[:2][y[0] % 2], True),
    ),
    "places of the largest": lambda x, y: (
        x.argmax(1),
        y.argmin(0, True),
        (x // 3 % 5).argmax(),
        y.argmin(),
    ),
    "converted": lambda x, y: (x.int(), x.bool(), x.float(), x / 3, x * 0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_no_bit_is_lost(name: str) -> None:
    net = Net(CASES[name], ())
    artifact = dimorder.lower(net, (X, Y), target="litert").artifact
    for kernels in KERNELS:
        got = LiteRtProgram(artifact.data, artifact.contract, kernels)([X, Y])
        for mine, wanted in zip(got, pytree.tree_leaves(net(X, Y)), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-6 if wanted.is_floating_point() else 0, atol=0)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_each_bit_is_torchs(kind: torch.dtype) -> None:
    places = torch.tensor([0, 1, 5, torch.iinfo(kind).bits - 2, torch.iinfo(kind).bits - 1, 70, -1])

    def bits(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        shifted = x << 3, x >> 3, x << places.to(kind), x >> places.to(kind)
        return (x & y, x | y, x ^ y, ~x, x & 1, x | -8, x & y[:1], y[:, 2:3] ^ x, *shifted)

    x, y = (value.to(kind) for value in (X, Y))
    x[0, :2] = torch.tensor([torch.iinfo(kind).min, torch.iinfo(kind).max])
    rows = torch.export.Dim("rows", min=2, max=9)
    for sizes in (None, {"inputs": ({0: rows}, {0: rows})}):
        lowered = dimorder.lower(Net(bits, ()), (x, y), target="litert", dynamic_shapes=sizes)
        for count in (3,) if sizes is None else (2, 3):
            got, wanted = lowered(x[:count], y[:count]), bits(x[:count], y[:count])
            assert all(map(torch.equal, got, wanted))


def test_what_litert_lacks_for_int64_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"torch\.int64"):
        dimorder.lower(Net(lambda x: x**5, ()), (X,), target="litert")


def test_a_divisor_of_zero_ends_the_call_as_in_torch() -> None:
    artifact = dimorder.lower(Net(lambda x, y: x // y, ()), (X, Y), target="litert").artifact
    with pytest.raises(RuntimeError, match="failed to invoke"):
        artifact.run([X, torch.zeros_like(Y)])
