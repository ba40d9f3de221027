"""Edges of spellings and implementations: half precision, empty rows, sizes of 1, ranks of 0, mixed types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from tests.small_networks import Net


def r(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


EDGES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], dict[str, Any]]] = {
    "constant keys": (
        lambda m, q, v: F.scaled_dot_product_attention(q, m.k, v),
        (r(2, 3, 4, 8), r(2, 3, 5, 8)),
        {"k": r(2, 3, 5, 8)},
    ),
    "addmm that reads no bias": (
        lambda m, b, x, w: torch.addmm(b, x, w, beta=0),
        (r(3), r(4, 7), r(7, 3)),
        {},
    ),
    "norm of large halves": (
        lambda m, x: torch.linalg.vector_norm(x * 300, dim=1),
        (r(4, 7, dtype=torch.half),),
        {},
    ),
    "deviation of large halves": (lambda m, x: (x * 300).std(1), (r(4, 7, dtype=torch.half),), {}),
    "variance and mean of one half": (
        lambda m, x: sum(torch.var_mean(x.sum(), correction=0)),
        (r(4, 7, dtype=torch.half),),
        {},
    ),
    "group norm of large halves": (
        lambda m, x: F.group_norm(x * 300, 2),
        (r(2, 4, 7, dtype=torch.half),),
        {},
    ),
    "trilinear by a factor": (
        lambda m, x: F.interpolate(x, scale_factor=1.5, mode="trilinear"),
        (r(2, 3, 4, 5, 7),),
        {},
    ),
    "nearest in a volume by a factor": (
        lambda m, x: F.interpolate(x, scale_factor=1.3),
        (r(2, 3, 4, 5, 7),),
        {},
    ),
    "mean in another type": (lambda m, x: x.mean(dtype=torch.float64), (r(4, 7),), {}),
    "mean of integers": (lambda m, x: x.mean(dtype=torch.float32), (torch.arange(28).view(4, 7),), {}),
    "scalar by a half": (lambda m, x, y: x * y, (r(), r(1, dtype=torch.half)), {}),
    "scalar by a constant": (lambda m, x, y: (m.w + x) * y, (r(), r(4, 7)), {"w": r(4, 7)}),
    "cat of two types": (lambda m, x, y: torch.cat([x, y], 1), (r(2, 3), torch.arange(8).view(2, 4)), {}),
    "mean of integers in a volume": (
        lambda m, x: F.avg_pool3d(x, 2),
        (torch.arange(2 * 3 * 4 * 5 * 7).view(2, 3, 4, 5, 7),),
        {},
    ),
    "padding that shifts all away": (lambda m, x: F.pad(x, (2, -2, 0, 1), value=3.0) + 1, (r(4, 3, 2),), {}),
    "projected LSTM without biases": (
        lambda m, x: m.layer(x)[0],
        (r(5, 2, 7),),
        {"layer": nn.LSTM(7, 6, proj_size=3, bias=False)},
    ),
    "window of a scalar": (lambda m, x: x.sum().unfold(0, 1, 1) * 2, (r(4, 7),), {}),
    "flatten of a scalar": (lambda m, x: x.sum().flatten() * 2, (r(4, 7),), {}),
    "six dimensions, the last of 1": (
        lambda m, x: ((x * 2).softmax(5), x.sum(5, True), F.layer_norm(x, (1,))),
        (r(2, 3, 2, 3, 2, 1),),
        {},
    ),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_give_eagers_numbers(name: str) -> None:
    function, inputs, attributes = EDGES[name]
    net = Net(function, **attributes).eval()
    lowered = dimorder.lower(net, inputs, target="torch", run_artifact=False)
    assert lowered.max_rel_error < (5e-3 if torch.half in [x.dtype for x in inputs] else 1e-5)


def test_a_row_of_a_mask_that_sees_nothing_gives_zero() -> None:
    """The example's mask has no such row, so that only its run shows it."""
    net = Net(lambda m, q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask)).eval()
    q, k, v, mask = r(1, 2, 4, 8), r(1, 2, 5, 8), r(1, 2, 5, 8), torch.ones(4, 5, dtype=torch.bool)
    lowered = dimorder.lower(net, (q, k, v, mask), target="torch")
    mask = mask.clone()
    mask[1] = False
    torch.testing.assert_close(lowered.run(q, k, v, mask), net(q, k, v, mask))


def test_what_the_target_was_asked_about_is_what_is_built() -> None:
    """Six dimensions of which the last is 1: a seventh would be beyond XNNPACK."""
    pytest.importorskip("executorch")
    net = Net(lambda m, x: (x * 2).softmax(5) + 1).eval()
    lowered = dimorder.lower(net, (r(2, 3, 2, 3, 2, 1),), target="xnnpack")
    assert (lowered.artifact.delegates, dict(lowered.artifact.outside)) == (1, {})


def test_weights_may_have_names_that_are_no_words_of_python() -> None:
    net = nn.Sequential()
    for name in ("block-1", "block_1", "2"):
        net.add_module(name, nn.Linear(7, 7))
    lowered = dimorder.lower(net.eval(), (r(4, 7),), target="torch")
    assert lowered.max_rel_error < 1e-5
