"""Test sums that are kept in half precision: each is added up here term by term."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dimorder.ops.dialect import OPS
from dimorder.verification.fp16_accumulation import HalfSums
from tests.targets.cases import r

H = torch.float16


def _added_up(start: Tensor, lefts: Tensor, rights: Tensor) -> Tensor:
    total = start.to(H)
    for left, right in zip(lefts, rights, strict=True):
        total = (total.double() + left.double() * right.double()).to(H)
    return total


def test_a_product_is_added_up_in_order() -> None:
    x, weight, bias = r(3, 300).to(H), r(5, 300).to(H), r(5).to(H)
    with HalfSums():
        got = F.linear(x, weight, bias)
    wanted = [[_added_up(bias[o], x[n], weight[o]) for o in range(5)] for n in range(3)]
    assert torch.equal(got, torch.stack([torch.stack(row) for row in wanted]))
    assert not torch.equal(got, F.linear(x, weight, bias))


def test_a_convolution_is_added_up_by_taps_and_then_by_channels() -> None:
    x, weight, bias = r(2, 6, 5, 7).to(H), r(4, 3, 2, 3).to(H), r(4).to(H)
    stride, dilation = (1, 2), (2, 1)
    with HalfSums():
        got = F.conv2d(x, weight, bias, stride, (1, 0), dilation, groups=2)
    padded = F.pad(x, (0, 0, 1, 1))
    for n, o, i, j in product(*map(range, got.shape)):
        rows, columns = slice(i * 1, i + 3, 2), slice(j * 2, j * 2 + 3)
        read = padded[n, 3 * (o // 2) : 3 * (o // 2) + 3, rows, columns]
        taps = [each.permute(1, 2, 0).flatten() for each in (read, weight[o])]
        assert got[n, o, i, j] == _added_up(bias[o], *taps)


PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "matmul": (torch.matmul, (r(2, 1, 4, 30), r(3, 30, 7))),
    "baddbmm": (
        lambda a, b, c: torch.baddbmm(a, b, c, beta=2, alpha=3),
        (r(2, 4, 7), r(2, 4, 30), r(2, 30, 7)),
    ),
    "conv1d, grouped": (lambda x, w: F.conv1d(x, w, None, 2, 3, 2, 3), (r(2, 6, 37), r(9, 2, 5))),
    "conv3d": (lambda x, w, b: F.conv3d(x, w, b, 1, 1), (r(2, 6, 5, 7, 6), r(8, 6, 2, 3, 4), r(8))),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, (3, 2), (1, 0), (2, 1), 2, (1, 2)),
        (r(2, 6, 5, 7), r(6, 4, 3, 5), r(8)),
    ),
    "transposed, cropped": (
        lambda x, w: F.conv_transpose2d(x, w, None, 2, 4),
        (r(2, 6, 9, 7), r(6, 4, 4, 5)),
    ),
    "attention": (F.scaled_dot_product_attention, (r(2, 3, 4, 8), r(2, 3, 5, 8), r(2, 3, 5, 8), r(4, 5))),
    "attention with fewer heads of keys": (
        partial(F.scaled_dot_product_attention, enable_gqa=True),
        (r(2, 6, 4, 8), r(2, 3, 5, 8), r(2, 3, 5, 8)),
    ),
    "an operator of the dialect": (
        lambda x, w: OPS.conv2d_nhwc(x, w, None, [1, 1], [1, 0, 2, 1], [1, 1], 1),
        (r(1, 7, 9, 12), r(5, 3, 2, 12)),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_it_is_the_product_but_for_roundings(name: str) -> None:
    function, given = PRODUCTS[name]
    halves = [x.to(H) for x in given]
    with HalfSums():
        got = function(*halves)
    wanted = function(*(x.double() for x in halves))
    assert (got.shape, got.dtype) == (wanted.shape, H)
    assert not torch.equal(got, function(*halves))
    assert (got - wanted).abs().max() < 1e-2 * wanted.abs().max()


def test_attention_has_the_strides_of_torchs_own() -> None:
    """A view joins its heads, as an exported program does."""
    q, k, v = (r(2, length, 3, 8).to(H).transpose(1, 2) for length in (4, 5, 5))
    own = F.scaled_dot_product_attention(q, k, v)
    with HalfSums():
        got = F.scaled_dot_product_attention(q, k, v)
    assert got.stride() == own.stride()
    assert got.transpose(1, 2).view(2, 4, 24).shape == (2, 4, 24)
