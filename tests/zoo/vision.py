"""Networks that see: the face networks with their weights, torchvision's and timm's without."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dimorder.demo import face_networks as face

from .network import SQUARE_224, Field, Network, row


@functools.cache
def load_torchvision() -> torch.library.Library | None:
    """Make `import torchvision` work if its compiled part is missing or was built for another torch.

    Without that part torchvision 0.28 fails at import on `torchvision::nms`, which none of these networks
    calls. So the two schemas that it registers kernels for are defined first. The library lives as long as
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


def swin_blocks() -> nn.Module:
    """Build the beginning of a Swin transformer: patches of 4 × 4, two blocks of windows of 4 × 4, a norm.
    The second block's windows are shifted. Pictures have sides that 16 divides."""
    load_torchvision()
    from torchvision.models.swin_transformer import SwinTransformerBlock
    from torchvision.ops.misc import Permute

    return nn.Sequential(
        nn.Conv2d(3, 48, 4, 4),
        Permute([0, 2, 3, 1]),
        SwinTransformerBlock(48, 3, [4, 4], [0, 0]),
        SwinTransformerBlock(48, 3, [4, 4], [2, 2]),
        nn.LayerNorm(48),
        Permute([0, 3, 1, 2]),
    )


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


def segmentation(name: str) -> Callable[[], nn.Module]:
    return lambda: Field(torchvision(f"segmentation.{name}", weights_backbone=None, num_classes=21)(), "out")


def maxvit_t() -> nn.Module:
    """With windows of 2 for pictures of 64: its own are 7 for pictures of 224."""
    load_torchvision()
    from torchvision.models.maxvit import MaxVit

    return MaxVit(
        (64, 64),
        stem_channels=64,
        partition_size=2,
        block_channels=[64, 128, 256, 512],
        block_layers=[2, 2, 5, 2],
        head_dim=32,
        stochastic_depth_prob=0.2,
    )


def mvit_v2() -> nn.Module:
    """Four blocks of mvit_v2_s, for clips of 4 pictures of 64."""
    load_torchvision()
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    taps = [3, 3, 3]
    blocks = [
        MSBlockConfig(1, 48, 48, taps, taps, [1, 1, 1], [1, 4, 4]),
        MSBlockConfig(2, 48, 96, taps, taps, [1, 2, 2], [1, 2, 2]),
        MSBlockConfig(2, 96, 96, taps, taps, [1, 1, 1], [1, 2, 2]),
        MSBlockConfig(4, 96, 192, taps, taps, [1, 2, 2], [1, 1, 1]),
    ]
    return MViT(
        (64, 64),
        4,
        blocks,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        num_classes=10,
    )


SQUARE_64 = (1, 3, 64, 64)
CLIP = (1, 3, 4, 32, 48)

_WITHOUT_AUXILIARY = {"aux_logits": False, "init_weights": False}

