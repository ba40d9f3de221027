"""Small networks of our own: one mechanism each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .network import Network, row


def _conv_norm(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
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
    """A residual block whose normalisation reads groups of channels and all of space."""

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


NETWORKS: tuple[Network, ...] = (
    row("unet", UNet, (1, 3, 64, 96), "own"),
    row("tcn", TCN, (1, 6, 200), "own deployed"),
    row("conv3d", VideoNet, (1, 2, 6, 20, 28), "own"),
    row("se_linear", LinearGate, (1, 16, 20, 28), "own"),
    row("groupnorm_residual", GroupNormResidual, (1, 24, 20, 28), "own"),
    row("conv_flatten_linear", ConvFlattenLinear, (1, 3, 16, 20), "own"),
)
