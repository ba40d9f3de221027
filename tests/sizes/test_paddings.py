"""Paddings and crops beside a convolution, by amounts that depend on dynamic sizes and may be zero."""

from __future__ import annotations

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


def to_the_skip(conv: nn.Module, x: Tensor) -> Tensor:
    """Pad what was pooled and enlarged to the size of what it is added to, as U-Nets do."""
    y = F.interpolate(F.max_pool2d(x, 4), scale_factor=4)
    high, wide = x.shape[2] - y.shape[2], x.shape[3] - y.shape[3]
    y = F.pad(y, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
    return torch.as_tensor(conv(y) + x[:, :5])


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
        *(to_the_middle, by_a_remainder),
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
