"""List the networks that the tests and benchmarks run on: one row per network, with its inputs.

`tests.zoo:NAME` is a factory for every row, so `dimorder plan tests.zoo:resnet18 --input 1x3x224x224` works.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from . import audio, hugging_face, mechanisms, own, vision
from .network import SQUARE_224, Field, Network, calibrate, perturb
from .vision import load_torchvision, timm, torchvision

__all__ = [
    "NETWORKS",
    "SQUARE_224",
    "Field",
    "Network",
    "calibrate",
    "load_torchvision",
    "network",
    "networks",
    "perturb",
    "timm",
    "torchvision",
]

# Tags: `lower` goes through target xnnpack as one delegate; `plan` is planned, not yet emitted; `deployed` is
# what people ship, at a small size; `pretrained` keeps its weights; `constructor` keeps the zeros and ones of
# its constructor; `own` is small, with one mechanism; `parts` are quantised or in half precision; `selects`,
# `state` and `branches` say what a network does. The others name the library a network comes from.
NETWORKS: tuple[Network, ...] = (
    *vision.NETWORKS,
    *hugging_face.NETWORKS,
    *audio.NETWORKS,
    *own.NETWORKS,
    *mechanisms.NETWORKS,
)


def networks(tag: str | None = None) -> list[Network]:
    """The rows that carry `tag`, or all of them.

    >>> [network.name for network in networks("pretrained")]
    ['pnet', 'rnet', 'onet', 'silero_vad', 'crepe_tiny']
    """
    return [network for network in NETWORKS if tag is None or tag in network.tags]


def network(name: str) -> Network:
    """The row of that name. Raises KeyError if there is none.

    >>> network("onet").shape
    (1, 3, 48, 48)
    """
    for row in NETWORKS:
        if row.name == name:
            return row
    raise KeyError(name)


def __getattr__(name: str) -> Callable[[], nn.Module]:
    for row in NETWORKS:
        if row.name == name:
            return row.build
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
