"""Paddings and crops beside a convolution, by amounts that depend on dynamic sizes and may be zero."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from tests.marks import require_runtime
from tests.sizes.symbols import errors

F = nn.functional


def to_multiple(conv: nn.Module, x: Tensor) -> Tensor:
    """Pad to a multiple of 8, as transformers of windows and U-Nets do."""
    return torch.as_tensor(conv(F.pad(x, (0, -x.shape[3] % 8, 0, -x.shape[2] % 8))))


def to_the_skip(conv: nn.Module, x: Tensor, factor: int = 4, ceil_mode: bool = False) -> Tensor:
    """Pad what was pooled and enlarged to the size of what it is added to, as U-Nets do."""
    y = F.interpolate(F.max_pool2d(x, factor, ceil_mode=ceil_mode), scale_factor=float(factor))
    high, wide = x.shape[2] - y.shape[2], x.shape[3] - y.shape[3]
    y = F.pad(y, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
    return torch.as_tensor(conv(y) + x[:, :5])


def cut_to_the_skip(conv: nn.Module, x: Tensor) -> Tensor:
    """Cut a row or a column at the odd sizes."""
    return to_the_skip(conv, x, 2, ceil_mode=True)


def to_one_size(conv: nn.Module, x: Tensor) -> Tensor:
    return torch.as_tensor(conv(F.pad(x, (0, 31 - x.shape[3], 0, 29 - x.shape[2]))))


def to_square(conv: nn.Module, x: Tensor) -> Tensor:
    """Pad to a square picture by the larger of two sizes."""
    most = max(x.shape[2], x.shape[3])
    return torch.as_tensor(conv(F.pad(x, (0, most - x.shape[3], 0, most - x.shape[2]))))


def of_at_most(conv: nn.Module, x: Tensor) -> Tensor:
    """Cut to at most 9 rows, and to the shorter side: at some sizes nothing is cut."""
    y = torch.as_tensor(conv(x))
    return y[:, :, : min(x.shape[2], 9)] + y[:, :, :1, : min(x.shape[2:])].mean(3, keepdim=True)


def of_at_least(conv: nn.Module, x: Tensor) -> Tensor:
    """Cut 8 rows, but leave 2: the distance of the end is 8 at the points of the plan alone."""
    return torch.as_tensor(conv(x))[:, :, : max(x.shape[2] - 8, 2), 1 : min(x.shape[3] - 1, 27)]


def to_the_middle(conv: nn.Module, x: Tensor) -> Tensor:
    """Pad small pictures above and below, and cut large ones, to one height."""
    high = 17 - x.shape[2]
    return torch.as_tensor(conv(F.pad(x, (0, 0, high // 2, high - high // 2))))


def by_a_remainder(conv: nn.Module, x: Tensor) -> Tensor:
    """Cut a column where the width is a multiple of 4, and a row of the heights of less than 9."""
    return torch.as_tensor(conv(F.pad(x, (0, x.shape[3] % 4 - 1, x.shape[2] // 3 - 3, 0))))


def beyond_the_edges(conv: nn.Module, x: Tensor) -> Tensor:
    """Pad rows to a multiple of 8 by their mirror image, as super-resolution does, and columns otherwise."""
    y = F.pad(torch.as_tensor(conv(x)), (0, 0, 0, -x.shape[2] % 8), mode="reflect")
    y = F.pad(y, (x.shape[3] % 5, -x.shape[3] % 4, 1, 0), mode="circular")
    return F.pad(y, (1, x.shape[3] % 3, x.shape[2] % 6, 2), mode="replicate")


def at_mirrored_rows(conv: nn.Module, x: Tensor) -> Tensor:
    """Take rows at places that begin to run backwards where the multiple of 4 is not reached."""
    rows, last = torch.arange(x.shape[2] + -x.shape[2] % 4), x.shape[2] - 1
    return torch.as_tensor(conv(x[:, :, last - (rows - last).abs()]))


class Beside(nn.Module):
    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.conv = function, nn.Conv2d(6, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv, x)


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
@pytest.mark.parametrize(
    "function",
    [
        *(to_multiple, to_the_skip, to_one_size, to_square, of_at_most, of_at_least),
        *(cut_to_the_skip, to_the_middle, by_a_remainder, beyond_the_edges, at_mirrored_rows),
    ],
)
def test_a_padding_or_crop_by_a_dynamic_amount_is_not_a_convolutions_own(
    target: str, function: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    require_runtime(target)
    net = Beside(function).eval()
    dims = {0: Dim("N", min=1, max=4), 2: Dim("H", min=7, max=29), 3: Dim("W", min=7, max=31)}
    lowered = dimorder.lower(net, (torch.randn(2, 6, 13, 11),), dynamic_shapes=(dims,), target=target)
    for size in ((1, 7, 7), (4, 29, 31), (1, 8, 16), (3, 17, 9), (2, 10, 21), (4, 28, 7), (1, 7, 30)):
        count, height, width = size
        assert max(errors(lowered, net, torch.randn(count, 6, height, width))) <= 1e-5


class Causal(nn.Module):
    """A padding on both sides, of which the end is cut to the length of the input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(3, 5, 4, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.conv(x))[:, :, : x.shape[2]]


