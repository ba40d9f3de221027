"""Test that a network that PT2E quantised is one delegate on target litert, with the planned TRANSPOSEs. It
has float32 if XNNPACK's delegate has no int8 operator. `lower` compares each file with XNNPACK's arithmetic
bit for bit, and LiteRT's reference kernels with it within a quantum, operator by operator.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.layout.rewrite import at_boundary
from tests.zoo import network

pytest.importorskip("ai_edge_litert")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.targets.litert.file import operators
from tests.targets.quantised import by_arm, by_xnnpack
from tests.targets.test_integer_networks import BY_ARM, BY_XNNPACK, OTHERS, Quantise


def by_recipe(model: nn.Module, x: Tensor) -> nn.Module:
    """By recipe int8 of the target, which also corrects the biases."""
    return dimorder.quantize(model, [x, x.flip(-1) * 1.1], "int8", target="litert").module


# The operators that compute in float32 here, and in int8 on target xnnpack.
MORE_ISLANDS: dict[str, dict[str, int]] = {
    "swin_t": {"aten.gelu": 12},
    "vit_tiny": {"aten.gelu": 12},
    "convnext_tiny": {"aten.gelu": 18},
    "mobilenet_v3_small": {"aten.hardswish": 19},
    "mobilenet_v3_large": {"aten.hardswish": 21},
    "deeplabv3_mobilenet_v3_large": {"aten.hardswish": 20},
    "regnet_y_400mf": {"aten.sigmoid": 16},
    "efficientnet_b0": {"aten.sigmoid": 16},
    "yolo": {"aten.sigmoid": 1},
}


# The networks that the recipe quantises in seconds.
BY_RECIPE = (
    *("resnet18", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "mobilenetv4", "efficientnet_lite0"),
    *("shufflenet_v2_x1_0", "ghostnet", "unet", "deeplabv3_mobilenet_v3_large", "onet", "vit_tiny"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_XNNPACK)
def test_a_network_is_one_delegate_with_islands_where_no_kernel_is(name: str) -> None:
    shape, islands = BY_XNNPACK[name]
    check(name, shape, by_xnnpack, islands | MORE_ISLANDS.get(name, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_RECIPE)
def test_so_is_one_that_the_recipe_quantised(name: str) -> None:
    shape, islands = BY_XNNPACK[name]
    check(name, shape, by_recipe, islands | MORE_ISLANDS.get(name, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "mobilenetv4", "unet"])
def test_so_is_one_that_another_quantizer_made(name: str) -> None:
    shape, islands = BY_ARM[name]
    check(name, shape, by_arm, islands)


def check(name: str, shape: tuple[int, ...], quantise: Quantise, islands: dict[str, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    made = quantise((OTHERS.get(name) or network(name)).build(), x)
    lowered = dimorder.lower(made, (x,), target="litert", input_orders="NHWC")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert lowered.to_dict()["optimal"]
    assert operators(lowered.artifact.data)["TRANSPOSE"] == len(lowered.plan.conversions)
    assert Counter(island["operator"] for island in lowered.to_dict()["float_islands"]) == islands
    assert list(lowered.artifact.other_runs) == ["LiteRT's reference kernels"]
    reference_run = lowered.artifact.reference_run
    assert reference_run is not None
    for seed in range(3 if not islands else 0):  # besides the inputs on which it was verified
        generator = torch.Generator().manual_seed(seed + 2)
        held = [at_boundary(torch.randn(shape, generator=generator), lowered.contract.inputs[0])]
        for got, wanted in zip(lowered.artifact.run(held), reference_run(held), strict=True):
            assert torch.equal(got, wanted.reshape(got.shape))
