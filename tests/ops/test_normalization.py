"""Softmax and norms, lowered under contracts of random orders: eager's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dimorder
from tests.ops.rules import Case, X, case, check, conv, dynamic, unary

FAMILIES: dict[str, dict[str, Case]] = {
    "softmax and norms": {
        **{f"softmax {d}": unary(lambda x, d=d: x.softmax(d), *X) for d in range(-1, 3)},
        **{f"log_softmax {d}": unary(lambda x, d=d: x.log_softmax(d), *X) for d in (1, 3)},
        "softmax of size 1": unary(lambda x: x.softmax(1), 2, 1, 5, 7),
        "softmax of a scalar": unary(lambda x: x.sum().softmax(0), *X),
        "softmax over merged dims": unary(lambda x: x.flatten(2).softmax(-1).reshape(X), *X),
        "softmax dtype": unary(lambda x: x.softmax(1, dtype=torch.float64), *X),
        "softmin": unary(lambda x: F.softmin(x, 1), *X),
        "quantised dynamically, by one scale": dynamic([0, 1, 2, 3], "asymmetric"),
        "quantised dynamically, by tokens": dynamic([3], "symmetric"),
        "quantised dynamically, by images": dynamic([1, 2, 3], "balanced"),
        "quantised dynamically, by channels": dynamic([0, 2], "asymmetric"),
        "layer_norm 1": conv(nn.LayerNorm(7), *X),
        "layer_norm 2": conv(nn.LayerNorm((5, 7)), *X),
        "layer_norm CHW": conv(nn.LayerNorm((6, 5, 7)), *X),
        "layer_norm all": conv(nn.LayerNorm(X), *X),
        "layer_norm without weights": conv(nn.LayerNorm((5, 7), elementwise_affine=False), *X),
        "layer_norm without bias": conv(nn.LayerNorm(7, bias=False), *X),
        "layer_norm eps": conv(nn.LayerNorm(7, eps=0.5), *X),
        "layer_norm of size 1": conv(nn.LayerNorm(1), 2, 5, 1),
        "layer_norm over channels": case(
            lambda m, x: m.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), X, norm=nn.LayerNorm(6)
        ),
        "layer_norm, weight computed": case(lambda m, x, w: F.layer_norm(x, (7,), w), X, (7,)),
        "rms_norm": conv(nn.RMSNorm(7), *X),
        "group_norm": conv(nn.GroupNorm(3, 6), *X),
        "group_norm of one group": conv(nn.GroupNorm(1, 6), *X),
        "group_norm per channel": conv(nn.GroupNorm(6, 6), *X),
        "group_norm 1-D": conv(nn.GroupNorm(2, 6), 3, 6, 11),
        "instance_norm": conv(nn.InstanceNorm2d(6), *X),
        "instance_norm affine": conv(nn.InstanceNorm2d(6, affine=True), *X),
        "instance_norm with statistics": conv(
            nn.InstanceNorm2d(6, affine=True, track_running_stats=True), *X
        ),
        "batch_norm": conv(nn.BatchNorm2d(6), *X),
        "batch_norm without weights": conv(nn.BatchNorm2d(6, affine=False), *X),
        "batch_norm 1-D": conv(nn.BatchNorm1d(6), 3, 6, 11),
        "batch_norm of 2-D": conv(nn.BatchNorm1d(6), 3, 6),
        "batch_norm 3-D": conv(nn.BatchNorm3d(6), 2, 6, 3, 5, 7),
        "batch_norm folded": conv(nn.Sequential(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4)), *X),
        "batch_norm folded, grouped, no bias": conv(
            nn.Sequential(nn.Conv2d(6, 4, 3, groups=2, bias=False), nn.BatchNorm2d(4)), *X
        ),
        "batch_norm folded, transposed": conv(
            nn.Sequential(nn.ConvTranspose2d(6, 4, 3, groups=2), nn.BatchNorm2d(4)), *X
        ),
        "batch_norm folded, 1-D": conv(nn.Sequential(nn.Conv1d(6, 4, 3), nn.BatchNorm1d(4)), 2, 6, 11),
        "batch_norm of a conv used twice": case(
            lambda m, x: (m.norm(m.conv(x)), m.conv(x)), X, conv=nn.Conv2d(6, 4, 3), norm=nn.BatchNorm2d(4)
        ),
        "batch_norm of a value used twice": case(
            lambda m, x: (lambda y: m.norm(y) + y)(m.conv(x)),
            X,
            conv=nn.Conv2d(6, 4, 3),
            norm=nn.BatchNorm2d(4),
        ),
        "shared batch_norm": case(
            lambda m, x: (m.norm(m.a(x)), m.norm(m.b(x))),
            X,
            a=nn.Conv2d(6, 4, 3),
            b=nn.Conv2d(6, 4, 3),
            norm=nn.BatchNorm2d(4),
        ),
        "normalize": unary(lambda x: F.normalize(x, dim=1), *X),
        "cosine_similarity": case(lambda m, x, y: F.cosine_similarity(x, y, dim=1), X, X),
        "local response": conv(nn.LocalResponseNorm(3), *X),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    check(FAMILIES[family])


@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_in_halves_is_exact_near_means_far_above_the_deviation(affine: bool) -> None:
    network = nn.BatchNorm2d(4, affine=affine).half().eval().requires_grad_(False)
    network.running_mean.copy_(torch.tensor([30.1, -20.3, 11.7, 70.1]))
    if affine:
        network.weight.uniform_(0.5, 2)
        network.bias.uniform_(-1, 1)
    x = (network.running_mean.reshape(-1, 1, 1) + torch.randn(2, 4, 3, 5) / 20).half()
    lowered = dimorder.lower(network, (x,), target="torch")
    torch.testing.assert_close(lowered(x), network(x), rtol=2e-3, atol=2e-3)
