"""Decides which networks the tests and benchmarks run on: one row per network, with the shape it is fed.

`tests.zoo:NAME` is a factory for every row, so `dimorder plan tests.zoo:resnet18 --input 1x3x224x224` works.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.face import networks as face

Shape = tuple[int, ...]
SQUARE_224 = (1, 3, 224, 224)


@dataclass(frozen=True)
class Network:
    """A network of the zoo. `shape` is that of its one float32 input, batch first.

    `make` gives the bare module; `build` the one to test with, in eval mode: seeded, and unless it is
    pretrained, perturbed and calibrated.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: Shape
    tags: frozenset[str]

    def build(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.make().eval()
        if "pretrained" in self.tags:
            return module
        return calibrate(perturb(module, seed), *self.inputs(batch=2, seed=seed))

    def inputs(self, batch: int = 1, seed: int = 1) -> tuple[Tensor]:
        """One seeded standard-normal input of `shape`, with `batch` for its first dimension."""
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn((batch, *self.shape[1:]), generator=generator),)


def networks(tag: str | None = None) -> list[Network]:
    """The rows that carry `tag`, or all of them.

    >>> [network.name for network in networks("pretrained")]
    ['pnet', 'rnet', 'onet']
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


def perturb(module: nn.Module, seed: int = 0) -> nn.Module:
    """Moves every value that an initialiser left constant, in place: a zero or a one hides mistakes.

    Biases, scales, slopes and running statistics get noise of a tenth; a weight matrix that is constant
    becomes a random one. Variances stay positive. The same seed moves the same module the same way.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if not value.is_floating_point() or value.numel() == 0:
                continue
            if name.endswith("running_var"):
                value.mul_(1 + 0.4 * torch.rand(value.shape, generator=generator))
            elif _is_vector(value) or name.endswith("running_mean"):
                value.add_(0.1 * torch.randn(value.shape, generator=generator))
            elif _is_constant(value):
                fan_in = value[0].numel()
                value.copy_(torch.randn(value.shape, generator=generator) / fan_in**0.5)
    return module


def calibrate(module: nn.Module, *inputs: Tensor) -> nn.Module:
    """Sets every batch-norm's running statistics to those of `inputs` (batch of 2 or more), in place.

    With the statistics of an initialiser the activations of a MobileNet die out on the way: its output would
    be the same for every input, and a wrong program would pass for a right one.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train().momentum = 1.0
    with torch.no_grad():
        module(*inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval().momentum = momentum
    return module


def _is_vector(value: Tensor) -> bool:
    return value.numel() == max(value.shape, default=1)


def _is_constant(value: Tensor) -> bool:
    return bool((value == value.flatten()[0]).all())


# --- other people's networks ------------------------------


@functools.cache
def _torchvision_schemas() -> torch.library.Library | None:
    """Makes `import torchvision` work where its compiled part is missing or was built for another torch.

    Without that part torchvision 0.28 fails at import on `torchvision::nms`, which none of these networks
    calls, so the two schemas that it registers kernels for are defined first. The library lives as long as
    the cache.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        for compiled in Path(spec.submodule_search_locations[0]).glob("_C*.so"):
            torch.ops.load_library(str(compiled))
            return None
    except OSError:
        pass
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _torchvision(path: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        _torchvision_schemas()
        import torchvision

        factory = functools.reduce(getattr, path.split("."), torchvision.models)
        return factory(weights=None, **options)

    return make


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        _torchvision_schemas()
        import timm

        return timm.create_model(name, pretrained=False, **options)

    return make


def _vit_128() -> nn.Module:
    """A vision transformer of 4 layers, 128 wide."""
    _torchvision_schemas()
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=64, patch_size=16, embed_dim=128, depth=4, num_heads=4, num_classes=10)


def _deeplabv3() -> nn.Module:
    make = _torchvision("segmentation.deeplabv3_mobilenet_v3_large", weights_backbone=None, num_classes=21)
    return Field(make(), "out")


def _segformer() -> nn.Module:
    _torchvision_schemas()
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=40,
        num_labels=7,
        return_dict=True,
    )
    return Field(SegformerForSemanticSegmentation(config), "logits")


def _wav2vec2() -> nn.Module:
    _torchvision_schemas()
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        conv_dim=(32, 32, 40),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 2),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )
    return Field(Wav2Vec2Model(config), "last_hidden_state")


class Field(nn.Module):
    """One field of a network that returns a dictionary."""

    def __init__(self, network: nn.Module, key: str) -> None:
        super().__init__()
        self.network = network
        self.key = key

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[self.key]


# --- our own: one mechanism each ------------------------------


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


def _row(name: str, make: Callable[[], nn.Module], shape: Shape, tags: str) -> Network:
    return Network(name, make, shape, frozenset(tags.split()))


# Tags: `lower` goes through target xnnpack as one delegate; `plan` is planned, not yet emitted; `pretrained`
# keeps its weights; `own` is small, with one mechanism; the others name the library a network comes from.
NETWORKS: tuple[Network, ...] = (
    _row("pnet", face.pnet, face.INPUT_SHAPES["pnet"], "face pretrained lower"),
    _row("rnet", face.rnet, face.INPUT_SHAPES["rnet"], "face pretrained lower"),
    _row("onet", face.onet, face.INPUT_SHAPES["onet"], "face pretrained lower"),
    _row("resnet18", _torchvision("resnet18"), SQUARE_224, "torchvision lower"),
    _row("mobilenet_v2", _torchvision("mobilenet_v2"), SQUARE_224, "torchvision lower"),
    _row("mobilenet_v3_small", _torchvision("mobilenet_v3_small"), SQUARE_224, "torchvision lower"),
    _row("shufflenet_v2_x1_0", _torchvision("shufflenet_v2_x1_0"), SQUARE_224, "torchvision lower"),
    _row("convnext_tiny", _torchvision("convnext_tiny"), SQUARE_224, "torchvision lower"),
    _row("densenet121", _torchvision("densenet121"), SQUARE_224, "torchvision plan"),
    _row("swin_t", _torchvision("swin_t"), SQUARE_224, "torchvision plan"),
    _row("vit_b_16", _torchvision("vit_b_16"), SQUARE_224, "torchvision plan"),
    _row("fastvit_t8", _timm("fastvit_t8"), SQUARE_224, "timm plan"),
    _row("efficientnet_b0", _torchvision("efficientnet_b0"), SQUARE_224, "torchvision"),
    _row("squeezenet1_1", _torchvision("squeezenet1_1"), SQUARE_224, "torchvision"),
    _row("deeplabv3_mobilenet_v3_large", _deeplabv3, SQUARE_224, "torchvision"),
    _row("mobilevit_xxs", _timm("mobilevit_xxs"), (1, 3, 256, 256), "timm"),
    _row("vit_128", _vit_128, (1, 3, 64, 64), "timm"),
    _row("segformer", _segformer, (1, 3, 96, 128), "transformers"),
    _row("wav2vec2", _wav2vec2, (1, 3200), "transformers"),
    _row("unet", UNet, (1, 3, 64, 96), "own"),
    _row("tcn", TCN, (1, 6, 200), "own"),
    _row("conv3d", VideoNet, (1, 2, 6, 20, 28), "own"),
    _row("se_linear", LinearGate, (1, 16, 20, 28), "own"),
    _row("groupnorm_residual", GroupNormResidual, (1, 24, 20, 28), "own"),
    _row("conv_flatten_linear", ConvFlattenLinear, (1, 3, 16, 20), "own"),
)


def __getattr__(name: str) -> Callable[[], nn.Module]:
    for row in NETWORKS:
        if row.name == name:
            return row.build
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
