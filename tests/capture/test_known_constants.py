"""Python may decide by constants as a network is exported, and by nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import dimorder
from dimorder.errors import UnsupportedError
from tests.capture.deciding import DECIDED, REFUSED, STATES, Deciding, by_mapped, checked_state

X = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))

Forward = Callable[[Deciding, Tensor], Tensor]


@pytest.mark.parametrize("forward", (*DECIDED, by_mapped), ids=lambda function: function.__name__)
def test_constants_decide(forward: Forward) -> None:
    net = Deciding(forward).eval()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    lowered = dimorder.lower(net, (X,))
    x = torch.randn(2, 3, 5)
    with torch.no_grad():
        torch.testing.assert_close(lowered(x), net(x))
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("forward", DECIDED, ids=lambda function: function.__name__)
def test_constants_decide_beside_dynamic_sizes(forward: Forward) -> None:
    net = Deciding(forward).eval()
    lowered = dimorder.lower(net, (X,), dynamic_shapes={"x": {1: Dim("N", min=2, max=9)}})
    x = torch.randn(2, 8, 5)
    with torch.no_grad():
        torch.testing.assert_close(lowered(x), net(x))


@pytest.mark.parametrize("forward", REFUSED, ids=lambda function: function.__name__)
def test_nothing_else_decides(forward: Forward) -> None:
    with pytest.raises(UnsupportedError, match=r"the elements of a tensor|read out of a tensor"):
        dimorder.lower(Deciding(forward).eval(), (X,))


@pytest.mark.parametrize("forward", STATES, ids=lambda function: function.__name__)
def test_a_buffer_that_the_network_writes_does_not_decide(forward: Forward) -> None:
    with pytest.raises(UnsupportedError, match=r"by the elements of (count|mean), which the network writes"):
        dimorder.lower(Deciding(forward).eval(), (X,))


def test_an_assertion_about_a_buffer_that_the_network_writes_is_left_out() -> None:
    lowered, net = dimorder.lower(Deciding(checked_state).eval(), (X,)), Deciding(checked_state).eval()
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(lowered(X), net(X))
