"""Points at which a program is planned: sizes that differ in the ranges differ between points."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.sizes.choose_points import are_enough, specialization_points
from dimorder.sizes.export_symbolic import export_symbolic
from dimorder.sizes.points_apart import are_in_line
from tests.marks import require_runtime
from tests.sizes.symbols import errors
from tests.small_networks import OneInput


class Deep(nn.Module):
    """Five strides of 2, as classifiers have them: deep sizes are 2 or 3 for pictures of 33 to 90 rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        channels = [3, 5, 4, 6, 7, 8]
        pairs = itertools.pairwise(channels)
        self.convs = nn.Sequential(*(nn.Conv2d(a, b, 3, 2, padding=1) for a, b in pairs))
        self.last = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convs(x)
        return (self.last(y.relu()) + y).mean((2, 3))


DIMS = ({0: Dim("N", min=1, max=4), 2: Dim("H", min=33, max=90), 3: Dim("W", min=33, max=90)},)


def test_a_deep_size_that_differs_at_an_end_of_its_range_differs_between_points() -> None:
    program = export_symbolic(Deep(), (torch.randn(2, 3, 61, 52),), None, DIMS)
    assert program is not None
    points = specialization_points(program)
    for name in ("H", "W"):
        assert len({(point[name] - 1) // 32 for point in points}) == 2


class Patches(nn.Module):
    """Reduces pictures of 32 to 97 rows by 16: the last ones have one row of most, and of few two or more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.Conv2d(5, 6, 2, 2), nn.Conv2d(6, 7, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.convs(x)
        return y


def test_no_size_at_a_point_is_1_if_the_range_has_enough_others() -> None:
    dims = ({2: Dim("H", min=32, max=97), 3: Dim("W", min=33, max=98)},)
    program = export_symbolic(Patches(), (torch.randn(2, 3, 90, 92),), None, dims)
    assert program is not None
    for point in specialization_points(program):
        assert min(point.values()) // 32 > 1, point


class SamePadded(nn.Module):
    """Pads as TensorFlow does, by an amount that is computed with a division of floats that is rounded up."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 5, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        high, wide = (max((math.ceil(n / 2) - 1) * 2 + 3 - n, 0) for n in x.shape[2:])
        x = nn.functional.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
        return self.conv(x).relu()


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
@pytest.mark.parametrize("network", [Deep, SamePadded])
def test_a_network_takes_pictures_of_each_size(network: type[nn.Module], target: str) -> None:
    require_runtime(target)
    net = network().eval()
    lowered = dimorder.lower(net, (torch.randn(2, 3, 61, 52),), dynamic_shapes=DIMS, target=target)
    for shape in ((1, 3, 33, 33), (4, 3, 90, 90), (2, 3, 33, 90), (3, 3, 64, 65), (1, 3, 89, 34)):
        assert max(errors(lowered, net, torch.randn(shape))) <= 1e-5


WINDOWS = {
    "windows of one dimension": (lambda x: x.unfold(2, 2, 2), 4),
    "many windows": (lambda x: x.unfold(2, 9, 9), 18),
    "windows of pictures": (lambda x: F.unfold(x, (2, 3), stride=(2, 3)), 4),
    "windows beside padding": (lambda x: F.unfold(x, (2, 2), padding=(1, 0), stride=(2, 2)), 3),
}


@pytest.mark.parametrize("target", ["torch", "litert"])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_touch_leave_elements_over_at_some_sizes(name: str, target: str) -> None:
    require_runtime(target)
    function, least = WINDOWS[name]
    net, most = OneInput(lambda m, x: 2 * function(x)), 3 * least
    dims = ({2: Dim("H", min=least, max=most)},)
    lowered = dimorder.lower(net, (torch.randn(1, 4, least + 1, 6),), dynamic_shapes=dims, target=target)
    for height in range(least, most + 1):
        assert max(errors(lowered, net, torch.randn(1, 4, height, 6))) <= 1e-6


class Residual(nn.Module):
    """Ends in a residual block of stride 2, whose maps have 1 or 2 rows for pictures of 32 to 64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        pairs = itertools.pairwise([3, 5, 4, 6, 7])
        self.convs = nn.Sequential(*(nn.Conv2d(a, b, 3, 2, padding=1) for a, b in pairs))
        self.block = nn.Conv2d(7, 9, 3, 2, padding=1)
        self.shortcut = nn.Conv2d(7, 9, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convs(x).relu()
        return (self.block(y) + self.shortcut(y)).mean((2, 3))


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_maps_of_one_or_two_rows_are_right_at_all_sizes(target: str) -> None:
    require_runtime(target)
    module = Residual().eval()
    dims = ({2: Dim("H", min=32, max=64), 3: Dim("W", min=32, max=64)},)
    lowered = dimorder.lower(module, (torch.randn(2, 3, 40, 48),), target=target, dynamic_shapes=dims)
    for height, width in ((32, 32), (32, 33), (64, 32), (63, 64), (33, 40)):
        x = torch.randn(2, 3, height, width)
        torch.testing.assert_close(lowered(x), module(x))


def test_points_may_be_larger_than_the_ranges_but_not_the_first() -> None:
    dims = ({2: Dim("H", min=32, max=64), 3: Dim("W", min=32, max=64)},)
    program = export_symbolic(Residual(), (torch.randn(2, 3, 40, 48),), None, dims)
    assert program is not None
    first, *others = specialization_points(program)
    assert max(first.values()) <= 64 < max(max(point.values()) for point in others)
    assert len({(point["H"] - 1) // 32 for point in (first, *others)}) == 2


class Deeper(Residual):
    """Adds a map that has one row throughout. No larger point tells the map before it from one of 2 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv2d(9, 9, 3, 2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convs(x).relu()
        maps = [self.block(y) + self.shortcut(y)]
        maps.append(self.last(maps[0]))
        return torch.cat([each.permute(0, 2, 3, 1).reshape(len(x), -1, 9) for each in maps], 1)


def test_a_range_without_enough_points_is_named() -> None:
    dims = ({2: Dim("H", min=32, max=64), 3: Dim("W", min=32, max=64)},)
    with pytest.raises(UnsupportedError, match="too few sizes in H = 32 … 64, W = 32 … 64"):
        dimorder.lower(Deeper(), (torch.randn(2, 3, 40, 48),), target="xnnpack", dynamic_shapes=dims)


class Pyramid(nn.Module):
    """Returns maps of six strides of 2. No point is larger than the ranges, as the table is not."""

    def __init__(self) -> None:
        super().__init__()
        pairs = itertools.pairwise([3, 5, 4, 6, 7, 8, 9])
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, 2, padding=1) for a, b in pairs)
        self.register_buffer("table", torch.randn(150, 150))

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = [x + self.table[: x.shape[2], : x.shape[3]]]
        for conv in self.convs:
            maps.append(conv(maps[-1]))
        return maps


def test_of_few_points_those_come_first_at_which_no_size_passes_for_a_constant() -> None:
    dims = ({2: Dim("H", min=64, max=150), 3: Dim("W", min=64, max=150)},)
    program = export_symbolic(Pyramid(), (torch.randn(1, 3, 75, 91),), None, dims)
    assert program is not None
    points = specialization_points(program)
    for name in ("H", "W"):
        assert len({(point[name] - 1) // 64 for point in points}) == 2


@pytest.mark.parametrize("most", [5, 8])
def test_a_volume_of_three_dynamic_sizes_is_no_constant(most: int) -> None:
    module = nn.Sequential(nn.Conv3d(2, 6, 1), nn.InstanceNorm3d(6)).eval()
    dims = {d: 4 * Dim(name, min=3, max=most) for d, name in enumerate("DHW", 2)}
    example = torch.randn(1, 2, 12, 16, 20)
    program = export_symbolic(module, (example,), None, (dims,))
    assert program is not None
    assert len({math.prod(point.values()) for point in specialization_points(program)}) > 1
    lowered = dimorder.lower(module, (example,), target="xnnpack", dynamic_shapes=(dims,))
    for depth, height, width in ((12, 16, 12), (20, 20, 20), (16, 20, 12)):
        assert max(errors(lowered, module, torch.randn(1, 2, depth, height, width))) <= 1e-5


class WholePatches(nn.Module):
    """Resizes to whole patches, whose size it computes with `int`, as Depth Anything does."""

    def forward(self, x: Tensor) -> Tensor:
        height, width = (int(size // 6 * 6) for size in x.shape[2:])
        return F.interpolate(x[:, :, ::2, ::2], size=(height, width), mode="bilinear", align_corners=True)


def test_a_size_that_int_would_fix_stays_dynamic() -> None:
    dims = ({2: 6 * Dim("height", min=2, max=7), 3: 6 * Dim("width", min=2, max=7)},)
    module = WholePatches()
    lowered = dimorder.lower(module, (torch.randn(2, 3, 12, 18),), target="xnnpack", dynamic_shapes=dims)
    for height, width in ((12, 12), (42, 18), (24, 36)):
        x = torch.randn(2, 3, height, width)
        torch.testing.assert_close(lowered(x), module(x))


class Windows(nn.Module):
    """Cuts a map into windows of 2 and of 4, after padding it to whole windows."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = []
        for size in (2, 4):
            down, right = ((size - length % size) % size for length in x.shape[2:])
            padded = F.pad(x.relu(), (0, right, 0, down))
            found.append(padded.unflatten(3, (-1, size)).unflatten(2, (-1, size)))
        return tuple(found)


def test_no_two_counts_of_windows_are_in_line() -> None:
    height, width = Dim("H", min=5, max=14), Dim("W", min=5, max=14)
    program = export_symbolic(Windows(), (torch.randn(1, 3, 8, 12),), None, ({2: height, 3: width},))
    assert program is not None
    points = specialization_points(program)
    for name in "HW":
        halves, quarters = ([-(-point[name] // size) for point in points] for size in (2, 4))
        assert len(set(quarters)) > 1 and not are_in_line(halves, quarters)


class Folded(nn.Module):
    """Resizes a map to an even number of rows and columns, and adds up the rows of each patch of two."""

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (-(-size // 2) for size in x.shape[2:])
        y = F.interpolate(x, (2 * rows, 2 * columns), mode="bilinear")
        patches = y.reshape(len(y) * 3 * rows, 2, columns, 2).transpose(1, 2)
        return patches.reshape(len(y), 3, rows * columns, 4).relu().sum(2)


def test_a_size_that_a_view_cuts_from_a_product_is_above_one() -> None:
    dims = ({2: Dim("h", min=2, max=6), 3: Dim("w", min=2, max=6)},)
    program = export_symbolic(Folded(), (torch.randn(1, 3, 3, 4),), None, dims)
    assert program is not None
    assert all(point["h"] > 2 and point["w"] > 2 for point in specialization_points(program))
    lowered = dimorder.lower(Folded(), (torch.randn(1, 3, 3, 4),), dynamic_shapes=dims)
    for size in ((2, 5), (3, 2), (6, 6)):
        assert max(errors(lowered, Folded(), torch.randn(1, 3, *size))) <= 1e-5


class PaddedWindows(nn.Module):
    """Cuts padded maps of strides 16 and 32 into windows of 7 by 7, and joins these again, as Swin does."""

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for stride in (16, 32):
            y = F.avg_pool2d(x, stride).permute(0, 2, 3, 1)
            y = F.pad(y, (0, 0, 0, -y.shape[2] % 7, 0, -y.shape[1] % 7))
            rows, columns = y.shape[1] // 7, y.shape[2] // 7
            windows = (
                y.view(1, rows, 7, columns, 7, 3).permute(0, 1, 3, 2, 4, 5).reshape(rows * columns, 49, 3)
            )
            joined = windows.softmax(1).view(1, rows, columns, 7, 7, 3).permute(0, 1, 3, 2, 4, 5)
            maps.append(joined.reshape(y.shape)[:, : x.shape[2] // stride, : x.shape[3] // stride])
        return maps


def test_windows_that_are_joined_again_are_as_wide_as_before() -> None:
    dims = {d: 32 * Dim(name, min=8, max=20) for d, name in enumerate("HW", 2)}
    program = export_symbolic(PaddedWindows(), (torch.randn(1, 3, 256, 320),), None, (dims,))
    assert program is not None
    points = specialization_points(program)
    assert are_enough(program, points), points
