"""Small networks of our own: one mechanism each."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .network import Network, row


def _conv_norm(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def _conv_silu(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Skips by cat, upsampling by transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = _conv_norm(3, 12)
        self.down2 = _conv_norm(12, 20)
        self.bottom = _conv_norm(20, 36)
        self.rise2 = nn.ConvTranspose2d(36, 20, 2, stride=2)
        self.up2 = _conv_norm(40, 20)
        self.rise1 = nn.ConvTranspose2d(20, 12, 3, stride=2, padding=1, output_padding=1)
        self.up1 = _conv_norm(24, 12)
        self.head = nn.Conv2d(12, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.rise2(self.bottom(F.max_pool2d(second, 2)))
        x = self.rise1(self.up2(torch.cat([second, x], 1)))
        return self.head(self.up1(torch.cat([first, x], 1)))


class TemporalBlock(nn.Module):
    """A causal, dilated residual block of a temporal convolutional network."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(channels, channels, 3, dilation=dilation)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.norm(self.conv(F.pad(x, (self.pad, 0)))))


class TCN(nn.Module):
    """Convolutions over (N, C, L), then the last step's features."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(6, 32, 1)
        self.blocks = nn.Sequential(*(TemporalBlock(32, 2**level) for level in range(4)))
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x))[:, :, -1])


class VideoNet(nn.Module):
    """Convolutions over (N, C, D, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(2, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm3d(8)
        self.conv2 = nn.Conv3d(8, 12, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool3d(F.relu(self.norm1(self.conv1(x))), (1, 2, 2))
        return self.head(F.relu(self.conv2(x)).mean((2, 3, 4)))


class LinearGate(nn.Module):
    """A squeeze-and-excitation gate whose dense layers see (N, C): mean, two linears, reshape, multiply.
    The result is a vector, so that the gate alone could ask for another order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(16, 24, 3, padding=1)
        self.squeeze = nn.Linear(24, 6)
        self.excite = nn.Linear(6, 24)
        self.conv2 = nn.Conv2d(24, 10, 1)
        self.head = nn.Linear(10, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        return self.head(self.conv2(x * gate[:, :, None, None]).amax((2, 3)))


class GroupNormResidual(nn.Module):
    """A residual block whose normalization reads groups of channels and all of space."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(24, 24, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, 24)
        self.conv2 = nn.Conv2d(24, 24, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, 24)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.norm1(self.conv1(x)))
        return F.silu(x + self.norm2(self.conv2(y)))


class ConvFlattenLinear(nn.Module):
    """Convolution, flatten, dense: the flatten reads (C, H, W) in this order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.dense = nn.Linear(8 * 8 * 10, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(F.relu(self.conv(x)).flatten(1))


class YoloBlock(nn.Module):
    """Half of the channels pass; the other half goes through residual blocks; all are joined."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.split = _conv_silu(inputs, outputs)
        self.blocks = nn.ModuleList(
            nn.Sequential(_conv_silu(half, half, 3), _conv_silu(half, half, 3)) for _ in range(2)
        )
        self.join = _conv_silu(4 * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.split(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.join(torch.cat(parts, 1))


class PyramidPool(nn.Module):
    """SPPF: three max-pools in a row, each joined with what it was made of."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.narrow = _conv_silu(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, 1, padding=2)
        self.join = _conv_silu(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.narrow(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.join(torch.cat(parts, 1))


class YoloHead(nn.Module):
    """Boxes and classes of three maps, decoded: a side is the mean of a distribution over bins."""

    STRIDES = (8, 16, 32)

    def __init__(self, widths: tuple[int, ...], classes: int = 5, bins: int = 8) -> None:
        super().__init__()
        self.classes, self.bins = classes, bins
        self.sides = nn.ModuleList(
            nn.Sequential(_conv_silu(width, 16, 3), nn.Conv2d(16, 4 * bins, 1)) for width in widths
        )
        self.kinds = nn.ModuleList(
            nn.Sequential(_conv_silu(width, 16, 3), nn.Conv2d(16, classes, 1)) for width in widths
        )
        self.mean = nn.Conv2d(bins, 1, 1, bias=False)

    def forward(self, maps: tuple[Tensor, ...]) -> Tensor:
        batch = maps[0].shape[0]
        found = [torch.cat([s(x), k(x)], 1) for x, s, k in zip(maps, self.sides, self.kinds, strict=True)]
        flat = torch.cat([x.view(batch, 4 * self.bins + self.classes, -1) for x in found], 2)
        sides, kinds = flat.split([4 * self.bins, self.classes], 1)
        bins = sides.view(batch, 4, self.bins, -1).transpose(1, 2).softmax(1)
        before, behind = self.mean(bins).view(batch, 4, -1).chunk(2, 1)
        centres, strides = self._anchors(maps)
        first, last = centres - before, centres + behind
        boxes = torch.cat([(first + last) / 2, last - first], 1) * strides
        return torch.cat([boxes, kinds.sigmoid()], 1)

    def _anchors(self, maps: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        centres, strides = [], []
        for x, stride in zip(maps, self.STRIDES, strict=True):
            ys, xs = (torch.arange(size) + 0.5 for size in x.shape[2:])
            grid = torch.stack(torch.meshgrid(ys, xs, indexing="ij")[::-1])
            centres.append(grid.flatten(1))
            strides.append(torch.full((1, grid[0].numel()), float(stride)))
        return torch.cat(centres, 1)[None], torch.cat(strides, 1)


class Yolo(nn.Module):
    """A detector of one stage: a pyramid up and down, SPPF, and a decoded head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv_silu(3, 12, 3, 2), _conv_silu(12, 20, 3, 2), YoloBlock(20, 20))
        self.down3 = nn.Sequential(_conv_silu(20, 28, 3, 2), YoloBlock(28, 28))
        self.down4 = nn.Sequential(_conv_silu(28, 44, 3, 2), YoloBlock(44, 44))
        self.down5 = nn.Sequential(_conv_silu(44, 60, 3, 2), YoloBlock(60, 60), PyramidPool(60))
        self.up4, self.up3 = YoloBlock(104, 44), YoloBlock(72, 28)
        self.narrow4, self.narrow5 = _conv_silu(28, 28, 3, 2), _conv_silu(44, 44, 3, 2)
        self.out4, self.out5 = YoloBlock(72, 44), YoloBlock(104, 60)
        self.head = YoloHead((28, 44, 60))

    def forward(self, x: Tensor) -> Tensor:
        third = self.down3(self.stem(x))
        fourth = self.down4(third)
        fifth = self.down5(fourth)
        up4 = self.up4(torch.cat([F.interpolate(fifth, scale_factor=2), fourth], 1))
        out3 = self.up3(torch.cat([F.interpolate(up4, scale_factor=2), third], 1))
        out4 = self.out4(torch.cat([self.narrow4(out3), up4], 1))
        out5 = self.out5(torch.cat([self.narrow5(out4), fifth], 1))
        return self.head((out3, out4, out5))


class ESPCN(nn.Module):
    """Super-resolution: convolutions on the small picture, then pixel shuffle."""

    def __init__(self, channels: int = 3, factor: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 24, 5, padding=2),
            nn.Tanh(),
            nn.Conv2d(24, 16, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(16, channels * factor**2, 3, padding=1),
            nn.PixelShuffle(factor),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.layers(x))


def _reflected(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.ReflectionPad2d(kernel // 2),
        nn.Conv2d(inputs, outputs, kernel, stride),
        nn.InstanceNorm2d(outputs, affine=True),
    )


class StyleResidual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = _reflected(channels, channels, 3), _reflected(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(x)))


class StyleTransfer(nn.Module):
    """Convolutions with reflected borders and instance norm, down and up by nearest."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            *(_reflected(3, 12, 9), nn.ReLU(), _reflected(12, 20, 3, 2), nn.ReLU()),
            *(_reflected(20, 28, 3, 2), nn.ReLU(), StyleResidual(28), StyleResidual(28)),
        )
        self.up = nn.Sequential(
            *(nn.Upsample(scale_factor=2), _reflected(28, 20, 3), nn.ReLU()),
            *(nn.Upsample(scale_factor=2), _reflected(20, 12, 3), nn.ReLU()),
            *(nn.ReflectionPad2d(4), nn.Conv2d(12, 3, 9)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def _shared(*widths: int) -> nn.Sequential:
    """Dense layers that every point goes through."""
    return nn.Sequential(
        *(
            layer
            for inputs, outputs in itertools.pairwise(widths)
            for layer in (nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU())
        )
    )


class PointTransform(nn.Module):
    """A matrix for a cloud of points, from the maxima of their features, next to the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.points = _shared(width, 24, 40)
        self.head = nn.Sequential(nn.Linear(40, 28), nn.ReLU(), nn.Linear(28, width * width))

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.head(self.points(x).max(2)[0]).view(-1, self.width, self.width)
        return matrix + torch.eye(self.width)


class PointNet(nn.Module):
    """Points (N, 3, L), turned twice by matrices of their own, then the maxima over all points."""

    def __init__(self) -> None:
        super().__init__()
        self.turn_input, self.turn_features = PointTransform(3), PointTransform(20)
        self.low, self.high = _shared(3, 20), _shared(20, 32, 72)
        self.head = nn.Sequential(nn.Linear(72, 40), nn.ReLU(), nn.Dropout(0.3), nn.Linear(40, 7))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.bmm(x.transpose(1, 2), self.turn_input(x)).transpose(1, 2)
        x = self.low(x)
        x = torch.bmm(x.transpose(1, 2), self.turn_features(x)).transpose(1, 2)
        return F.log_softmax(self.head(self.high(x).max(2)[0]), 1)


class ZeroBias(nn.Module):
    """A zero bias that the convolution packs, and that an add and a norm's zero bias read by pointer.

    The linear needs enough memory to be given what the packed bias leaves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 320, 32, 32)
        nn.init.zeros_(self.conv.bias)
        self.norm = nn.LayerNorm(320)
        self.head = nn.Linear(320, 4000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).mean((2, 3))
        return self.head(torch.tanh(y) + self.conv.bias + self.norm(y))


NETWORKS: tuple[Network, ...] = (
    row("unet", UNet, (1, 3, 64, 96), "own deployed"),
    row("tcn", TCN, (1, 6, 200), "own deployed"),
    row("conv3d", VideoNet, (1, 2, 6, 20, 28), "own"),
    row("se_linear", LinearGate, (1, 16, 20, 28), "own"),
    row("groupnorm_residual", GroupNormResidual, (1, 24, 20, 28), "own"),
    row("conv_flatten_linear", ConvFlattenLinear, (1, 3, 16, 20), "own"),
    row("yolo", Yolo, (1, 3, 64, 96), "own deployed"),
    row("espcn", ESPCN, (1, 3, 20, 28), "own deployed"),
    row("style_transfer", StyleTransfer, (1, 3, 32, 48), "own deployed"),
    row("pointnet", PointNet, (1, 3, 100), "own deployed"),
    row("zero_bias_unperturbed", ZeroBias, (1, 3, 64, 96), "own constructor"),
)
