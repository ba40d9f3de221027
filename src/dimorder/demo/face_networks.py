"""Build the three networks of MTCNN, with their pretrained weights.

The weights are the state dicts in facenet-pytorch's wheel, which is read as files and never imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from dimorder.errors import UnsupportedError

# What each network looks at: one RGB crop, scaled to [-1, 1]. (N, C, H, W)
INPUT_SHAPES = {"pnet": (1, 3, 12, 12), "rnet": (1, 3, 24, 24), "onet": (1, 3, 48, 48)}

INSTALL = "pip install --no-deps facenet-pytorch==2.6.0"

Network = TypeVar("Network", bound=nn.Module)


class PNet(nn.Module):
    """The proposal network: fully convolutional, one verdict per 12 × 12 window.

    Takes (N, 3, H, W); returns face probabilities (N, 2, h, w) and box offsets (N, 4, h, w).
    Source: Zhang et al., "Joint Face Detection and Alignment using Multi-task Cascaded Convolutional
    Networks", 2016.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 10, 3)
        self.prelu1 = nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2 = nn.Conv2d(10, 16, 3)
        self.prelu2 = nn.PReLU(16)
        self.conv3 = nn.Conv2d(16, 32, 3)
        self.prelu3 = nn.PReLU(32)
        self.conv4_1 = nn.Conv2d(32, 2, 1)
        self.conv4_2 = nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.prelu2(self.conv2(x))
        x = self.prelu3(self.conv3(x))
        return self.conv4_1(x).softmax(1), self.conv4_2(x)


class RNet(nn.Module):
    """The refinement network: takes (N, 3, 24, 24).

    Returns face probabilities (N, 2) and box offsets (N, 4).
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 28, 3)
        self.prelu1 = nn.PReLU(28)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2 = nn.Conv2d(28, 48, 3)
        self.prelu2 = nn.PReLU(48)
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3 = nn.Conv2d(48, 64, 2)
        self.prelu3 = nn.PReLU(64)
        self.dense4 = nn.Linear(576, 128)
        self.prelu4 = nn.PReLU(128)
        self.dense5_1 = nn.Linear(128, 2)
        self.dense5_2 = nn.Linear(128, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.prelu3(self.conv3(x))
        # The dense weights were trained on features laid out as W, H, C.
        x = x.permute(0, 3, 2, 1).flatten(1)
        x = self.prelu4(self.dense4(x))
        return self.dense5_1(x).softmax(1), self.dense5_2(x)


class ONet(nn.Module):
    """The output network: takes (N, 3, 48, 48).

    Returns face probabilities (N, 2), box offsets (N, 4) and five landmarks (N, 10): five x, then five y,
    as fractions of the crop.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.prelu1 = nn.PReLU(32)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.prelu2 = nn.PReLU(64)
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3 = nn.Conv2d(64, 64, 3)
        self.prelu3 = nn.PReLU(64)
        self.pool3 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv4 = nn.Conv2d(64, 128, 2)
        self.prelu4 = nn.PReLU(128)
        self.dense5 = nn.Linear(1152, 256)
        self.prelu5 = nn.PReLU(256)
        self.dense6_1 = nn.Linear(256, 2)
        self.dense6_2 = nn.Linear(256, 4)
        self.dense6_3 = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.pool3(self.prelu3(self.conv3(x)))
        x = self.prelu4(self.conv4(x))
        # The dense weights were trained on features laid out as W, H, C.
        x = x.permute(0, 3, 2, 1).flatten(1)
        x = self.prelu5(self.dense5(x))
        return self.dense6_1(x).softmax(1), self.dense6_2(x), self.dense6_3(x)


def pnet() -> PNet:
    """The pretrained proposal network, for inputs of (1, 3, 12, 12)."""
    return _pretrained(PNet(), "pnet.pt")


def rnet() -> RNet:
    """The pretrained refinement network, for inputs of (1, 3, 24, 24)."""
    return _pretrained(RNet(), "rnet.pt")


def onet() -> ONet:
    """The pretrained output network, for inputs of (1, 3, 48, 48)."""
    return _pretrained(ONet(), "onet.pt")


def weights_folder() -> Path:
    """Return the folder of state dicts in facenet-pytorch's wheel; UnsupportedError if there is no wheel."""
    spec = importlib.util.find_spec("facenet_pytorch")
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedError(
            "the pretrained weights of the face networks", "no wheel facenet-pytorch", INSTALL
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def _pretrained(network: Network, file: str) -> Network:
    network.load_state_dict(torch.load(weights_folder() / file, weights_only=True))
    return network.eval()
