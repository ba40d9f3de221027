"""Networks that see, as people deploy them: one delegate on xnnpack, one graph on tosa; eager's numbers, by a
plan that is proven.

A row of the zoo takes part by its tag `deployed`. Those of language, speech and audio are in
`test_deployed_language.py`.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils import _pytree as pytree

import dimorder
from dimorder.lowered import Lowered
from dimorder.planning.problem import InvalidChoice, evaluate
from dimorder.targets.tosa.graph import inspect_tosa
from dimorder.verification.relative_error import relative_error
from tests import zoo
from tests.marks import slow_but
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

# Fewest bytes here take a conversion more than fewest conversions would.
ONE_MORE = {"mvit_v2"}

NAMES = slow_but(
    (network.name for network in (*vision.NETWORKS, *own.NETWORKS) if "deployed" in network.tags), QUICK
)


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


def conversions_in_own_orders(lowered: Lowered) -> float:
    """Count the plan's conversions if each operator runs in the first order that it is offered. The count is
    infinite if the target lacks one of them."""
    problem = lowered.plan.extracted.problem
    try:
        return len(evaluate(problem, [0] * len(problem.steps)).conversions)
    except InvalidChoice:
        return math.inf


def _is_proven(name: str, order: str, lowered: Lowered) -> None:
    told, plan = lowered.to_dict(), lowered.plan
    assert plan.check() == ()
    assert plan.outside == ()
    assert told["lower_bound"] >= (1 - GAP) * told["cost"]
    assert told["conversion_count"] <= conversions_in_own_orders(lowered) + (name in ONE_MORE)
    if name in BOUNDARIES:
        assert told["conversion_count"] == BOUNDARIES[name] - (order == "channels-last")
    for index in range(min(2, told["conversion_count"])):
        assert plan.explain(index).advice


# On the reference model, which is slow, networks that take any size see a small picture. The others have
# position embeddings or mixers for one size, or see nothing in less.
SMALL = (1, 3, 64, 64)
ONE_SIZE = {"vit_b_16", "mixer_s32_224", "levit_128s", "efficientformer_l1"}


@pytest.mark.slow
def test_tosa_gives_eagers_numbers(network: tuple[zoo.Network, torch.nn.Module]) -> None:
    pytest.importorskip("tosa_serializer")
    row, module = network
    args = row.inputs()
    if row.shape == zoo.SQUARE_224 and row.name not in ONE_SIZE:
        args = (torch.randn(SMALL, generator=torch.Generator().manual_seed(1)),)
    lowered = dimorder.lower(module, args, target="tosa")
    with torch.no_grad():
        wanted = _tensors(module(*args))
    got = _tensors(lowered.run(*args))
    assert max(relative_error(g, w) for g, w in zip(got, wanted, strict=True)) <= TOLERANCE
    told = lowered.to_dict()
    assert told["lower_bound"] >= (1 - GAP) * told["cost"]
    assert inspect_tosa(lowered.artifact.data).transposes == told["conversion_count"]
