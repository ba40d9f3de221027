"""Test that the example's target writes what the plan says, and reads its files back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dimorder
from dimorder.errors import UnsupportedError
from examples.target.tape import TARGET


@pytest.mark.parametrize(("order", "conversions"), [("NHWC", 0), ("NCHW", 1)])
def test_a_network_has_the_conversions_of_its_plan_and_the_numbers_of_eager(order, conversions, tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 3, stride=2)).eval()
    x = torch.randn(2, 3, 11, 13)
    lowered = dimorder.lower(network, (x,), target=TARGET, input_orders=order, output_orders="NHWC")
    assert len(lowered.plan.conversions) == conversions and lowered.verified.artifact_ran
    assert [name for name, *_ in lowered.artifact.file["calls"]].count("permute") == conversions
    program = dimorder.load(lowered.save(tmp_path / "net.tape"), target=TARGET)
    with torch.no_grad():
        torch.testing.assert_close(program(x), network(x), rtol=1e-4, atol=1e-5)


def test_an_operator_without_a_row_is_refused():
    with pytest.raises(UnsupportedError, match=r"target tape has no aten\.sigmoid"):
        dimorder.lower(nn.Sigmoid(), (torch.randn(2, 3),), target=TARGET)
