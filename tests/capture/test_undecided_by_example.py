"""A size inside a network may be 1 at some sizes, and another size at the example's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.errors import UnsupportedError
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
        parts = y.view(y.shape[0], 2, 4, *y.shape[2:]).transpose(1, 2).contiguous()
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


class Attending(nn.Module):
    """Attends to the places of a map, which is one at the least sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.stem(x).reshape(x.shape[0], 2, 4, -1)
        values = keys.transpose(-1, -2).relu()
        return (keys @ values + 1).transpose(1, 2).reshape(x.shape[0], 8, -1)


def test_a_matmul_takes_places_that_are_one_at_some_sizes() -> None:
    model = Attending().eval()
    sizes = ({0: Dim("N", max=4), 2: Dim("H", min=4, max=24), 3: Dim("W", min=4, max=26)},)
    lowered = dimorder.lower(model, (torch.randn(2, 3, 20, 12),), target="torch", dynamic_shapes=sizes)
    for count, high, wide in ((1, 4, 4), (4, 24, 26), (2, 4, 26), (3, 24, 4), (1, 9, 5)):
        x = torch.randn(count, 3, high, wide)
        assert relative_error(lowered(x), model(x)) < 1e-5, (count, high, wide)


class Halves(nn.Module):
    """Computes one half of a sequence by one linear, and the rest by another one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        middle = x.shape[1] // 2
        return torch.cat([self.first(x[:, :middle]), self.last(x[:, middle:])], 1)


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_linears_take_parts_of_a_batch_of_sequences_that_may_have_one(target: str) -> None:
    require_runtime(target)
    model, sizes = Halves().eval(), ({0: Dim("N", max=4), 1: Dim("T", min=4, max=40)},)
    lowered = dimorder.lower(model, (torch.randn(2, 17, 6),), target=target, dynamic_shapes=sizes)
    for count, length in ((1, 4), (4, 40), (1, 5), (3, 22)):
        x = torch.randn(count, length, 6)
        assert relative_error(lowered(x), model(x)) < 1e-5, (count, length)


class Pooled(nn.Module):
    """Pools a map by 2, which needs two rows, after a convolution of which one row would be enough."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 4, 1), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.stem(x))
        return nn.functional.avg_pool2d(
            y.view(y.shape[0], 2, 4, *y.shape[2:]).transpose(1, 2).flatten(1, 2), 2, 2
        )


def test_a_refusal_names_what_the_network_needs_and_not_what_torch_asks_of_one() -> None:
    sizes = ({2: Dim("H", min=4, max=24), 3: Dim("W", min=5, max=26)},)
    with pytest.raises(UnsupportedError) as caught:
        dimorder.lower(Pooled(), (torch.randn(2, 3, 20, 12),), target="torch", dynamic_shapes=sizes)
    assert (
        caught.value.found
        == "the network needs 5 <= H and H <= 24, which not all 4 <= H <= 24 satisfy (dim 2 of x)"
    )
    assert caught.value.fix == "give sizes that the network takes: H = Dim('H', min=5, max=24)"


class Cut(nn.Module):
    """Multiplies a column by itself, which has one row at some lengths."""

    def forward(self, x: Tensor) -> Tensor:
        column = x[:, : max(x.shape[1] - 8, 1)].flatten().view(-1, 1)
        return column.mT @ column


class Padded(nn.Module):
    """Pads a row to a multiple of 3, and cuts it into parts, which is one part at the least lengths."""

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.pad(x, (0, -x.shape[1] % 3))
        return x.view(2, x.shape[1] // 3, 3).sum(-1)


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
@pytest.mark.parametrize("network", [Cut, Padded])
def test_a_view_takes_all_lengths(network: type[nn.Module], target: str) -> None:
    require_runtime(target)
    model, sizes = network(), ({1: Dim("T", min=4, max=30)},)
    lowered = dimorder.lower(model, (torch.randn(2, 11),), target=target, dynamic_shapes=sizes)
    for length in range(4, 31):
        x = torch.randn(2, length)
        assert relative_error(lowered(x), model(x)) < 1e-5, length
