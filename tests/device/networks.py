"""List the networks that are run where they are deployed: in C++, here and on emulated Arm cores."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from tests import zoo
from tests.targets import quantised
from tests.zoo import stateful

Call = tuple[tuple[Any, ...], dict[str, Any]]
Made = tuple[nn.Module, Call]
PHOTO, SQUARE = (1, 3, 64, 96), (1, 3, 64, 64)


@dataclass(frozen=True)
class Deployed:
    """A network as it is deployed: how it is made, what its numbers are, and how often it is called.

    `others` are further calls, of other sizes. `steps` is the number of calls, for one with state.
    """

    name: str
    numbers: str  # float32, float16, int8, dynamic
    make: Callable[[], Made]
    lower: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[Call, ...] = ()
    steps: int = 1


@dataclass(frozen=True)
class Shipped:
    """A network, its lowered form, and the file of it, which is removed with this."""

    network: nn.Module
    call: Call
    lowered: Any
    path: Path
    folder: tempfile.TemporaryDirectory[str]


def image(shape: tuple[int, ...], seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _zoo(name: str, shape: tuple[int, ...] | None = None, **lower: Any) -> Deployed:
    def make() -> Made:
        row = zoo.network(name)
        return row.build(), ((image(shape),), {}) if shape else row.call()

    return Deployed(name, "float32", make, lower)


def _half(name: str, shape: tuple[int, ...]) -> Deployed:
    def make() -> Made:
        return zoo.network(name).build().half(), ((image(shape).half(),), {})

    return Deployed(f"{name} float16", "float16", make)


def _int8(name: str, shape: tuple[int, ...], by: str) -> Deployed:
    def make() -> Made:
        x = image(shape)
        return getattr(quantised, by)(zoo.network(name).build(), x), ((x,), {})

    return Deployed(f"{name} {by}", "int8", make, {"input_orders": "NHWC"})


def _dynamic(name: str, shape: tuple[int, ...]) -> Deployed:
    def make() -> Made:
        x = image(shape)
        return quantised.by_xnnpack_dynamically(zoo.network(name).build(), x), ((x,), {})

    return Deployed(f"{name} dynamic int8", "dynamic", make)


def _four_bits() -> Made:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig
    from torchao.quantization.granularity import PerGroup

    config: Any = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(96, 128), nn.GELU(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 32))
    return quantised.by_torchao(net.eval(), config), ((image((7, 96)),), {})


def _stateful(name: str, make: Callable[[], nn.Module], *args: Any, **kwargs: Any) -> Deployed:
    def made() -> Made:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return make().eval(), (args, kwargs)

    return Deployed(name, "float32", made, steps=3)


def _ranges(name: str, shape: tuple[int, ...], other: tuple[int, ...], dims: Mapping[int, Any]) -> Deployed:
    def make() -> Made:
        return zoo.network(name).build(), ((image(shape),), {})

    others = (((image(other, seed=3),), {}),)
    return Deployed(f"{name} ranges", "float32", make, {"dynamic_shapes": (dims,)}, others)


_FLOATS: tuple[tuple[str, tuple[int, ...] | None], ...] = (
    *((name, None) for name in ("pnet", "rnet", "onet", "silero_vad", "crepe_tiny", "bert", "distilbert")),
    *((name, None) for name in ("gpt2", "t5_encoder", "clip_vision", "whisper_encoder", "segformer")),
    *((name, None) for name in ("conv_tasnet", "lstm_tagger", "gru_tagger", "tcn", "conv3d", "se_linear")),
    *((name, None) for name in ("espcn", "style_transfer", "pointnet", "yolo", "unet", "encodec_decoder")),
    *((name, None) for name in ("convnext_atto_unperturbed", "edgenext_xx_small_unperturbed")),
    *(
        (name, None)
        for name in ("zero_bias_unperturbed", "starnet_s1", "ghostnet_100", "xcit_nano_12_p16_224")
    ),
    *((name, PHOTO) for name in ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x1_0")),
    *((name, SQUARE) for name in ("efficientnet_b0", "squeezenet1_1", "convnext_tiny", "swin_t", "vit_128")),
    *((name, SQUARE) for name in ("mobilevit_xxs", "densenet121", "edgenext_x_small", "pvt_v2_b0")),
)
_HALVES = ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x1_0", "convnext_tiny", "vit_128")
_HALVES += ("squeezenet1_1", "efficientnet_b0", "ghostnet_100", "starnet_s1")
_INT8 = (
    *((name, PHOTO, "by_xnnpack") for name in ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "unet")),
    *((name, PHOTO, "by_xnnpack") for name in ("shufflenet_v2_x1_0", "squeezenet1_1")),
    *((name, SQUARE, "by_xnnpack") for name in ("mobilenetv4_conv_small", "ghostnet_100", "vit_128")),
    *((name, PHOTO, "by_arm") for name in ("mobilenet_v2", "shufflenet_v2_x1_0", "regnet_y_400mf")),
)
_HEIGHT, _WIDTH = 32 * Dim("H", min=1, max=8), 32 * Dim("W", min=1, max=8)

NETWORKS: Mapping[str, Deployed] = MappingProxyType(
    {
        each.name: each
        for each in (
            *(_zoo(name, shape) for name, shape in _FLOATS),
            *(_half(name, SQUARE) for name in _HALVES),
            *(_int8(*row) for row in _INT8),
            _dynamic("resnet18", PHOTO),
            _dynamic("vit_128", SQUARE),
            Deployed("linears dynamic int4", "dynamic", _four_bits),
            _stateful("counter", stateful.Counter, image((5, 7))),
            _stateful("streaming tcn", stateful.tcn, image((2, 5, 6))),
            _stateful("streaming rows", stateful.StreamingConv2d, image((1, 3, 2, 9))),
            _ranges("tcn", (1, 6, 200), (1, 6, 331), {2: Dim("T", min=100, max=400)}),
            _ranges("resnet18", PHOTO, (1, 3, 96, 32), {2: _HEIGHT, 3: _WIDTH}),
        )
    }
)


@functools.lru_cache(maxsize=1)  # a network's tests come one after the other
def shipped(name: str) -> Shipped:
    """Lower a network, and save it."""
    row = NETWORKS[name]
    network, (args, kwargs) = row.make()
    lowered = dimorder.lower(network, args, kwargs, target="xnnpack", **row.lower)
    folder = tempfile.TemporaryDirectory(prefix="dimorder-")
    path = lowered.save(Path(folder.name, "network.pte"))
    return Shipped(network, (args, kwargs), lowered, path, folder)
