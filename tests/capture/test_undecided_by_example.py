"""A size inside a network may be 1 at some sizes, and another size at the example's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.verification.relative_error import relative_error
from tests.marks import require_runtime


class Activated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).relu()
        return torch.as_tensor(self.linear((y + y.mean(3, keepdim=True)).mean((2, 3))))


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_size_after_a_convolution_may_be_1_before_an_activation(target: str) -> None:
    if target != "torch":
        require_runtime(target)
    model, sizes = Activated().eval(), ({2: Dim("H", min=3, max=18), 3: Dim("W", min=3, max=20)},)
    lowered = dimorder.lower(model, (torch.randn(2, 3, 16, 10),), target=target, dynamic_shapes=sizes)
    for high, wide in ((3, 3), (18, 20), (3, 20), (18, 3), (4, 3), (3, 3)):
        x = torch.randn(2, 3, high, wide)
        assert relative_error(lowered(x), model(x)) < 1e-5


class Shuffled(nn.Module):
    """Norms groups, shuffles channels and reduces patches, of pictures of one row or column too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm, self.patches = (
            nn.Conv2d(3, 8, 3, 4, 1),
            nn.GroupNorm(2, 8),
            nn.Conv2d(8, 5, 2, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.stem(x))
        parts = y.view(len(y), 2, 4, *y.shape[2:]).transpose(1, 2).contiguous()
        return torch.as_tensor(self.patches(parts.view(y.shape)))


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.Sequential(
            nn.Conv3d(2, 3, 3, 2, 1), nn.Conv3d(3, 4, 3, 2, 1), nn.Conv3d(4, 5, 3, 1, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.convs(x))


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_convolutions_norms_and_shuffles_take_a_size_that_is_1_at_some_sizes(target: str) -> None:
    if target != "torch":
        require_runtime(target)
    model, sizes = Shuffled().eval(), ({2: Dim("H", min=5, max=24), 3: Dim("W", min=5, max=26)},)
    lowered = dimorder.lower(model, (torch.randn(2, 3, 20, 12),), target=target, dynamic_shapes=sizes)
    for high, wide in ((5, 5), (24, 26), (5, 26), (24, 8), (9, 6), (8, 9), (5, 5)):
        x = torch.randn(2, 3, high, wide)
        assert relative_error(lowered(x), model(x)) < 1e-5, (high, wide)


@pytest.mark.parametrize("target", ["torch", "litert"])
def test_frames_may_shrink_to_one_at_some_lengths(target: str) -> None:
    require_runtime(target)
    model, sizes = Volume().eval(), ({2: Dim("T", min=4, max=8)},)
    lowered = dimorder.lower(model, (torch.randn(1, 2, 6, 9, 11),), target=target, dynamic_shapes=sizes)
    for frames in (8, *range(4, 9)):
        x = torch.randn(1, 2, frames, 9, 11)
        assert relative_error(lowered(x), model(x)) < 1e-5, frames
