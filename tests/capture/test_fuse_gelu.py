"""Test which formulas with `erf` are a GELU, and that others stay as they are."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.capture.captured import capture
from tests.targets.cases import Net, r

erf = torch.erf
ROOT = torch.sqrt(torch.tensor(2.0))
GELU: dict[str, Callable[[Tensor], Tensor]] = {
    "ESM": lambda x: x * 0.5 * (1.0 + erf(x / math.sqrt(2.0))),
    "half first": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2.0))),
    "half last": lambda x: x * (erf(x * 0.7071067811865475) + 1) * 0.5,
    "half of the product": lambda x: 0.5 * ((1 + erf(x * 0.70710678)) * x),
    "half of the sum": lambda x: x * (0.5 * (1 + erf(x / 1.41421))),
    "quotients": lambda x: x / 2 * (1 + erf(x / 2**0.5)),
    "a root that is a tensor": lambda x: x * 0.5 * (1 + erf(x / ROOT)),
    "of a product": lambda x: (x * 3) * 0.5 * (1 + erf((x * 3) / 2**0.5)),
}
OTHER: dict[str, Callable[[Tensor], Tensor]] = {
    "another root": lambda x: x * 0.5 * (1 + erf(x / 1.5)),
    "another half": lambda x: x * 0.4 * (1 + erf(x / math.sqrt(2.0))),
    "another sum": lambda x: x * 0.5 * (2 + erf(x / math.sqrt(2.0))),
    "twice the error": lambda x: x * 0.5 * torch.add(erf(x / math.sqrt(2.0)), 1.0, alpha=2),
    "a difference": lambda x: x * 0.5 * (1 - erf(x / math.sqrt(2.0))),
    "another value": lambda x: (x + 1) * 0.5 * (1 + erf(x / math.sqrt(2.0))),
    "a reciprocal": lambda x: 0.5 / x * (1 + erf(x / math.sqrt(2.0))),
    "the value twice": lambda x: x * x * 0.5 * (1 + erf(x / math.sqrt(2.0))),
    "the error twice": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2.0))) + erf(x / math.sqrt(2.0)),
    "broadcast": lambda x: x[:1] * 0.5 * (1 + erf(x / math.sqrt(2.0))),
}
X = r(3, 5)


def targets(function: Callable[[Tensor], Tensor]) -> list[str]:
    module = capture(Net(function, ()), (X,)).module
    torch.testing.assert_close(module(X)[0], function(X), rtol=1e-5, atol=1e-5)
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("name", GELU)
def test_a_gelu_is_one_operator(name: str) -> None:
    assert targets(GELU[name])[-1] == "aten.gelu.default"
    assert "aten.erf.default" not in targets(GELU[name])


@pytest.mark.parametrize("name", OTHER)
def test_another_formula_stays(name: str) -> None:
    found = targets(OTHER[name])
    assert "aten.erf.default" in found and "aten.gelu.default" not in found


def test_between_linears_it_is_in_their_delegate() -> None:
    pytest.importorskip("executorch")
    network = nn.Sequential(nn.Linear(5, 16), Net(GELU["ESM"], ()), nn.Linear(16, 7)).eval()
    lowered = dimorder.lower(network, (X,), target="xnnpack")
    assert (lowered.artifact.delegates, dict(lowered.artifact.outside)) == (1, {})
