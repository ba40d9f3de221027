"""XNNPACK in half precision: each row, as near to float64 as PyTorch's own, in one delegate.

bfloat16 it converts and moves, and computes in float32.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("executorch")

import dimorder
from dimorder.executorch import conversions_in
from dimorder.targets.xnnpack import run
from dimorder.verification.relative_error import relative_error
from tests.targets.cases import Case, D, Net, X, Y, r
from tests.targets.halves import NOT_IN_TORCH, TYPES, halved, share_of_allowed
from tests.targets.test_xnnpack_ops import CALLS, CASES, INTEGERS, quantised
from tests.targets.xnnpack_runs import emitted

# float16 has no such numbers.
FLOATS = [n for n in CASES if n not in INTEGERS and n != "roots of numbers near the largest"]


@TYPES
@pytest.mark.parametrize("name", CALLS)
def test_physical_call(name: str, dtype: torch.dtype) -> None:
    network, inputs = halved(CALLS[name], dtype)
    result = emitted(network, inputs)
    assert (result.delegates, result.outside) == (1, {})
    assert share_of_allowed(run(result.data, list(inputs)), network, inputs) <= 1


@TYPES
@pytest.mark.parametrize("name", [name for name in FLOATS if name not in NOT_IN_TORCH])
def test_operator(name: str, dtype: torch.dtype) -> None:
    """A plan's conversions move half of the bytes, and so do the file's."""
    network, inputs = halved(CASES[name], dtype)
    lowered = dimorder.lower(network, inputs, target="xnnpack")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert share_of_allowed(lowered.run(*inputs), network, inputs) <= 1
    planned, found = lowered.plan.conversions, conversions_in(lowered.artifact.data)
    assert (found.conversion_count, found.bytes) == (len(planned), sum(c.bytes for c in planned))


# Where float16's own numbers are too few: sums of many, what is beyond them, and constants between them.
STEEP: dict[str, Case] = {
    "sum of 4096": (lambda x, w: F.linear(x, w), (r(3, 4096),), (r(17, 4096) / 64,)),
    "windows of 512 channels": (
        lambda x, w: D.conv2d_nhwc(x, w, None, [1, 1], [1] * 4, [1, 1], 1),
        (r(1, 7, 9, 512),),
        (r(16, 3, 3, 512) / 68,),
    ),
    "depthwise, of one sign": (
        lambda x, w: D.conv2d_nhwc(x, w, None, [1, 1], [2] * 4, [1, 1], 64),
        (r(1, 14, 13, 64).abs(),),
        (r(64, 5, 5, 1).abs(),),
    ),
    "layer norm of large numbers": (lambda x: F.layer_norm(x, (384,)), (r(7, 384) * 900,), ()),
    "softmax of 1000": (lambda x: torch.softmax(x, -1), (r(5, 1000) * 9,), ()),
    "mean of 4096": (lambda x: x.mean(-1), (r(2, 3, 4096) + 3,), ()),
    "mean of large numbers": (lambda x: x.mean((1, 2)), (X * 9000 + 20000,), ()),
    "a thousandth": (lambda x: x * 1e-3, (Y,), ()),
    "a factor below the normal numbers": (lambda x: x * 3000 * 1e-7, (Y,), ()),
    "hard swish, eight times": (
        lambda x: functools.reduce(lambda y, _: F.hardswish(y), range(8), x),
        (X * 900 + 900,),
        (),
    ),
    "exponents": (lambda x: torch.exp(x), (Y * 2,), ()),
    "sigmoid of far below 0": (lambda x: torch.sigmoid(x - 11), (Y,), ()),
    "norm written by hand": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5), (Y,), ()),
    "attention beyond float16": (
        F.scaled_dot_product_attention,
        (r(2, 3, 4, 8) * 200, r(2, 3, 5, 8) * 200, r(2, 3, 5, 7)),
        (),
    ),
}


@pytest.mark.parametrize("name", STEEP)
def test_where_float16_ends(name: str) -> None:
    network, inputs = halved(STEEP[name])
    lowered = dimorder.lower(network, inputs, target="xnnpack")
    assert share_of_allowed(lowered.run(*inputs), network, inputs) <= 1


def test_what_is_computed_in_float32_is_cast_once(kinds: Counter[str]) -> None:
    """Between two such operators is no cast, a clamp is the convolution's own, and XNNPACK's node for float16
    is taken where it is right."""
    network, inputs = halved(
        (
            lambda x, w, v: torch.softmax(F.gelu(F.conv2d(x, w).relu()).sum(1) * 0.1, -1) + v,
            (r(2, 6, 9, 7),),
            (r(5, 6, 3, 2), r(6)),
        )
    )
    dimorder.lower(network, inputs, target="xnnpack", input_orders="NHWC")
    assert (kinds["Convert"], kinds["Clamp"], kinds["Conv2d"]) == (2, 0, 1)


@TYPES
def test_a_cast_is_no_reason_for_a_conversion(dtype: torch.dtype) -> None:
    """It lies in the order of what is cast."""
    network = Net(
        lambda x, w, v: F.conv2d(torch.relu(F.conv2d(x, w)).to(dtype).float() * 2, v),
        (r(5, 3, 2, 4), r(7, 5, 1, 3)),
    )
    x = r(2, 3, 9, 11)
    lowered = dimorder.lower(network, (x,), target="xnnpack", input_orders="NHWC", output_orders="NHWC")
    assert (len(lowered.plan.conversions), lowered.artifact.delegates, lowered.artifact.outside) == (0, 1, {})
    assert relative_error(lowered.run(x), network(x).detach()) <= torch.finfo(dtype).eps


@pytest.mark.parametrize("takes", [torch.float32, torch.float16])
def test_integers_beside_float16(takes: torch.dtype) -> None:
    """Test integers beside float16: numbers differ from PyTorch's by no more than float16's last digit."""
    network = Net(lambda x: quantised(quantised((x * 3).float()).abs()).half() * 3)
    x = r(2, 5, 7).to(takes)
    lowered = dimorder.lower(network, (x,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    torch.testing.assert_close(lowered.run(x), network(x), rtol=torch.finfo(torch.float16).eps, atol=0)


@TYPES
def test_dynamic_sizes_of_half_precision_are_one_delegate_at_each_size(dtype: torch.dtype) -> None:
    network = Net(lambda x, w, b: F.conv2d(x, w, b, padding=1).relu() * 0.5, (r(5, 3, 3, 3), r(5)))
    network = network.to(dtype)
    batch, height = torch.export.Dim("N", min=1, max=4), torch.export.Dim("H", min=6, max=11)
    sizes = (({0: batch, 2: height},),)
    example = r(2, 3, 9, 7).to(dtype)
    lowered = dimorder.lower(network, (example,), dynamic_shapes=sizes, target="xnnpack")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    for shape in ((1, 3, 6, 7), (4, 3, 11, 7)):
        x = r(*shape).to(dtype)
        assert relative_error(lowered.run(x), network(x).detach()) <= 4 * torch.finfo(dtype).eps, shape


def _with_its_rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The first image of a resized value, with the value in float32, which XNNPACK can confuse."""
    value = F.interpolate(x, scale_factor=0.5, mode="bilinear", align_corners=True)
    return value.to(torch.float32), value[0], value.permute(0, 2, 3, 1)[0]


@TYPES
def test_a_reshape_reads_its_operand_and_not_what_was_made_of_it(dtype: torch.dtype) -> None:
    network, x = Net(_with_its_rows), r(1, 3, 6, 8).to(dtype)
    lowered = dimorder.lower(network, (x,), target="xnnpack")
    for got, wanted in zip(lowered.run(x), network(x), strict=True):
        assert got.dtype == wanted.dtype and relative_error(got, wanted) < 1e-2
