"""Whole networks: PyTorch's numbers, TRANSPOSEs as planned, one delegate and nothing beside it."""

from __future__ import annotations

import pytest

import dimorder
from dimorder.lowered import Lowered
from dimorder.targets.litert.file import operators
from tests import zoo

FAST = ("tcn", "unet", "vit_128")
SLOW = (
    *("resnet18", "mobilenet_v2", "shufflenet_v2_x1_0", "convnext_tiny", "efficientnet_b0", "mobilevit_xxs"),
)

# Networks with operators beside the delegate, which read a table or a mask.
BESIDE = {
    "t5_encoder": {"CAST", "GATHER"},
    "llama": {"CAST", "GATHER"},
    "mamba": {"GATHER"},
}


def lowered_right(name: str) -> Lowered:
    """A network of the zoo, after checking its numbers, and that its file has the plan's conversions."""
    network = zoo.network(name)
    args, kwargs = network.call()
    lowered = dimorder.lower(network.build(), args, kwargs, target="litert")
    assert lowered.max_rel_error <= 1e-4
    assert operators(lowered.artifact.data)["TRANSPOSE"] == len(lowered.plan.conversions)
    return lowered


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_network_is_right_and_has_the_plans_conversions(name: str) -> None:
    lowered = lowered_right(name)
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", BESIDE)
def test_a_network_with_operators_beside_the_delegate_is_right(name: str) -> None:
    """LiteRT's reference kernels would overwrite values of these networks, unless they are copied."""
    lowered = lowered_right(name)
    assert (lowered.artifact.delegates, set(lowered.artifact.outside)) == (1, BESIDE[name])
