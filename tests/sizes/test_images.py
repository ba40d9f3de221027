"""Images of a dynamic batch, height and width: where operators run, and eager's numbers at each size."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.export import Dim

import dimorder
from tests.marks import require_runtime, slow_but
from tests.sizes.symbols import PICTURES, errors, lower, sized
from tests.zoo.network import perturb

SHAPE = "Nx3xHxW"
TARGETS = ("torch", "xnnpack", "litert")


def require_eagers_numbers(lowered: dimorder.Lowered, module: nn.Module) -> None:
    for sizes in PICTURES:
        found = errors(lowered, module, sized(SHAPE, sizes))
        assert max(found) <= 1e-4, (sizes, found)


class Halving(nn.Module):
    """Halves a picture six times: the last pictures have one row or one column at some sizes alone."""

    def __init__(self) -> None:
        super().__init__()
        channels = (3, 7, 9, 10, 11, 13, 12)
        pairs = itertools.pairwise(channels)
        self.convs = nn.Sequential(*(nn.Conv2d(i, o, 3, stride=2, padding=1) for i, o in pairs))
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.convs(x).relu().mean((2, 3)))


@pytest.mark.parametrize("target", slow_but(TARGETS, ["xnnpack"]))
def test_a_size_that_is_1_in_the_example_varies(target: str) -> None:
    module = Halving().eval()
    dims = {0: Dim("N", max=5), 2: 32 * Dim("H", max=9), 3: 32 * Dim("W", max=9)}
    example = torch.randn(2, 3, 64, 96)  # torch.export takes the last picture's one row for a fixed size
    lowered = dimorder.lower(module, (example,), dynamic_shapes=(dims,), target=target)
    assert lowered.artifact.delegates == (target != "torch")
    for shape in ((1, 3, 32, 288), (5, 3, 288, 32), (3, 3, 160, 192)):
        x = torch.randn(shape)
        assert max(errors(lowered, module, x)) <= 1e-4, shape


class Shuffled(nn.Module):
    """Shuffles channels as ShuffleNet does, and passes half of them by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.head = (
            nn.Conv2d(3, 12, 3),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Conv2d(6, 5, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for _ in range(2):
            left, right = x.chunk(2, 1)
            x = torch.cat([left, self.conv(right).relu()], 1)
            batch, channels, height, width = x.shape
            x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2)
            x = x.reshape(batch, channels, height, width)
        return self.head(x[:, :6])


@pytest.mark.parametrize("target", slow_but(TARGETS, ["litert"]))
def test_channels_are_shuffled_at_all_sizes(target: str) -> None:
    module = Shuffled().eval()
    lowered = lower(module, SHAPE, target=target)
    require_eagers_numbers(lowered, module)


class Halves(nn.Module):
    """Reads half of the channels of a concatenation, and averages them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return torch.cat([y, y.roll(1, 2)], 1)[:, :5].mean((2, 3))


class Pooled(nn.Module):
    """Averages pixels with fewer at the edge, and normalizes whole pictures, as PoolFormer does."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 12, 3, stride=2), nn.Conv2d(12, 5, 3)
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.norms = nn.ModuleList([nn.GroupNorm(1, 12) for _ in range(2)])
        for norm in self.norms:
            nn.init.normal_(norm.weight)  # type: ignore[arg-type]
            nn.init.normal_(norm.bias)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for norm in self.norms:
            y = norm(x)
            x = x + self.pool(y) - y
        return self.head(x)


class Parts(nn.Module):
    """Weighs two parts of the channels by what both have in common, as ResNeSt does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.weigh, self.head = nn.Conv2d(3, 14, 3), nn.Conv2d(7, 14, 1), nn.Conv2d(7, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).relu()
        batch, _, height, width = y.shape
        parts = y.reshape(batch, 2, 7, height, width)
        common = parts.sum(1).mean((2, 3), keepdim=True)
        weights = self.weigh(common).view(batch, 2, 7, 1, 1).softmax(1)
        return self.head((parts * weights).sum(1))


class Pyramid(nn.Module):
    """Joins a map with means of its windows, as PSPNet does; 3 and 6 do not divide all sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 7, 3, stride=2, padding=1), nn.Conv2d(35, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        means = [nn.functional.adaptive_avg_pool2d(y, count) for count in (1, 2, 3, (6, 2))]
        wide = [nn.functional.interpolate(each, size=y.shape[2:], mode="bilinear") for each in means]
        return self.head(torch.cat([y, *wide], 1))


class Kernels(nn.Module):
    """Chooses among two convolutions of other windows by what both find, as selective kernels do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.paths = nn.ModuleList(nn.Conv2d(2, 6, 3, 2, d, d) for d in (1, 2))
        self.last = nn.Sequential(nn.Conv2d(6, 7, 3, 2, 1), nn.ReLU(), nn.Conv2d(7, 5, 3, 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        halves = self.first(x).chunk(2, 1)
        both = torch.stack([path(half).relu() for path, half in zip(self.paths, halves, strict=True)], 1)
        both = both * both.sum(1).mean((2, 3), keepdim=True)[:, None].sigmoid()
        return self.last(both.sum(1))


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_a_stride_leaves_over_what_it_does_at_each_size(target: str) -> None:
    require_runtime(target)
    torch.manual_seed(0)
    module, dims = Kernels().eval(), {2: Dim("H", min=33, max=97), 3: Dim("W", min=33, max=97)}
    lowered = dimorder.lower(module, (torch.randn(1, 3, 65, 66),), target=target, dynamic_shapes=(dims,))
    for height, width in ((33, 97), (34, 36), (38, 53), (71, 43), (92, 90), (55, 59)):
        assert max(errors(lowered, module, torch.randn(1, 3, height, width))) <= 1e-4


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_pools_that_complete_their_last_window_follow_one_another(target: str) -> None:
    require_runtime(target)
    torch.manual_seed(0)
    pools = [nn.MaxPool2d(3, 2, ceil_mode=True) for _ in range(3)]
    module = nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3), *pools, nn.MaxPool2d(2, ceil_mode=True)).eval()
    dims = {2: Dim("H", min=64, max=224), 3: Dim("W", min=64, max=224)}
    lowered = dimorder.lower(module, (torch.randn(1, 3, 144, 145),), target=target, dynamic_shapes=(dims,))
    for height, width in ((64, 224), (97, 113), (128, 65), (191, 77)):
        assert max(errors(lowered, module, torch.randn(1, 3, height, width))) <= 1e-4


class Merged(nn.Module):
    """Adds maps to those of about twice their size, and to the largest one, as networks that segment do."""

    def __init__(self, kernel: int, padding: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3 * kernel - 2, stride=4, padding=3 * padding)
        self.halves = nn.ModuleList(nn.Conv2d(4, 4, kernel, stride=2, padding=padding) for _ in range(3))
        self.part = nn.Conv2d(4, 5, 8, stride=8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        maps = [self.first(x)]
        for half in self.halves:
            maps.append(half(maps[-1]))
        y = maps[-1]
        for each in reversed(maps[:-1]):
            y = each + nn.functional.interpolate(y, size=each.shape[2:], mode="bilinear")
        deepest = nn.functional.interpolate(maps[-1], size=y.shape[2:], mode="bilinear")
        return y + deepest, self.part(maps[0]).relu()


@pytest.mark.parametrize(
    ("kernel", "padding", "most"), [(2, 0, 160), pytest.param(3, 1, 150, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("target", slow_but(["xnnpack", "litert"], ["xnnpack"]))
def test_maps_are_resized_to_others_of_about_twice_their_size(
    target: str, kernel: int, padding: int, most: int
) -> None:
    require_runtime(target)
    torch.manual_seed(0)
    module = Merged(kernel, padding).eval()
    dims = {2: Dim("H", min=64, max=160), 3: Dim("W", min=64 + padding, max=most)}
    lowered = dimorder.lower(module, (torch.randn(1, 3, 112, 113),), target=target, dynamic_shapes=(dims,))
    for height, width in ((64, 65), (160, most), (77, 93), (125, 124), (95, 127), (67, 96)):
        assert max(errors(lowered, module, torch.randn(1, 3, height, width))) <= 1e-4


@pytest.mark.parametrize("target", slow_but(["xnnpack", "litert"], ["xnnpack"]))
def test_windows_of_other_sizes_at_each_size_are_averaged_by_matmuls(target: str) -> None:
    require_runtime(target)
    module = Pyramid().eval()
    lowered = lower(module, SHAPE, target=target)
    require_eagers_numbers(lowered, module)
    assert not any("pool" in name for name in lowered.artifact.outside)


@pytest.mark.parametrize(
    ("network", "target"),
    slow_but(
        itertools.product([Halves, Pooled, Parts], TARGETS),
        [(Halves, "torch"), (Pooled, "xnnpack"), (Parts, "litert")],
    ),
)
def test_images_are_reduced_at_all_sizes(network: type[nn.Module], target: str) -> None:
    module = network().eval()
    lowered = lower(module, SHAPE, target=target)
    require_eagers_numbers(lowered, module)
    if network is Pooled:
        assert lowered.artifact.delegates == (target != "torch")
        assert lowered.plan.cost[1] == 2  # conversions: into NHWC and back


class Normed(nn.Module):
    """Two convolutions, each with a group norm of four groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, 8), nn.GroupNorm(4, 12)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norms[1](self.second(self.norms[0](self.first(x)).relu()))
        return y