def test_a_crop_by_a_fixed_amount_stays_the_convolutions_own_padding() -> None:
    net, dims = Causal().eval(), ({2: Dim("T", min=6, max=30)},)
    lowered = dimorder.lower(net, (torch.randn(2, 3, 11),), dynamic_shapes=dims, target="xnnpack")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    for length in (6, 7, 30):
        assert max(errors(lowered, net, torch.randn(2, 3, length))) <= 1e-5


class SamePadded(nn.Module):
    """Strided convolutions that pad their own inputs, as TensorFlow does."""

    def __init__(self, *kernels: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        channels = range(3, 3 + len(kernels))
        self.convs = nn.ModuleList(
            nn.Conv2d(c, c + 1, k, stride=2) for c, k in zip(channels, kernels, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            taps = conv.kernel_size[0]  # type: ignore[index]
            high, wide = (max((math.ceil(n / 2) - 1) * 2 + taps - n, 0) for n in x.shape[2:])  # type: ignore[operator]
            x = conv(F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2))).relu()
        return x


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_convolutions_of_same_padding_follow_one_another(target: str) -> None:
    require_runtime(target)
    net = SamePadded(3, 5, 4).eval()
    dims = {2: Dim("H", min=16, max=99), 3: Dim("W", min=17, max=90)}
    lowered = dimorder.lower(net, (torch.randn(2, 3, 53, 47),), dynamic_shapes=(dims,), target=target)
    for height, width in ((16, 17), (99, 90), (16, 90), (33, 48), (64, 65), (31, 32), (95, 81)):
        assert max(errors(lowered, net, torch.randn(2, 3, height, width))) <= 1e-5


class Rolled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x).roll(2, 0).tile((1, 2, 1)).sin()


@pytest.mark.parametrize(("target", "rows"), [("torch", 2), ("xnnpack", 2), ("xnnpack", 11)])
@pytest.mark.parametrize("least", [2, 3])
def test_a_roll_that_leaves_few_rows_or_none_is_lowered(target: str, rows: int, least: int) -> None:
    require_runtime(target)
    net, dims = Rolled(), ({0: Dim("N", min=least, max=40)},)
    lowered = dimorder.lower(net, (torch.randn(rows + least - 2, 4, 3),), target=target, dynamic_shapes=dims)
    for count in (least, 4, 40):
        assert max(errors(lowered, net, torch.randn(count, 4, 3))) <= 1e-6


class Patches(nn.Module):
    """Sums of three numbers, of which the last may be missing: torch has no words for what this asks."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, -x.shape[1] % 3))
        return x.view(2, x.shape[1] // 3, 3).sum(-1)


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_patches_are_filled_up(target: str) -> None:
    require_runtime(target)
    net, dims = Patches(), ({1: Dim("T", min=6, max=14)},)
    lowered = dimorder.lower(net, (torch.randn(2, 11),), target=target, dynamic_shapes=dims)
    for length in range(6, 15):
        assert max(errors(lowered, net, torch.randn(2, length))) <= 1e-6
