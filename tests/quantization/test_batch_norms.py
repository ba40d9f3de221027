"""Batch norms are folded into weights that nothing else reads, and stay where that would change numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dimorder
from tests.marks import require_runtime


class Normalized(nn.Module):
    """A convolution and two batch norms, of which a function makes a network."""

    def __init__(self, forward: Callable[[Normalized, Tensor], Tensor], out: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, out, 3, padding=1, bias=False)
        self.first, self.second = self._norm(out), self._norm(out)
        self.plain = nn.BatchNorm2d(out, affine=False)
        self.register_buffer("mask", (torch.rand(out, 3, 3, 3) > 0.3).float())
        self.function = forward

    def _norm(self, out: int) -> nn.BatchNorm2d:
        norm = nn.BatchNorm2d(out)
        for tensor in (norm.running_var, norm.weight.data):
            assert tensor is not None
            tensor.uniform_(0.5, 3)
        assert norm.running_mean is not None
        norm.running_mean.normal_()
        return norm

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def _computed(net: Normalized, x: Tensor) -> Tensor:
    norm = net.first
    y = F.conv2d(x, net.conv.weight * net.mask, padding=1)
    return F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight + 1, norm.bias).relu()


def _again(net: Normalized, x: Tensor) -> Tensor:
    y = net.conv(x)
    return torch.cat([net.first(y).relu(), net.second(y), y], 1)


NETWORKS: dict[str, tuple[Callable[[Normalized, Tensor], Tensor], int]] = {
    "a weight with two norms": (lambda net, x: net.second(net.conv(net.first(net.conv(x)).relu())), 3),
    "levels that share a weight": (
        lambda net, x: (
            net.first(net.conv(x)).flatten(2).mean(2) + net.second(net.conv(x[..., ::2])).mean((2, 3))
        ),
        8,
    ),
    "a weight that is read without a norm too": (
        lambda net, x: net.first(net.conv(x)) - F.conv2d(x.flip(1), net.conv.weight, padding=1),
        8,
    ),
    "a result that is read without the norm too": (_again, 8),
    "a weight and a factor that are computed": (_computed, 8),
    "a norm without factors": (lambda net, x: net.plain(net.conv(x)).relu(), 8),
}


def _snr_db(got: Tensor, wanted: Tensor) -> float:
    return float(10 * torch.log10((wanted**2).sum() / ((got - wanted) ** 2).sum()))


@pytest.mark.parametrize("target", ["xnnpack", "litert", "tosa"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_quantised_network_keeps_its_numbers(name: str, target: str) -> None:
    require_runtime(target)
    net, x = Normalized(*NETWORKS[name]).eval(), torch.randn(2, 3, 8, 12)
    quantised = dimorder.quantize(net, [torch.randn(2, 3, 8, 12) for _ in range(4)] + [x], target=target)
    with torch.no_grad():
        assert _snr_db(quantised.module(x), net(x)) > 25
    assert dimorder.lower(quantised, target=target).verified


def test_norms_after_linears_share_no_weight_either() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear, self.first, self.second = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6)
            for norm in (self.first, self.second):
                assert norm.running_var is not None
                norm.running_var.uniform_(0.2, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.second(self.linear(self.first(self.linear(x)).relu()))
            return y

    net, x = Head().eval(), torch.randn(5, 6)
    quantised = dimorder.quantize(net, [torch.randn(5, 6) for _ in range(4)] + [x])
    with torch.no_grad():
        assert _snr_db(quantised.module(x), net(x)) > 25