@pytest.mark.parametrize("target", slow_but(TARGETS, ["xnnpack"]))
def test_channels_are_normed_in_groups_at_all_sizes(target: str) -> None:
    module = perturb(Normed().eval())
    dims = ({0: Dim("N", min=1, max=4), 2: Dim("H", min=8, max=40), 3: Dim("W", min=9, max=37)},)
    lowered = dimorder.lower(module, (torch.randn(2, 3, 16, 20),), dynamic_shapes=dims, target=target)
    if target == "xnnpack":
        assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    for shape in ((1, 3, 8, 37), (4, 3, 40, 9), (3, 3, 17, 22)):
        x = torch.randn(shape)
        assert max(errors(lowered, module, x)) <= 1e-5, shape


class Anchors(nn.Module):
    """Joins the scores of three anchors at each place of maps, each half as large as the one before it."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 if i == 0 else 6, 6, 3, 2, 1) for i in range(count))
        self.scores = nn.Conv2d(6, 12, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for conv in self.convs:
            x = conv(x).relu()
            scores = self.scores(x).unflatten(1, (3, 4))
            found.append(scores.permute(0, 3, 4, 1, 2).flatten(1, 3))
        return torch.cat(found, 1)


@pytest.mark.parametrize("count, step, least, most", [(2, 4, 1, 6), (3, 2, 2, 12)])
@pytest.mark.parametrize("target", slow_but(TARGETS, ["xnnpack"]))
def test_sizes_that_divide_one_another_by_chance_are_not_cut(
    target: str, count: int, step: int, least: int, most: int
) -> None:
    require_runtime(target)
    torch.manual_seed(2)
    module = Anchors(count).eval()
    height, width = (step * Dim(name, min=least, max=most) for name in "HW")
    example = torch.randn(1, 3, 4 * step, 3 * step)
    lowered = dimorder.lower(module, (example,), target=target, dynamic_shapes=({2: height, 3: width},))
    for rows, columns in ((2, 6), (5, 3), (6, 4)):
        x = torch.randn(1, 3, rows * step, columns * step)
        torch.testing.assert_close(lowered.run(x), module(x), rtol=1e-4, atol=1e-5)
