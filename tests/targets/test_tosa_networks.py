"""Whole networks as one TOSA graph: eager's numbers on the reference model, and no TRANSPOSE too many."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tests.marks import slow_but

pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.lowered import Lowered
from dimorder.targets.tosa.graph import inspect_tosa
from dimorder.verification.relative_error import relative_error
from tests import zoo

TOLERANCE = 1e-4
QUICK = {"se_linear", "groupnorm_residual", "conv_flatten_linear", "tcn", "onet"}
SMALL = (1, 3, 64, 64)


@dataclass(frozen=True)
class Expected:
    """The number of TRANSPOSEs in torch's own orders, and with feature maps promised in NHWC on both sides.
    `forced_by` are the operators that may be the reason for a TRANSPOSE inside."""

    transposes: int
    nhwc: int
    forced_by: tuple[str, ...] = ()


PLAIN = Expected(1, 0)
EXPECTED = {
    "se_linear": PLAIN,
    "groupnorm_residual": Expected(2, 0, ("aten.convolution",)),
    "conv_flatten_linear": PLAIN,
    "tcn": PLAIN,
    "onet": PLAIN,
    "conv3d": PLAIN,
    "unet": Expected(2, 0),
    "resnet18": PLAIN,
    "mobilenet_v2": PLAIN,
    "mobilenet_v3_small": PLAIN,
    "efficientnet_b0": PLAIN,
    "squeezenet1_1": PLAIN,
    "densenet121": PLAIN,
    "convnext_tiny": PLAIN,
    "shufflenet_v2_x1_0": PLAIN,
    "deeplabv3_mobilenet_v3_large": Expected(2, 0),
    "vit_128": Expected(6, 5, ("aten.cat", "aten.matmul", "aten.linear")),
    "swin_t": Expected(37, 36, ("aten.matmul", "aten.linear", "aten.convolution")),
}
NAMES = slow_but(EXPECTED, QUICK)


@pytest.fixture(scope="module", params=NAMES)
def network(request: pytest.FixtureRequest) -> tuple[str, torch.nn.Module, torch.Tensor]:
    row = zoo.network(request.param)
    shape = SMALL if row.shape == zoo.SQUARE_224 else row.shape
    return row.name, row.build(), torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def lowered(network: tuple[str, torch.nn.Module, torch.Tensor]) -> Lowered:
    _, module, x = network
    return dimorder.lower(module, (x,), target="tosa", objective="count")


def test_a_network_is_one_graph_that_gives_eagers_numbers(
    network: tuple[str, torch.nn.Module, torch.Tensor], lowered: Lowered
) -> None:
    _, module, x = network
    with torch.no_grad():
        wanted = torch.utils._pytree.tree_leaves(module(x))
    got = torch.utils._pytree.tree_leaves(lowered.run(x))
    assert max(relative_error(g, w) for g, w in zip(got, wanted, strict=True)) <= TOLERANCE


def test_its_transposes_are_the_conversions_of_a_plan_that_is_proven_least(
    network: tuple[str, torch.nn.Module, torch.Tensor], lowered: Lowered
) -> None:
    name, _, _ = network
    found, told = inspect_tosa(lowered.artifact.data), lowered.to_dict()
    assert found.transposes == told["conversion_count"] == EXPECTED[name].transposes
    assert found.transpose_bytes == sum(conversion.bytes for conversion in lowered.plan.conversions)
    assert told["optimal"] and told["lower_bound"] == told["cost"] == found.transposes
    assert lowered.plan.check() == ()


def test_each_transpose_has_a_reason(
    network: tuple[str, torch.nn.Module, torch.Tensor], lowered: Lowered
) -> None:
    """The contract where it is the contract's, else the operators between which the order changes."""
    name, _, _ = network
    for index, conversion in enumerate(lowered.plan.conversions):
        reason = lowered.plan.explain(index).advice
        if conversion.producer.is_contract:
            assert reason.startswith(f"promise input {conversion.value} in {conversion.to_order}")
        elif any(place.is_contract for place in conversion.consumers):
            assert reason.startswith(f"take this output in {conversion.from_order}")
        else:
            assert any(operator in reason for operator in EXPECTED[name].forced_by), reason


def test_channels_last_promises_save_what_the_contract_asked_for(
    network: tuple[str, torch.nn.Module, torch.Tensor],
) -> None:
    name, module, x = network
    order = {3: "NLC", 4: "NHWC", 5: "NDHWC"}[x.dim()]
    maps = [y.dim() == x.dim() for y in torch.utils._pytree.tree_leaves(module(x))]
    plan = dimorder.plan(
        module,
        (x,),
        target="tosa",
        objective="count",
        input_orders=order,
        output_orders=[order if is_map else None for is_map in maps],
    )
    assert (len(plan.conversions), plan.certificate.optimal) == (EXPECTED[name].nhwc, True)
