"""A target's costs decide its plans: by pair of orders and by implementation, in its own unit, and proven."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import dimorder
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.costs import Costs, counted
from dimorder.ops.problem_map import Arrangement, BufferInfo, Site
from dimorder.ops.relation import AxisOrder
from dimorder.ops.table import IMPLEMENTATIONS
from dimorder.plans.network_plan import NetworkPlan
from dimorder.targets import find

X = torch.randn(2, 3, 5, 7)


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def priced(conversion: dict[AxisOrder, int], implementation: dict[str, int]) -> Costs:
    """Nanoseconds by the order that a buffer is converted to, and by the name of an implementation."""

    def convert(buffer: BufferInfo, source: AxisOrder, target: AxisOrder) -> tuple[int]:
        return (conversion.get(target, 100),)

    def run(site: Site, arrangement: Arrangement, buffers: object) -> tuple[int]:
        if not site.implementations:
            return (0,)
        return (implementation.get(site.implementations[arrangement.implementation].name, 0),)

    return Costs(("nanoseconds",), convert, run)


def planned(costs: Costs, net: nn.Module, **orders: str) -> NetworkPlan:
    every = Capabilities(implementations=(IMPLEMENTATIONS,))
    target = replace(find("torch"), capabilities=every, costs={"time": costs})
    return dimorder.plan(net.eval(), (X,), target=target, objective="time", **orders)


def chosen(plan: NetworkPlan) -> list[str]:
    sites = zip(plan.extracted.sites, plan.extracted.arrangements, plan.layout_plan.choice, strict=True)
    return [
        site.implementations[arrangements[choice].implementation].name
        for site, arrangements, choice in sites
        if site.implementations
    ]


def test_the_unit_is_the_targets_and_the_plan_is_proven_in_it() -> None:
    plan = planned(priced({}, {}), nn.Conv2d(3, 8, 3), input_orders="NHWC")
    assert plan.units == ("nanoseconds",) and plan.cost == (100,)
    assert plan.certificate.optimal and plan.certificate.lower_bound == 100 and plan.check() == ()


def test_a_conversion_costs_by_the_orders_it_is_between() -> None:
    to_nhwc, to_nchw = (0, 2, 3, 1), (0, 1, 2, 3)
    plan = planned(priced({to_nhwc: 7, to_nchw: 11}, {}), nn.Conv2d(3, 8, 3))
    assert [conversion.cost for conversion in plan.layout_plan.conversions] == [(7,), (11,)]
    assert plan.cost == (18,) and plan.certificate.optimal and plan.check() == ()


def test_an_implementation_is_chosen_by_its_price() -> None:
    names = {"features last": 50, "as a matmul": 40, "features first": 400, "as a convolution": 30}
    plan = planned(priced({}, names), Product())
    assert chosen(plan) == ["as a convolution", "elementwise"] and plan.cost == (30,)
    plan = planned(priced({}, {**names, "as a convolution": 60}), Product())
    assert chosen(plan) == ["as a matmul", "elementwise"] and plan.cost == (40,)


def test_what_is_dear_in_one_order_is_converted_to_another() -> None:
    """Three cheap conversions are better than one dear implementation."""
    cheap = dict.fromkeys(((0, 1, 2, 3), (3, 0, 1, 2), (1, 2, 3, 0)), 1)
    names = {"features last": 900, "as a matmul": 900, "as a convolution": 900, "features first": 5}
    plan = planned(priced(cheap, names), Product())
    assert chosen(plan)[0] == "features first" and plan.cost[0] < 900 and plan.certificate.optimal


def test_an_objective_that_a_target_has_not_is_refused_with_those_it_has() -> None:
    try:
        dimorder.plan(Product().eval(), (X,), target="torch", objective="time")
    except dimorder.DimorderError as error:
        assert "choose bytes or count" in str(error)
    else:
        raise AssertionError("it was taken")


def test_recurrent_networks_are_converted_for_the_price_of_short_runs_alone() -> None:
    """An LSTM of 4 channels is cut by gate in runs of 4 elements, and joined over time in such runs."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0]

    net, x, tosa = Recurrent().eval(), torch.randn(2, 4, 8), find("tosa")
    unpriced = replace(tosa, costs=counted())
    counts = [len(dimorder.plan(net, (x,), target=target).conversions) for target in (unpriced, tosa)]
    assert counts == [0, 2]
    by_count = dimorder.plan(net, (x,), target="tosa", objective="count")
    assert (len(by_count.conversions), by_count.certificate.optimal) == (0, True)
