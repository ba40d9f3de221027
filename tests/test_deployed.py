"""Networks that see, as people deploy them: one delegate, eager's numbers, a plan that is proven.

A row of the zoo takes part by its tag `deployed`. Those of language, speech and audio are in
`test_deployed_language.py`.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import dimorder
from dimorder.lowered import Lowered
from dimorder.lowering.verify import relative_error
from tests import zoo
from tests.zoo import own, vision

pytest.importorskip("executorch")

TOLERANCE = 1e-4
GAP = 0.01  # of the cost: what a bound may lack where a plan is not proven optimal
QUICK = {"yolo"}
ORDERS = ("row-major", "channels-last")
CHANNELS_LAST = {4: "NHWC", 5: "NDHWC"}

# Conversions of networks of convolutions: the boundaries whose order differs from the plan's: an input's and
# perhaps a map's among the outputs. What products of matrices need is the plan's to prove.
BOUNDARIES = {
    **dict.fromkeys(
        (
            *("resnet50", "squeezenet1_1", "mobilenet_v3_large", "efficientnet_b0", "densenet121"),
            *("googlenet", "inception_v3", "regnet_y_400mf", "mnasnet1_0", "convnext_tiny"),
            *("r2plus1d_18", "r3d_18", "mc3_18", "fastvit_t8", "repvgg_a0", "convnextv2_nano"),
            *("gcresnet33ts", "mambaout_femto", "starnet_s1", "ghostnet_100", "hrnet_w18_small"),
            *("poolformer_s12", "mobilenetv4_conv_small", "mobileone_s0"),
        ),
        1,
    ),
    **dict.fromkeys(("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"), 2),
    **dict.fromkeys(("unet", "style_transfer"), 2),
}

NAMES = [
    network.name if network.name in QUICK else pytest.param(network.name, marks=pytest.mark.slow)
    for network in (*vision.NETWORKS, *own.NETWORKS)
    if "deployed" in network.tags
]


@pytest.fixture(scope="module", params=NAMES)
def network(request: pytest.FixtureRequest) -> tuple[zoo.Network, torch.nn.Module]:
    row = zoo.network(request.param)
    return row, row.build()


def lower(row: zoo.Network, module: torch.nn.Module, order: str) -> Lowered:
    """For xnnpack, with each image, or clip, among the inputs in that order."""
    args = row.inputs()
    ranks = [leaf.dim() for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    promised = [CHANNELS_LAST.get(rank) if order == "channels-last" else None for rank in ranks]
    return dimorder.lower(module, args, target="xnnpack", input_orders=promised)


@pytest.mark.parametrize("order", ORDERS)
def test_a_network_is_one_delegate_that_gives_eagers_numbers(
    network: tuple[zoo.Network, torch.nn.Module], order: str
) -> None:
    row, module = network
    lowered = lower(row, module, order)
    args = row.inputs()
    with torch.no_grad():
        wanted = _tensors(module(*args))
    got = _tensors(lowered.run(*args))
    assert max(relative_error(g, w) for g, w in zip(got, wanted, strict=True)) <= TOLERANCE
    assert (lowered.artifact.delegates, dict(lowered.artifact.outside)) == (1, {})
    _is_proven(row.name, order, lowered)


def _tensors(result: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _is_proven(name: str, order: str, lowered: Lowered) -> None:
    told, plan = lowered.to_dict(), lowered.plan
    assert plan.check() == ()
    assert plan.outside == ()
    assert told["lower_bound"] >= (1 - GAP) * told["cost"]
    if name in BOUNDARIES:
        assert told["conversion_count"] == BOUNDARIES[name] - (order == "channels-last")
    for index in range(min(2, told["conversion_count"])):
        assert plan.explain(index).advice
