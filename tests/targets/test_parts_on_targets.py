"""Test operators that are written in parts where neither XNNPACK nor ExecuTorch has them, or TOSA has not."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from executorch.runtime import Runtime

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.ops.parts import PARTS
from dimorder.targets.xnnpack.ops import HAVE_KERNEL
from tests.marks import slow_but
from tests.targets.cases import Net
from tests.targets.litert.parts_cases import CASES, MATRICES

REFUSED = {target: {"bits": "aten.view.dtype"} for target in ("xnnpack", "tosa")}
# ExecuTorch's remainder of negative integers has the wrong sign. Its scatter reduces nothing. Its gradient of
# a pool is wrong where the pool does not cover all rows.
WRONG = {
    *("aten.remainder.Scalar", "aten.remainder.Tensor"),
    *("aten.scatter.reduce", "aten.scatter.value_reduce"),
    "aten.max_pool2d_with_indices_backward.default",
}
FAST = {f"in parts: {name}" for name in ("remainders", "gamma functions", "reducing scatters", "gradients")}
NAMES = slow_but(
    product(REFUSED, CASES),
    [*product(["xnnpack"], FAST), *(("tosa", name) for name in CASES if name not in MATRICES)],
)


def test_only_operators_without_a_kernel_are_in_parts() -> None:
    kernels = {name.split(".")[0] for name in Runtime.get().operator_registry.operator_names}
    found = {target for target in PARTS if str(target).replace(".", "::", 1).split(".")[0] in kernels}
    assert found >= HAVE_KERNEL
    assert {str(target) for target in found - HAVE_KERNEL} == WRONG


@pytest.mark.parametrize(("target", "name"), NAMES)
def test_operator(target: str, name: str) -> None:
    function, inputs, constants = CASES[name]
    net, lacking = Net(function, constants), REFUSED[target].get(name.removeprefix("in parts: "))
    if lacking is not None:
        with pytest.raises(UnsupportedError, match=lacking):
            dimorder.lower(net, inputs, target=target)
        return
    results = dimorder.lower(net, inputs, target=target).run(*inputs)
    for got, wanted in zip(results, net(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
