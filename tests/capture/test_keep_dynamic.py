"""Sizes stay dynamic where torch.export fixes them: in equal parts, numbers of a line, pools, distances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import dimorder
from dimorder.capture.keep_dynamic import KeepDynamic
from dimorder.errors import UnsupportedError
from dimorder.verification.relative_error import relative_error
from tests.marks import require_runtime

N, H = Dim("N", min=1, max=4), Dim("H", min=3, max=9)


class Guided(nn.Module):
    """Computes two batches as one, as diffusion does with and without guidance, and optical flow."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        both = self.conv(torch.cat([x, y])).sigmoid()
        with_guidance, without = both.chunk(2)
        first, second = both.split(both.shape[0] // 2)
        left, right = torch.split(torch.cat([first, second], 2), first.shape[2], dim=2)
        return without + 7.5 * (with_guidance - without), left * right, *(2 * x).chunk(3, 1)


@pytest.mark.parametrize("dims", [{0: N}, {0: N, 2: H}], ids=["batch", "batch and height"])
@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_two_batches_that_are_computed_as_one_have_any_size(target: str, dims: dict[int, Any]) -> None:
    require_runtime(target)
    net = Guided().eval()
    example = torch.randn(2, 2, 3, 6, 7)
    lowered = dimorder.lower(net, tuple(example), dynamic_shapes=(dims, dims), target=target)
    if target == "xnnpack" and 2 not in dims:
        assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    for size, height in ((1, 3), (3, 9), (4, 5)):
        given = torch.randn(2, size, 3, height if 2 in dims else 6, 7)
        with torch.no_grad():
            wanted = net(*given)
        for pair in zip(lowered(*given), wanted, strict=True):
            assert relative_error(*pair) <= 1e-5


def test_parts_that_are_not_equal_at_every_size_are_refused_with_the_sizes_that_are() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            first, second = x.chunk(2)
            return first - second

    with pytest.raises(UnsupportedError) as refused:
        dimorder.lower(Halves(), (torch.ones(4, 3),), dynamic_shapes=({0: Dim("N", min=2, max=8)},))
    assert "N = 2*_N" in str(refused.value)
    dims = ({0: 2 * Dim("B", min=1, max=4)},)
    lowered = dimorder.lower(Halves(), (torch.ones(4, 3),), dynamic_shapes=dims)
    x = torch.randn(8, 3)
    assert torch.equal(lowered(x), x[:4] - x[4:])


class Parts(nn.Module):
    def __init__(self, divide: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        self.divide = divide

    def forward(self, x: Tensor) -> list[Tensor]:
        return [part * (i + 1.5) for i, part in enumerate(self.divide(x))]


@pytest.mark.parametrize("dim", [2, -1, 1, -2])
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_along_a_dimension_are_torchs(dim: int, parts: int) -> None:
    network, width = Parts(lambda x: x.chunk(parts, dim)), 6 * Dim("W", min=1, max=4)
    other = ({dim % 3: width},)
    shape = [2, 5, 7]
    shape[dim] = 12
    with KeepDynamic():
        program = torch.export.export(network, (torch.randn(shape),), dynamic_shapes=other)
    for size in (6, 12, 24):
        shape[dim] = size
        x = torch.randn(shape)
        for got, wanted in zip(program.module()(x), network(x), strict=True):
            assert torch.equal(got, wanted)


def test_parts_of_half_a_size_are_torchs() -> None:
    network = Parts(lambda x: x.split(x.shape[-1] // 2, -1))
    sizes = ({1: 2 * Dim("W", min=1, max=9)},)
    with KeepDynamic():
        program = torch.export.export(network, (torch.randn(3, 8),), dynamic_shapes=sizes)
    x = torch.randn(3, 14)
    for got, wanted in zip(program.module()(x), network(x), strict=True):
        assert torch.equal(got, wanted)


def test_a_number_has_no_parts() -> None:
    with KeepDynamic(), pytest.raises(RuntimeError, match="dimension"):
        torch.tensor(1.0).chunk(2)


class Coordinates(nn.Module):
    """Reads each element's place beside it, as CoordConv does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(5, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        rows, columns = torch.linspace(-1, 1, height), torch.linspace(0, 3.5, steps=width)
        places = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(batch, 2, height, width)
        y: Tensor = self.conv(torch.cat([x, places], 1))
        return y


@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_evenly_spaced_numbers_have_a_dynamic_count(target: str, least: int) -> None:
    require_runtime(target)
    net, dims = Coordinates().eval(), {2: Dim("H", min=least, max=9), 3: Dim("W", min=least, max=17)}
    lowered = dimorder.lower(net, (torch.randn(2, 3, 6, 7),), dynamic_shapes=(dims,), target=target)
    for height, width in ((least, 4), (9, least), (9, 17), (8, 5)):
        x = torch.randn(2, 3, height, width)
        with torch.no_grad():
            assert relative_error(lowered(x), net(x)) <= 1e-5


@pytest.mark.parametrize("options", [{"steps": 5}, {"steps": 7, "dtype": torch.float64}])
def test_a_fixed_count_is_left_to_torch(options: dict[str, Any]) -> None:
    with KeepDynamic():
        assert torch.equal(torch.linspace(0, 1, **options), torch.linspace(0, 1, **options))


class PooledInTime(nn.Module):
    """Convolutions and pools over a length: an arrhythmia detector, say."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.Sequential(nn.Conv1d(3, 5, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(5, 4, 3))
        self.pool = nn.MaxPool1d(3, stride=(2,), padding=1, dilation=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.max_pool1d(self.pool(self.convs(x)), 2, 1)


class PooledWhole(nn.Module):
    """Pools over all pixels by windows of the size of the picture, as older networks do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.conv(x)
        flat = y.flatten(2)
        pairs = F.avg_pool2d(y, 2, divisor_override=1), F.max_pool2d(y, 2)
        largest = F.max_pool2d(y, kernel_size=(y.size(2), y.size(3)))
        of_rows = F.avg_pool1d(flat, flat.shape[2]), F.max_pool1d(flat, flat.shape[2])
        return F.avg_pool2d(y, y.shape[2:], ceil_mode=True), largest, *of_rows, *pairs


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_window_may_be_all_that_is_pooled(target: str) -> None:
    require_runtime(target)
    net, dims = PooledWhole().eval(), {2: Dim("H", min=7, max=40), 3: Dim("W", min=5, max=37)}
    lowered = dimorder.lower(net, (torch.randn(2, 3, 20, 21),), dynamic_shapes=(dims,), target=target)
    for height, width in ((7, 5), (40, 37), (8, 37), (23, 12)):
        x = torch.randn(2, 3, height, width)
        with torch.no_grad():
            assert max(map(relative_error, lowered(x), net(x))) <= 1e-5


class Distances(nn.Module):
    """Distances of points, and the points in the sequence of their distances from the first."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        distances = torch.cdist(x * 1.5, x.flip(1))
        places = distances[:, 0].argsort(-1)[..., None].expand(x.shape)
        return distances, torch.take_along_dim(x, places, 1)


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
@pytest.mark.parametrize(
    ("net", "shape", "dim"), [(PooledInTime(), (2, 3, 39), 2), (Distances(), (2, 33, 3), 1)]
)
def test_pools_and_distances_have_any_length(
    target: str, net: nn.Module, shape: tuple[int, ...], dim: int
) -> None:
    """Distances of at most 25 points are computed otherwise in PyTorch than those of more."""
    require_runtime(target)
    sizes = ({0: N, dim: Dim("T", min=20, max=57)},)
    lowered = dimorder.lower(net.eval(), (torch.randn(shape),), dynamic_shapes=sizes, target=target)
    for count, length in ((1, 20), (4, 57), (3, 25), (1, 26), (2, 40)):
        given = torch.randn(
            [*(count if d == 0 else length if d == dim else size for d, size in enumerate(shape))]
        )
        with torch.no_grad():
            wanted = net(given)
        results = lowered(given)
        for pair in zip(pytree.tree_leaves(results), pytree.tree_leaves(wanted), strict=True):
            assert relative_error(*pair) <= 1e-5


def test_distances_of_always_many_points_to_themselves_are_those_of_pytorch() -> None:
    """PyTorch's matmul for more than 25 points rounds the distance of a point to itself, which is zero."""

    class ToThemselves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cdist(x, x)

    sizes = ({1: Dim("T", min=26, max=57)},)
    lowered = dimorder.lower(ToThemselves(), (torch.randn(2, 33, 3),), dynamic_shapes=sizes)
    for length in (26, 57, 40):
        x = torch.randn(2, length, 3)
        assert torch.equal(lowered(x), torch.cdist(x, x))


class Scaled(nn.Module):
    """Scales points by the sizes of a picture, as deformable attention does with those of its maps."""

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        height, width = x.shape[2:]
        sizes = torch.as_tensor([[height, width], [width // 2, 7]], dtype=torch.float32)
        return points / sizes + x.mean((1, 2, 3)) * torch.tensor([width, height])


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_tensor_of_sizes_has_those_of_each_call(target: str) -> None:
    require_runtime(target)
    dims = ({2: 4 * Dim("H", min=2, max=6), 3: 2 * Dim("W", min=3, max=9)}, None)
    example = (torch.randn(1, 3, 12, 10), torch.randn(5, 2, 2))
    lowered = dimorder.lower(Scaled(), example, dynamic_shapes=dims, target=target)
    for height, width in ((8, 18), (24, 6), (16, 16)):
        x, points = torch.randn(1, 3, height, width), torch.randn(5, 2, 2)
        assert relative_error(lowered(x, points), Scaled()(x, points)) <= 1e-5
