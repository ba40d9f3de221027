"""Test that a network that PT2E quantised is one delegate on target litert, with the planned TRANSPOSEs. It
has float32 if XNNPACK's delegate has no int8 operator. `lower` compares each file with XNNPACK's arithmetic
bit for bit, and LiteRT's reference kernels with it within a quantum, operator by operator.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import dimorder
from dimorder.layout.rewrite import at_boundary
from tests.zoo import network

pytest.importorskip("ai_edge_litert")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.targets.litert.file import operators
from tests.targets.quantised import by_arm, by_xnnpack
from tests.targets.test_integer_networks import OTHERS, PHOTO, SQUARE, Quantise

# The operators that compute in float32, and how many.
NETWORKS: dict[str, tuple[tuple[int, ...], Quantise, dict[str, int]]] = {
    "resnet18": (PHOTO, by_xnnpack, {}),
    "mobilenet_v2": (PHOTO, by_xnnpack, {}),
    "mobilenet_v2 by Arm": (PHOTO, by_arm, {}),
    "shufflenet_v2_x1_0": (PHOTO, by_xnnpack, {}),
    "squeezenet1_1": (PHOTO, by_xnnpack, {}),
    "unet": (PHOTO, by_xnnpack, {}),
    "efficientnet_lite0": (PHOTO, by_xnnpack, {}),
    "mobilenetv4": (SQUARE, by_xnnpack, {}),
    "mobilenet_v3_small": (PHOTO, by_xnnpack, {"aten.hardswish": 19, "aten.hardsigmoid": 9}),
    "vit_tiny": (
        SQUARE,
        by_xnnpack,
        {
            **dict.fromkeys(("aten.mul.Tensor", "aten.matmul", "aten.softmax.int", "aten.gelu"), 12),
            "aten.layer_norm": 25,
        },
    ),
    "efficientnet_b0": (PHOTO, by_xnnpack, {"aten.silu": 49, "aten.sigmoid": 16}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_one_delegate_with_islands_where_no_kernel_is(name: str) -> None:
    shape, quantise, islands = NETWORKS[name]
    own = name.split(" by ")[0]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    made = quantise((OTHERS.get(own) or network(own)).build(), x)
    lowered = dimorder.lower(made, (x,), target="litert", input_orders="NHWC")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert lowered.to_dict()["optimal"]
    assert operators(lowered.artifact.data)["TRANSPOSE"] == len(lowered.plan.conversions)
    assert Counter(island["operator"] for island in lowered.to_dict()["float_islands"]) == islands
    reference_run = lowered.artifact.reference_run
    assert reference_run is not None
    for seed in range(3 if not islands else 0):  # besides the inputs on which it was verified
        generator = torch.Generator().manual_seed(seed + 2)
        held = [at_boundary(torch.randn(shape, generator=generator), lowered.contract.inputs[0])]
        for got, wanted in zip(lowered.artifact.run(held), reference_run(held), strict=True):
            assert torch.equal(got, wanted.reshape(got.shape))
