"""Every operator of LiteRT gives PyTorch's numbers, by XNNPACK's delegate, its own and reference kernels."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import nn

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.lowered import Lowered
from tests.marks import slow_but
from tests.targets import test_xnnpack_ops, tosa_cases
from tests.targets.cases import Case, Net, X
from tests.targets.litert import litert_cases, parts_cases
from tests.targets.litert.litert_runs import compare, compare_lowered
from tests.targets.quantised import quantised

CALLS: dict[str, Case] = {**test_xnnpack_ops.CALLS, **tosa_cases.CALLS}
CASES: dict[str, Case] = {
    **test_xnnpack_ops.CASES,
    **tosa_cases.CASES,
    **litert_cases.CASES,
    **parts_cases.CASES,
}
for name in test_xnnpack_ops.INTEGERS:
    del CASES[name]
SLOW = {f"in parts: {name}" for name in ("a sampled grid", "histograms", "gamma functions")}
CASES["a quantized value"] = (lambda x: quantised(x, 0.0247, 5), (X,), ())


@cache
def lowered(name: str) -> Lowered:
    function, inputs, constants = CASES[name]
    return compare_lowered(Net(function, constants), inputs)


# These become thousands of operators.
# What the table refuses. Lowering writes these in other operators.
REFUSED = {
    "depthwise, 5x7, dilation, stride": "35 taps",
    "conv3d, groups": "3 groups",
    "bilinear, scales that leave a rest": "the scale 1.5 from 9 to 13",
}


@pytest.mark.parametrize("name", [name for name in CALLS if name not in REFUSED])
def test_physical_call(name: str) -> None:
    function, inputs, constants = CALLS[name]
    compare(Net(function, constants), inputs)


@pytest.mark.parametrize("name", REFUSED)
def test_a_physical_call_that_litert_lacks(name: str) -> None:
    function, inputs, constants = CALLS[name]
    with pytest.raises(UnsupportedError, match=REFUSED[name]):
        compare(Net(function, constants), inputs)


@pytest.mark.parametrize("name", slow_but(CASES, CASES.keys() - parts_cases.MATRICES - SLOW))
def test_operator(name: str) -> None:
    """Test that an operator is one delegate, if no operator of LiteRT's own stands between."""
    artifact = lowered(name).artifact
    assert artifact.delegates == 1 or artifact.outside


class Tangent(nn.Module):
    def forward(self, x):
        return x.tan()


@pytest.mark.parametrize("turns", [0.5, -0.5, 1.5, 100.5])
def test_a_tangent_keeps_its_digits_beside_a_pole(turns):
    x = (torch.tensor(turns * math.pi) + torch.linspace(-2e-2, 2e-2, 35) + 1.3e-3).reshape(5, 7)
    found = dimorder.lower(Tangent(), (x,), target="litert")(x)
    torch.testing.assert_close(found.double(), x.double().tan(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_nan_has_a_sign(dtype: torch.dtype) -> None:
    x = torch.tensor([math.nan, 0.0, -0.0, 0.0, -math.inf, 1e-6, -1.5], dtype=dtype)
    x[1] = -torch.tensor(math.nan)
    run = dimorder.lower(Net(torch.signbit), (X.flatten()[:7].to(dtype),), target="litert").run
    assert torch.equal(run(x), torch.signbit(x))
