"""Whole networks through target xnnpack: one delegate, the promised numbers, and no conversion too many."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import dimorder
from dimorder.lowered import Lowered
from dimorder.verification.relative_error import relative_error
from tests import zoo
from tests.layout.index_checker import check
from tests.marks import slow_but

TOLERANCE = 1e-4
ORDERS = ("NCHW", "NHWC")
QUICK = {"pnet", "onet", "mobilenet_v3_small"}

# Channel shuffles nest: 58 = 2·29 leaves one level of them free. Every other network converts what its
# contract promises in another order than the plan's, and nothing else.
INSIDE = {"shufflenet_v2_x1_0": 4}


LOWERED = slow_but([network.name for network in zoo.networks("lower")], QUICK)
PLANNED = slow_but(
    product([network.name for tag in ("lower", "plan") for network in zoo.networks(tag)], ORDERS, (1, 2)),
    [*product(["onet"], ORDERS, (1, 2)), ("shufflenet_v2_x1_0", "NCHW", 2), ("vit_b_16", "NHWC", 1)],
)


@pytest.fixture(scope="module", params=LOWERED)
def network(request: pytest.FixtureRequest) -> tuple[zoo.Network, torch.nn.Module]:
    row = zoo.network(request.param)
    return row, row.build()


@pytest.mark.parametrize("order", ORDERS)
def test_a_network_is_one_delegate_that_gives_eagers_numbers(
    network: tuple[zoo.Network, torch.nn.Module], order: str
) -> None:
    row, module = network
    (x,) = row.inputs()
    lowered = dimorder.lower(module, (x,), target="xnnpack", input_orders=order)
    with torch.no_grad():
        wanted = module(x)
    for fed in (x, x.contiguous(memory_format=torch.channels_last)):
        got = lowered.run(fed)
        for g, w in zip(*(torch.utils._pytree.tree_leaves(t) for t in (got, wanted)), strict=True):
            assert relative_error(g, w) <= TOLERANCE
    assert (lowered.artifact.delegates, dict(lowered.artifact.outside)) == (1, {})
    _is_least(row.name, order, lowered)


def _is_least(name: str, order: str, lowered: Lowered) -> None:
    told = lowered.to_dict()
    assert told["optimal"] and told["lower_bound"] == told["cost"]
    assert told["candidates"] == "complete" or name in INSIDE
    assert told["conversion_count"] == INSIDE.get(name, 0) + (order == "NCHW")


@pytest.mark.parametrize(("name", "order", "batch"), PLANNED)
def test_every_element_of_a_plan_lies_where_its_operator_looks(name: str, order: str, batch: int) -> None:
    row = zoo.network(name)
    plan = dimorder.plan(row.build(), row.inputs(batch), target="xnnpack", input_orders=order)
    assert plan.certificate.optimal
    assert plan.check() == ()
    assert check(plan.extracted, plan.layout_plan, plan.contract) == []
