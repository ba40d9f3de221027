"""Test that an implementation is offered only to the targets that list it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dimorder
from dimorder.layout.capabilities import Capabilities
from dimorder.ops import table
from dimorder.ops.convolution import depthwise_in_parts
from dimorder.ops.operator import Implementation
from dimorder.targets import find
from tests.small_networks import Net

aten = torch.ops.aten
NAME = "aten.linear/as a sum"


def as_a_sum(c: Any) -> None:
    raise AssertionError("written for a target that does not list it")


@pytest.fixture
def one_more(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Linear has one more implementation, which stands first and takes another order."""
    linear = table.OPERATORS[aten.linear.default]
    added = Implementation(NAME.split("/")[1], "k *", as_a_sum, (aten.sum.dim_IntList,))
    more = replace(linear, implementations=(added, *linear.implementations))
    monkeypatch.setattr(table, "OPERATORS", {**table.OPERATORS, aten.linear.default: more})
    monkeypatch.setattr("dimorder.layout.capabilities.IMPLEMENTATIONS", table.IMPLEMENTATIONS | {NAME})
    table.find.cache_clear()
    yield
    table.find.cache_clear()


def transformer() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
    return layer.eval(), torch.randn(2, 5, 16)


def planned(target: Any) -> object:
    net, x = transformer()
    plan = dimorder.plan(net, (x,), target=target, input_orders="NLC")
    offered = [[i.name for i in site.implementations] for site in plan.extracted.sites]
    return str(plan), offered, plan.extracted.problem


@pytest.mark.parametrize("name", ["torch", "xnnpack", "tosa", "a target that says nothing"])
def test_one_more_implementation_changes_nothing_for_targets_that_do_not_list_it(
    name: str, request: pytest.FixtureRequest
) -> None:
    target: Any = name
    if name not in ("torch", "xnnpack", "tosa"):
        target = replace(find("torch"), name="silent", capabilities=Capabilities())
    before = planned(target)
    request.getfixturevalue("one_more")
    assert planned(target) == before


@pytest.mark.usefixtures("one_more")
def test_a_target_gets_it_that_lists_it() -> None:
    listing = Capabilities(implementations=(table.PLAIN | {NAME},))
    plan = dimorder.plan(
        Net(lambda net, x: F.linear(x, net.w), w=torch.randn(3, 7)),
        (torch.randn(5, 7),),
        target=replace(find("torch"), capabilities=listing),
    )
    offered = {i.name for site in plan.extracted.sites for i in site.implementations}
    assert offered == {"as a sum", "features last", "features first"}


def test_the_default_is_one_plain_implementation_for_each_order() -> None:
    for operator in set(table.OPERATORS.values()):
        forms = [i.form for i in operator.implementations if i.name in operator.plain]
        assert len(forms) == len(set(forms)) and (forms or len(operator.implementations) < 2)


def test_a_transposed_convolution_stays_one_operator_by_default() -> None:
    net = torch.nn.ConvTranspose2d(3, 8, 4, stride=2)
    target = replace(find("torch"), capabilities=Capabilities())
    calls = [
        n.target for n in dimorder.lower(net, (torch.randn(1, 3, 5, 7),), target=target).physical.graph.nodes
    ]
    assert calls.count(torch.ops.dimorder.conv_transpose2d_nhwc.default) == 1


def test_a_name_that_no_operator_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no implementation aten\.linear/as a circle"):
        Capabilities(implementations=(frozenset({"aten.linear/as a circle"}),))


@pytest.mark.parametrize("plain", [(), ("a", "b"), ("c",)])
def test_an_operator_says_which_of_its_implementations_are_plain(plain: tuple[str, ...]) -> None:
    both = tuple(Implementation(name, "*", as_a_sum, ()) for name in ("a", "b"))
    relu = table.find(aten.relu.default)
    assert relu is not None
    with pytest.raises(ValueError, match="plain implementation"):
        replace(relu, implementations=both, plain=plain)


def test_a_target_may_have_an_implementation_of_its_own() -> None:
    conv2d = torch.ops.dimorder.conv2d_nhwc.default

    def computes(call: Any, constants: object) -> str | None:
        whole = call.target is conv2d and call.args[1].meta["val"].shape[1:3] == (5, 5)
        return "too many taps" if whole else None

    own = {"aten.convolution": (depthwise_in_parts(9),)}
    parts = Capabilities(computes, own_implementations=own)
    net = torch.nn.Conv2d(6, 6, 5, groups=6)
    lowered = dimorder.lower(
        net, (torch.randn(1, 6, 9, 11),), target=replace(find("torch"), capabilities=parts)
    )
    taps = [
        node.args[1].meta["val"].shape[1:3].numel()
        for node in lowered.physical.graph.nodes
        if node.target is conv2d
    ]
    assert len(taps) == 4 and sum(taps) == 25 and max(taps) == 9
