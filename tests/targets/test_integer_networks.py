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
from tests.zoo import network, timm
from tests.zoo.network import row

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from tests.targets.quantised import by_arm, by_xnnpack

Quantise = Callable[[nn.Module, Tensor], nn.Module]

BY_XNNPACK: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "resnet18": ((1, 3, 64, 96), {}),
    "squeezenet1_1": ((1, 3, 64, 96), {}),
    "mobilenet_v3_large": ((1, 3, 64, 96), {"aten.hardsigmoid": 8}),
    "regnet_y_400mf": ((1, 3, 64, 96), {}),
    "convnext_tiny": (
        (1, 3, 64, 96),
        {"aten.layer_norm": 23, "dimorder.conv2d_nhwc": 18, "aten.add.Tensor": 18},
    ),
    "efficientnet_b0": ((1, 3, 64, 96), {"aten.silu": 49}),
    "mobilenetv4": ((1, 3, 64, 64), {}),
    "onet": ((1, 3, 48, 48), {"dimorder.prelu_last": 5, "aten.softmax.int": 1}),
    "yolo": (
        (1, 3, 64, 96),
        {"aten.silu": 63, "aten.softmax.int": 1, "aten.sub.Tensor": 2, "aten.div.Tensor": 1},
    ),
    "vit_tiny": (
        (1, 3, 64, 64),
        {"aten.layer_norm": 25, "aten.mul.Tensor": 12, "aten.matmul": 12, "aten.softmax.int": 12},
    ),
}
SMALLER = {
    "vit_tiny": row("vit_tiny", timm("vit_tiny_patch16_224", img_size=64), (1, 3, 64, 64), ""),
    "mobilenetv4": row("mobilenetv4", timm("mobilenetv4_conv_small"), (1, 3, 64, 64), ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_XNNPACK)
def test_a_network_is_one_delegate_with_islands_where_no_kernel_is(name: str) -> None:
    shape, islands = BY_XNNPACK[name]
    check(name, shape, by_xnnpack, islands)


BY_ARM: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "squeezenet1_1": ((1, 3, 64, 96), {}),
    "onet": ((1, 3, 48, 48), {"aten.sum.dim_IntList": 1, "aten.reciprocal": 1}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_ARM)
def test_so_is_one_that_another_quantizer_made(name: str) -> None:
    shape, islands = BY_ARM[name]
    check(name, shape, by_arm, islands)


def check(name: str, shape: tuple[int, ...], quantise: Quantise, islands: dict[str, int]) -> None:
    model = (SMALLER.get(name) or network(name)).build()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    wanted = len(dimorder.plan(model, (x,), target="xnnpack").conversions)
    lowered = dimorder.lower(quantise(model, x), (x,), target="xnnpack")
    told = lowered.to_dict()
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert (told["optimal"], told["conversion_count"]) == (True, wanted)
    assert Counter(island["operator"] for island in told["float_islands"]) == islands
