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


class _Stages(nn.Module):
    """A network that begins with convolutions, each with a PReLU and perhaps a pool.

    Each of `stages` has its channels, its kernel, and the window of its pool, or 0.
    """

    def __init__(self, *stages: tuple[int, int, int]) -> None:
        super().__init__()
        self.stages, channels = range(1, len(stages) + 1), 3
        for i, (outputs, kernel, window) in enumerate(stages, 1):
            self.add_module(f"conv{i}", nn.Conv2d(channels, outputs, kernel))
            self.add_module(f"prelu{i}", nn.PReLU(outputs))
            self.add_module(f"pool{i}", nn.MaxPool2d(window, 2, ceil_mode=True) if window else nn.Identity())
            channels = outputs

    def features(self, x: Tensor) -> Tensor:
        for i in self.stages:
            for name in ("conv", "prelu", "pool"):
                x = self.get_submodule(f"{name}{i}")(x)
        return x

    def flat_features(self, x: Tensor) -> Tensor:
        """Return the features laid out as W, H, C, on which the dense weights were trained."""
        return self.features(x).permute(0, 3, 2, 1).flatten(1)


class PNet(_Stages):
    """The proposal network: fully convolutional, one verdict per 12 × 12 window.

    Takes (N, 3, H, W); returns face probabilities (N, 2, h, w) and box offsets (N, 4, h, w).
    Source: Zhang et al., "Joint Face Detection and Alignment using Multi-task Cascaded Convolutional
    Networks", 2016.
    """

    def __init__(self) -> None:
        super().__init__((10, 3, 2), (16, 3, 0), (32, 3, 0))
        self.conv4_1 = nn.Conv2d(32, 2, 1)
        self.conv4_2 = nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.features(x)
        return self.conv4_1(x).softmax(1), self.conv4_2(x)


class RNet(_Stages):
    """The refinement network: takes (N, 3, 24, 24).

    Returns face probabilities (N, 2) and box offsets (N, 4).
    """

    def __init__(self) -> None:
        super().__init__((28, 3, 3), (48, 3, 3), (64, 2, 0))
        self.dense4 = nn.Linear(576, 128)
        self.prelu4 = nn.PReLU(128)
        self.dense5_1 = nn.Linear(128, 2)
        self.dense5_2 = nn.Linear(128, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.prelu4(self.dense4(self.flat_features(x)))
        return self.dense5_1(x).softmax(1), self.dense5_2(x)


class ONet(_Stages):
    """The output network: takes (N, 3, 48, 48).

    Returns face probabilities (N, 2), box offsets (N, 4) and five landmarks (N, 10): five x, then five y,
    as fractions of the crop.
    """

    def __init__(self) -> None:
        super().__init__((32, 3, 3), (64, 3, 3), (64, 3, 2), (128, 2, 0))
        self.dense5 = nn.Linear(1152, 256)
        self.prelu5 = nn.PReLU(256)
        self.dense6_1 = nn.Linear(256, 2)
        self.dense6_2 = nn.Linear(256, 4)
        self.dense6_3 = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.prelu5(self.dense5(self.flat_features(x)))
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
