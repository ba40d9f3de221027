"""Products of one value that are added: which become one, and that the numbers stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dimorder
from dimorder.capture.captured import capture
from dimorder.capture.rewrite_linears import rewrite_linears
from tests.targets.cases import Net, r

X = r(2, 6, 9, 11)
W7, W3, W1, W31 = r(6, 6, 7, 7), r(6, 6, 3, 3), r(6, 6, 1, 1), r(6, 6, 3, 1)
D5, D3, D1 = r(6, 1, 5, 5), r(6, 1, 3, 3), r(6, 1, 1, 1)
B, C = r(6), r(6)
SCALE, SHIFT = r(6, 1, 1), r(1, 6, 1, 1)

ONE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a large kernel and a small one": (
        lambda x, v, w, b, c: F.conv2d(x, v, b, 1, 3) + F.conv2d(x, w, c),
        (W7, W1, B, C),
    ),
    "the small one first, without biases": (
        lambda x, v, w: F.conv2d(x, v) + F.conv2d(x, w, None, 1, 1),
        (W1, W3),
    ),
    "rows": (lambda x, v, w: F.conv2d(x, v, None, 1, (1, 0)) + F.conv2d(x, w, None, 1, 1), (W31, W3)),
    "a difference": (lambda x, v, w, b: F.conv2d(x, v, b) - F.conv2d(x, w, None, 1, 1), (W1, W3, B)),
    "steps": (lambda x, v, w: F.conv2d(x, v, None, 2, 1) + F.conv2d(x, w, None, 2), (W3, W1)),
    "taps farther apart": (
        lambda x, v, w: F.conv2d(x, v, None, 1, 2, 1, 6) + F.conv2d(x, w, None, 1, 2, 2, 6),
        (D5, D3),
    ),
    "groups": (
        lambda x, v, w, b: F.conv2d(x, v, b, 1, 1, 1, 6) + F.conv2d(x, w, None, 1, 0, 1, 6) + x,
        (D3, D1, B),
    ),
    "what passes by": (lambda x, w, b: x - F.conv2d(x, w, b, 1, 1), (W3, B)),
    "what passes by, scaled": (
        lambda x, w, s, t: (x * s + t) + F.conv2d(x, w, None, 1, 1),
        (W3, SCALE, SHIFT),
    ),
    "a scaled difference that is added, as in FastViT": (
        lambda x, w, s, t: x + s * (F.conv2d(x, w, None, 1, 1, 1, 6) - (x * t + s)),
        (D3, SCALE, SHIFT),
    ),
    "a batch-norm behind": (
        lambda x, v, w, s, t: (F.conv2d(x, v) + F.conv2d(x, w, None, 1, 1)) * s + t,
        (W1, W3, SCALE, SHIFT),
    ),
    "linears": (
        lambda x, v, w, b: F.linear(x, v[..., 0, 0], b) + F.linear(x, w[..., 0, 1]) + x,
        (W1, W3, r(6)),
    ),
}


def products(net: Net, x: Tensor) -> tuple[int, int]:
    """How many products a network has with all in weights, and how many calls; its numbers must stay."""
    (program,) = rewrite_linears([capture(net, (x,))])
    called = Counter(str(node.target) for node in program.nodes if node.op == "call_function")
    torch.testing.assert_close(program.module(x)[0], net(x), rtol=1e-4, atol=1e-4)
    return called["aten.convolution.default"] + called["aten.linear.default"], called.total()


@pytest.mark.parametrize("name", ONE)
def test_branches_are_one_product(name: str) -> None:
    compute, constants = ONE[name]
    x = X.movedim(1, 3).contiguous() if name == "linears" else X
    net = Net(compute, constants).eval()
    assert products(net, x) == (1, 1)
    dimorder.lower(net, (x,), target="xnnpack")  # which compares the numbers


SEVERAL: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "another value": (lambda x, v, w: F.conv2d(x, v) + F.conv2d(x.relu(), w), (W1, W1 + 1)),
    "other steps": (
        lambda x, v, w: F.conv2d(x[..., :5, :6], v, None, 1) + F.conv2d(x, w, None, 2),
        (W1, W1 + 1),
    ),
    "other groups": (lambda x, v, w: F.conv2d(x, v) + F.conv2d(x, w, None, 1, 0, 1, 6), (W1, D1)),
    "taps beside the larger kernel": (
        lambda x, v, w: F.conv2d(x, v, None, 1, 1) + F.conv2d(F.pad(x, (2, 0, 2, 0)), w[..., :3, :3]),
        (W3, W7),
    ),
    "taps beyond it": (
        lambda x, v, w: F.conv2d(x, v, None, 1, 1) + F.conv2d(x, w[..., :3, :3], None, 1, 3, 3),
        (W3, W7),
    ),
    "a branch with another reader": (
        lambda x, v, w: (F.conv2d(x, v) + (y := F.conv2d(x, w, None, 1, 1))) * y,
        (W1, W3),
    ),
    "a transposed one": (
        lambda x, v, w: F.conv2d(x, v) + F.conv_transpose2d(x, w, None, 1, 1),
        (W1, W3),
    ),
    "a value beside steps": (
        lambda x, w: x[..., :2, :2] + F.conv2d(x[..., :2, :2], w[..., :2, :2], None, 2, 1),
        (W3,),
    ),
    "a factor of zero": (lambda x, w, s: x + s * F.conv2d(x, w), (W1, torch.zeros(6, 1, 1))),
    "a constant for each pixel": (lambda x, w, s: F.conv2d(x, w) + x * s, (W1, r(9, 11))),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_what_stays_apart(name: str) -> None:
    compute, constants = SEVERAL[name]
    net = Net(compute, constants).eval()
    assert products(net, X)[1] > 2
    dimorder.lower(net, (X,), target="xnnpack")


def test_no_infinity_is_made() -> None:
    huge = torch.full((6, 6, 1, 1), 2e38)
    net = Net(lambda x, v, w: F.conv2d(x, v) + F.conv2d(x, w), (huge, huge.clone())).eval()
    assert products(net, X * 1e-30)[0] == 2
