"""Test operators that XNNPACK and ExecuTorch lack, and that are written in parts on xnnpack."""

from __future__ import annotations

import pytest
import torch
from executorch.runtime import Runtime

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.ops.parts import PARTS
from dimorder.targets.xnnpack.ops import HAVE_KERNEL
from tests.targets.cases import Net
from tests.targets.litert.parts_cases import CASES

# ExecuTorch has neither a number's sign bit nor its other bits.
LACKING = {"in parts: bits": "aten.view.dtype", "in parts: signs and angles": "aten.signbit.default"}
# Its remainder of negative integers has the wrong sign. Its scatter reduces nothing. Its gradient of a pool
# is wrong where the pool does not cover all rows.
WRONG = {
    *("aten.remainder.Scalar", "aten.remainder.Tensor"),
    *("aten.scatter.reduce", "aten.scatter.value_reduce"),
    "aten.max_pool2d_with_indices_backward.default",
}
FAST = (
    "in parts: gamma functions",
    "in parts: reducing scatters",
    "in parts: solutions",
    "in parts: gradients",
)


def test_only_operators_without_a_kernel_are_in_parts() -> None:
    kernels = {name.split(".")[0] for name in Runtime.get().operator_registry.operator_names}
    found = {target for target in PARTS if str(target).replace(".", "::", 1).split(".")[0] in kernels}
    assert found >= HAVE_KERNEL
    assert {str(target) for target in found - HAVE_KERNEL} == WRONG


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in CASES]
)
def test_operator(name: str) -> None:
    function, inputs, constants = CASES[name]
    net = Net(function, constants)
    if name in LACKING:
        with pytest.raises(UnsupportedError, match=LACKING[name]):
            dimorder.lower(net, inputs, target="xnnpack")
        return
    results = dimorder.lower(net, inputs, target="xnnpack").run(*inputs)
    for got, wanted in zip(results, net(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_the_remainder_of_a_negative_integer_has_the_sign_of_the_divisor() -> None:
    net = Net(lambda x, y: (x % 3, x % -5, x % y, torch.remainder(x.float(), 0.7)))
    x = torch.arange(-8, 9)
    y = torch.where(x % 2 == 0, 3, -4)
    for got, wanted in zip(dimorder.lower(net, (x, y), target="xnnpack").run(x, y), net(x, y), strict=True):
        torch.testing.assert_close(got, wanted)