# Where batch-norms see few pixels, deep networks make 1e-4 of a rounding error: resnet50, googlenet,
# inception_v3 and mobileone_s0 are larger than 64 for that. mixer, levit, efficientformer and crossvit have
# one size.
NETWORKS: tuple[Network, ...] = (
    row("pnet", face.pnet, face.INPUT_SHAPES["pnet"], "face pretrained lower deployed"),
    row("rnet", face.rnet, face.INPUT_SHAPES["rnet"], "face pretrained lower deployed"),
    row("onet", face.onet, face.INPUT_SHAPES["onet"], "face pretrained lower deployed"),
    row("resnet18", torchvision("resnet18"), SQUARE_224, "torchvision lower"),
    row("mobilenet_v2", torchvision("mobilenet_v2"), SQUARE_224, "torchvision lower"),
    row("mobilenet_v3_small", torchvision("mobilenet_v3_small"), SQUARE_224, "torchvision lower"),
    row("shufflenet_v2_x1_0", torchvision("shufflenet_v2_x1_0"), SQUARE_224, "torchvision lower"),
    row("convnext_tiny", torchvision("convnext_tiny"), SQUARE_224, "torchvision lower deployed"),
    row("densenet121", torchvision("densenet121"), SQUARE_224, "torchvision plan deployed"),
    row("swin_t", torchvision("swin_t"), SQUARE_224, "torchvision plan deployed"),
    row("vit_b_16", torchvision("vit_b_16"), SQUARE_224, "torchvision plan deployed"),
    row("fastvit_t8", timm("fastvit_t8"), SQUARE_224, "timm plan deployed"),
    row("efficientnet_b0", torchvision("efficientnet_b0"), SQUARE_224, "torchvision deployed"),
    row("squeezenet1_1", torchvision("squeezenet1_1"), SQUARE_224, "torchvision deployed"),
    row(
        "deeplabv3_mobilenet_v3_large",
        segmentation("deeplabv3_mobilenet_v3_large"),
        SQUARE_224,
        "torchvision deployed",
    ),
    row("mobilevit_xxs", timm("mobilevit_xxs"), (1, 3, 256, 256), "timm deployed"),
    row("vit_128", vit_128, (1, 3, 64, 64), "timm"),
    row("resnet50", torchvision("resnet50"), (1, 3, 128, 128), "torchvision deployed"),
    row("mobilenet_v3_large", torchvision("mobilenet_v3_large"), SQUARE_64, "torchvision deployed"),
    row(
        "googlenet", torchvision("googlenet", **_WITHOUT_AUXILIARY), (1, 3, 128, 128), "torchvision deployed"
    ),
    row(
        "inception_v3",
        torchvision("inception_v3", **_WITHOUT_AUXILIARY),
        (1, 3, 299, 299),
        "torchvision deployed",
    ),
    row("regnet_y_400mf", torchvision("regnet_y_400mf"), SQUARE_64, "torchvision deployed"),
    row("mnasnet1_0", torchvision("mnasnet1_0"), SQUARE_64, "torchvision deployed"),
    row("swin_v2_t", torchvision("swin_v2_t"), SQUARE_64, "torchvision deployed"),
    row("maxvit_t", maxvit_t, SQUARE_64, "torchvision deployed"),
    row(
        "lraspp_mobilenet_v3_large",
        segmentation("lraspp_mobilenet_v3_large"),
        SQUARE_64,
        "torchvision deployed",
    ),
    row("r2plus1d_18", torchvision("video.r2plus1d_18"), CLIP, "torchvision deployed"),
    row("r3d_18", torchvision("video.r3d_18"), CLIP, "torchvision deployed"),
    row("mc3_18", torchvision("video.mc3_18"), CLIP, "torchvision deployed"),
    row("mvit_v2", mvit_v2, (1, 3, 4, 64, 64), "torchvision deployed"),
    row("repvgg_a0", timm("repvgg_a0"), SQUARE_64, "timm deployed"),
    row("efficientvit_b0", timm("efficientvit_b0"), SQUARE_64, "timm deployed"),
    row("mixer_s32_224", timm("mixer_s32_224"), SQUARE_224, "timm deployed"),
    row("resmlp_12_224", timm("resmlp_12_224", img_size=64), SQUARE_64, "timm deployed"),
    row("convnextv2_nano", timm("convnextv2_nano"), SQUARE_64, "timm deployed"),
    row("edgenext_x_small", timm("edgenext_x_small"), SQUARE_64, "timm deployed"),
    row("cait_xxs24_224", timm("cait_xxs24_224", img_size=64), SQUARE_64, "timm deployed"),
    row("gcresnet33ts", timm("gcresnet33ts"), SQUARE_64, "timm deployed"),
    row("focalnet_tiny_srf", timm("focalnet_tiny_srf"), SQUARE_64, "timm deployed"),
    row("pvt_v2_b0", timm("pvt_v2_b0"), SQUARE_64, "timm deployed"),
    row("crossvit_tiny_240", timm("crossvit_tiny_240"), (1, 3, 240, 240), "timm deployed"),
    row("mambaout_femto", timm("mambaout_femto"), SQUARE_64, "timm deployed"),
    row("starnet_s1", timm("starnet_s1"), SQUARE_64, "timm deployed"),
    row("ghostnet_100", timm("ghostnet_100"), SQUARE_64, "timm deployed"),
    row("hrnet_w18_small", timm("hrnet_w18_small"), SQUARE_64, "timm deployed"),
    row("levit_128s", timm("levit_128s"), SQUARE_224, "timm deployed"),
    row("xcit_nano_12_p16_224", timm("xcit_nano_12_p16_224", img_size=64), SQUARE_64, "timm deployed"),
    row("poolformer_s12", timm("poolformer_s12"), SQUARE_64, "timm deployed"),
    row("mobilenetv4_conv_small", timm("mobilenetv4_conv_small"), SQUARE_64, "timm deployed"),
    row("mobileone_s0", timm("mobileone_s0"), (1, 3, 128, 128), "timm deployed"),
    row("efficientformer_l1", timm("efficientformer_l1"), SQUARE_224, "timm deployed"),
    row("convnext_atto_unperturbed", timm("convnext_atto"), SQUARE_64, "timm constructor"),
    row("edgenext_xx_small_unperturbed", timm("edgenext_xx_small"), SQUARE_64, "timm constructor"),
)
