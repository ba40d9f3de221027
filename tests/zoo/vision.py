"""Networks that see: the face networks with their weights, torchvision's and timm's without."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.face import networks as face

from .network import SQUARE_224, Field, Network, row


@functools.cache
def load_torchvision() -> torch.library.Library | None:
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


def torchvision(path: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        load_torchvision()
        import torchvision

        factory = functools.reduce(getattr, path.split("."), torchvision.models)
        return factory(weights=None, **options)

    return make


def timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        load_torchvision()
        import timm

        return timm.create_model(name, pretrained=False, **options)

    return make


def vit_128() -> nn.Module:
    """A vision transformer of 4 layers, 128 wide."""
    load_torchvision()
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=64, patch_size=16, embed_dim=128, depth=4, num_heads=4, num_classes=10)


def deeplabv3() -> nn.Module:
    make = torchvision("segmentation.deeplabv3_mobilenet_v3_large", weights_backbone=None, num_classes=21)
    return Field(make(), "out")


NETWORKS: tuple[Network, ...] = (
    row("pnet", face.pnet, face.INPUT_SHAPES["pnet"], "face pretrained lower deployed"),
    row("rnet", face.rnet, face.INPUT_SHAPES["rnet"], "face pretrained lower deployed"),
    row("onet", face.onet, face.INPUT_SHAPES["onet"], "face pretrained lower deployed"),
    row("resnet18", torchvision("resnet18"), SQUARE_224, "torchvision lower"),
    row("mobilenet_v2", torchvision("mobilenet_v2"), SQUARE_224, "torchvision lower"),
    row("mobilenet_v3_small", torchvision("mobilenet_v3_small"), SQUARE_224, "torchvision lower"),
    row("shufflenet_v2_x1_0", torchvision("shufflenet_v2_x1_0"), SQUARE_224, "torchvision lower"),
    row("convnext_tiny", torchvision("convnext_tiny"), SQUARE_224, "torchvision lower"),
    row("densenet121", torchvision("densenet121"), SQUARE_224, "torchvision plan"),
    row("swin_t", torchvision("swin_t"), SQUARE_224, "torchvision plan"),
    row("vit_b_16", torchvision("vit_b_16"), SQUARE_224, "torchvision plan"),
    row("fastvit_t8", timm("fastvit_t8"), SQUARE_224, "timm plan"),
    row("efficientnet_b0", torchvision("efficientnet_b0"), SQUARE_224, "torchvision"),
    row("squeezenet1_1", torchvision("squeezenet1_1"), SQUARE_224, "torchvision"),
    row("deeplabv3_mobilenet_v3_large", deeplabv3, SQUARE_224, "torchvision"),
    row("mobilevit_xxs", timm("mobilevit_xxs"), (1, 3, 256, 256), "timm"),
    row("vit_128", vit_128, (1, 3, 64, 64), "timm"),
)
