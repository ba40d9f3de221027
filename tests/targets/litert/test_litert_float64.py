"""Float64 in a `.tflite`: a type of inputs, outputs and constants, between which float32 is computed."""

from __future__ import annotations

import pytest
import torch

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.targets.litert.file import operators
from tests.targets.cases import Net, r

X = r(2, 5, 7)


def test_float64_goes_in_and_out() -> None:
    y, net = X.double() + 0.25, Net(lambda x, y: (x * y.relu(), x.double(), y.long() + x.long()))
    lowered = dimorder.lower(net, (X, y), target="litert")
    got, wanted = lowered(X, y), net(X, y)
    assert [each.dtype for each in got] == [torch.float64, torch.float64, torch.int64]
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_a_constant_in_float64_keeps_its_digits() -> None:
    net = Net(lambda x: (x, torch.full_like(x, 0.1, dtype=torch.float64, device=x.device)))
    assert torch.equal(dimorder.lower(net, (X,), target="litert")(X)[1], net(X)[1])


def test_between_two_operators_nothing_is_cast() -> None:
    net = Net(lambda x: torch.softmax(x, 2, dtype=torch.float64).mul(2).float())
    assert "CAST" not in operators(dimorder.lower(net, (X,), target="litert").artifact.data)


def test_a_network_that_needs_float64_is_refused() -> None:
    net = Net(lambda x: ((x.double() + 1e8) - 1e8).float())
    with pytest.raises(UnsupportedError, match=r"the target computes torch\.float64 in float32"):
        dimorder.lower(net, (X,), target="litert")
