"""Test the layout problem: what the conversions of a buffer cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import dimorder
from dimorder import targets
from tests.small_networks import Net


def windows(_: object, x: Tensor) -> Tensor:
    """Cut a picture into windows of windows, and swap rows and columns of each."""
    pieces = x.reshape(2, 3, 5, 2, 2, 7, 3, 2).permute(0, 4, 7, 2, 5, 1, 3, 6)
    return pieces.softmax(1).permute(0, 5, 3, 7, 1, 4, 6, 2).reshape(2, 3, 20, 42).sin()


@pytest.mark.parametrize("objective", ["bytes", "count"])
def test_conversions_that_cost_the_same_are_priced_as_each_alone(objective: str) -> None:
    target, image = targets.find("xnnpack"), torch.randn(2, 3, 20, 42)
    costs = target.costs[objective]
    assert costs.alike
    each = replace(target, costs={objective: replace(costs, alike=False)}, contenders={})
    plans = [
        dimorder.plan(Net(windows), (image,), target=one, objective=objective, input_orders="NHWC")
        for one in (target, each)
    ]
    assert plans[0].extracted.problem == plans[1].extracted.problem
    assert any(buffer.exceptions for buffer in plans[0].extracted.problem.buffers), "one transpose is enough"
