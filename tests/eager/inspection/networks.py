"""Build the 31 networks on which findings are compared with the oracle's: small inputs, random weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests import zoo


class Field(zoo.Field):
    """A network's field, its one input given by name."""

    def __init__(self, network: nn.Module, key: str, name: str) -> None:
        super().__init__(network, key)
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(**{self.name: x})[self.key]


def _transformers(name: str, field: str, argument: str, **options: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        zoo.load_torchvision()
        import transformers

        config = getattr(transformers, f"{name}Config")(**options)
        return Field(getattr(transformers, f"{name}Model")(config), field, argument)

    return make


IMAGE = (1, 3, 64, 96)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{
        name: (zoo.torchvision(name), IMAGE)
        for name in (
            *("resnet18", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x1_0", "convnext_tiny"),
            *("densenet121", "efficientnet_b0", "squeezenet1_1", "mnasnet0_5", "regnet_y_400mf", "vgg11"),
        )
    },
    "swin_t": (zoo.torchvision("swin_t"), IMAGE),
    "vit_b_16": (zoo.torchvision("vit_b_16", image_size=64, num_classes=10), (1, 3, 64, 64)),
    "googlenet": (zoo.torchvision("googlenet", aux_logits=False, init_weights=False), IMAGE),
    "deeplabv3": (zoo.vision.segmentation("deeplabv3_mobilenet_v3_large"), (2, *IMAGE[1:])),
    "r3d_18": (zoo.torchvision("video.r3d_18"), (1, 3, 6, 32, 48)),
    "lraspp": (
        lambda: zoo.Field(
            zoo.torchvision("segmentation.lraspp_mobilenet_v3_large", weights_backbone=None)(), "out"
        ),
        (2, *IMAGE[1:]),
    ),
    **{
        name: (zoo.timm(name), IMAGE)
        for name in (
            *("fastvit_t8", "ghostnet_100", "mobileone_s0", "convnextv2_atto", "poolformer_s12"),
            *("hardcorenas_a", "edgenext_xx_small"),
        )
    },
    "mobilevit_xxs": (zoo.timm("mobilevit_xxs"), (1, 3, 64, 64)),
    "vit_128": (zoo.vision.vit_128, (1, 3, 64, 64)),
    "segformer": (zoo.hugging_face.segformer, IMAGE),
    "wav2vec2": (zoo.hugging_face.wav2vec2, (1, 3200)),
    "resnet_hf": (
        _transformers("ResNet", "last_hidden_state", "pixel_values", depths=[1, 1, 1, 1], embedding_size=16),
        IMAGE,
    ),
    "mobilenet_hf": (_transformers("MobileNetV1", "last_hidden_state", "pixel_values"), IMAGE),
    "whisper_encoder": (
        lambda: (
            _transformers(
                "Whisper",
                "last_hidden_state",
                "input_features",
                d_model=64,
                encoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=96,
                max_source_positions=60,
            )().network.encoder
        ),
        (1, 80, 120),
    ),
}
assert len(NETWORKS) == 31


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """The network with seeded weights, in eval mode, and a seeded input."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    return make().eval(), torch.randn(shape, generator=torch.Generator().manual_seed(1))
