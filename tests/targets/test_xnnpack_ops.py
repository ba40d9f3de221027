"""Every operator of XNNPACK gives PyTorch's numbers in the ExecuTorch runtime. Calls of physical programs run
as they stand. Networks are lowered, and their files hold the conversions of the plan and no other."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("executorch")

from dimorder.graph.quantized import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE
from dimorder.lowered import Lowered
from dimorder.targets.xnnpack.ops import OPERATORS
from tests.targets.cases import IMAGE, PHYSICAL, SHARED, Case, D, Net, X, Y, aten, dense, r
from tests.targets.reached import unreached
from tests.targets.xnnpack_runs import compare, compare_lowered

CALLS: dict[str, Case] = {
    **PHYSICAL,
    "depthwise, 5x5, dilation, asymmetric padding": (
        lambda x, w: D.conv2d_nhwc(x, w, None, [1, 2], [5, 3, 4, 1], [2, 1], 6),
        (X,),
        (r(6, 5, 5, 1),),
    ),
    "transposed": (
        lambda x, w, b: D.conv_transpose2d_nhwc(x, w, b, [3, 2], [1, 0], [2, 1], [1, 2], 1),
        (X,),
        (r(5, 3, 2, 6), r(5)),
    ),
    "max pool": (lambda x: D.max_pool2d_nhwc(x, [3, 2], [2, 3], [1, 0], [1, 2], False), (X,), ()),
    "max pool, identity": (
        lambda x: D.max_pool2d_nhwc(x + 1, [1, 1], [1, 1], [0, 0], [1, 1], False),
        (X,),
        (),
    ),
    "average pool, 1x1": (lambda x: D.avg_pool2d_nhwc(x, [1, 1], [2, 3], [0, 0], False, True, 3), (X,), ()),
    "bilinear": (lambda x: D.upsample_bilinear2d_nhwc(x, [14, 27], False, None, None), (X,), ()),
    "bilinear, down": (lambda x: D.upsample_bilinear2d_nhwc(x, [5, 4], False, None, None), (X,), ()),
    "bilinear, aligned": (lambda x: D.upsample_bilinear2d_nhwc(x, [14, 27], True, None, None), (X,), ()),
    "bilinear, from one pixel": (
        lambda x: D.upsample_bilinear2d_nhwc(x, [14, 13], False, None, None),
        (r(2, 1, 1, 6),),
        (),
    ),
    "nearest": (lambda x: D.upsample_nearest2d_nhwc(x, [18, 33], None, None), (X,), ()),
    "conversion of a sum": (lambda x: torch.relu(dense(x + 1, 0, 2, 1)), (Y,), ()),
    "linear, weight given": (lambda x, w: F.linear(x, w), (Y, r(3, 7)), ()),
    "matmul, transposed right": (
        lambda x, y: torch.matmul(x, y.permute(0, 2, 1)),
        (r(2, 4, 7), r(2, 3, 7)),
        (),
    ),
}

CONVOLUTIONS: dict[str, Case] = {
    "depthwise, 19x7 of 5x2": (
        lambda x, w, b: F.conv2d(x, w, b, 1, (9, 3), 1, 6),
        (r(2, 6, 5, 2),),
        (r(6, 1, 19, 7), r(6)),
    ),
    "depthwise, 7x7": (lambda x, w, b: F.conv2d(x, w, b, 1, 3, 1, 6), (IMAGE,), (r(6, 1, 7, 7), r(6))),
    "depthwise, 7x7, stride, no padding across": (
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 0), 1, 6),
        (IMAGE,),
        (r(6, 1, 7, 7), r(6)),
    ),
    "depthwise, 5x7, dilation": (
        lambda x, w: F.conv2d(x, w, None, (1, 2), (4, 2), (2, 1), 6),
        (IMAGE,),
        (r(6, 1, 5, 7),),
    ),
    "depthwise, 13x13": (lambda x, w: F.conv2d(x, w, None, 1, 6, 1, 6), (IMAGE,), (r(6, 1, 13, 13),)),
    "depthwise, 1x31": (
        lambda x, w: F.conv1d(x, w, None, 1, 15, 1, 6),
        (r(2, 6, 37),),
        (r(6, 1, 31),),
    ),
    "transposed, dilation": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, (3, 2), (1, 0), (2, 1), 1, (1, 2)),
        (IMAGE,),
        (r(6, 5, 3, 2), r(5)),
    ),
    "average pool, 1x1": (lambda x: F.avg_pool2d(x, 1, (2, 3), divisor_override=3), (IMAGE,), ()),
    "bilinear, aligned": (
        lambda x: F.interpolate(x, (14, 27), mode="bilinear", align_corners=True),
        (IMAGE,),
        (),
    ),
}

ELEMENTWISE: dict[str, Case] = {
    "casts": (lambda x: ((x * 2).half(), x.half().float() + 1, x.bfloat16().half().float()), (Y,), ()),
    "add": (lambda x, y: x + y, (r(2, 5, 7), r(2, 5, 7) + 1), ()),
    "add, broadcast": (lambda x, y: x + y, (r(2, 5, 7), r(5, 1)), ()),
    "add, relu": (lambda x, y: torch.relu(x + y), (Y, r(7)), ()),
    "clamp after clamp": (lambda x: torch.relu(torch.clamp(x * 2, -1, 1)), (Y,), ()),
    "relu, its input used too": (lambda x: (lambda y: y + torch.relu(y))(x * 2), (Y,), ()),
    "relu, its input given too": (lambda x: (lambda y: (y, torch.relu(y)))(x * 2), (Y,), ()),
    "log": (lambda x: torch.log(x.abs() + 0.1), (Y,), ()),
    "sqrt, rsqrt": (lambda x: (torch.sqrt(x.abs()), torch.rsqrt(x.abs() + 0.5)), (Y,), ()),
    "neg, floor, ceil": (lambda x: (-x, torch.floor(x * 3), torch.ceil(x * 3)), (Y,), ()),
    "powers": (
        lambda x: x**3 + (x.abs() + 1) ** 0.5 + (x.abs() + 1) ** -0.5 + (x.abs() + 1) ** -1 + x**1,
        (Y,),
        (),
    ),
    "softplus, mish": (
        lambda x: (F.softplus(x * 9), F.softplus(x * 9, 3.0, 18.0), F.mish(x * 9)),
        (Y,),
        (),
    ),
    "roots of numbers near the largest": (
        lambda x: (lambda y: (torch.sqrt(y), torch.rsqrt(y) * 1e19))(x.clamp(-1, 1) * 1e38 + 2e38),
        (Y,),
        (),
    ),
    # Of numbers that are nearly nothing, whose logarithms of nearly 1 are all that there is.
    "softplus of far below 0": (lambda x: F.softplus(x.abs() - 15), (Y,), ()),
    "mish of far below 0": (lambda x: F.mish(x.abs() - 15), (Y,), ()),
    "reciprocal": (lambda x: torch.reciprocal(x.abs() + 1), (Y,), ()),
}

MATRICES: dict[str, Case] = {
    "linear": (F.linear, (r(2, 5, 7),), (r(3, 7), r(3))),
    "linear, relu": (lambda x, w, b: torch.relu(F.linear(x, w, b)), (r(4, 7),), (r(3, 7), r(3))),
    "mm, transposed": (lambda x, y: torch.mm(x, y.t()), (r(4, 7), r(3, 7)), ()),
    "bmm, transposed left": (lambda x, y: torch.bmm(x.permute(0, 2, 1), y), (r(2, 7, 4), r(2, 7, 3)), ()),
    "matmul, constant left": (lambda x, c: torch.matmul(c, x), (r(2, 7, 3),), (r(2, 4, 7),)),
    "attention": (F.scaled_dot_product_attention, (r(2, 3, 4, 8), r(2, 3, 5, 8), r(2, 3, 5, 7)), ()),
    "attention, causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        (r(2, 3, 4, 8), r(2, 3, 5, 8), r(2, 3, 5, 8)),
        (),
    ),
    "attention, masks": (
        lambda q, k, v, m, n: (
            F.scaled_dot_product_attention(q, k, v, m) + F.scaled_dot_product_attention(q, k, v, n)
        ),
        (r(2, 3, 4, 8), r(2, 3, 5, 8), r(2, 3, 5, 8), r(4, 5)),
        (r(4, 5) > -0.5,),
    ),
}

REDUCTIONS: dict[str, Case] = {
    "softmax": (lambda x: torch.softmax(x, -1), (Y,), ()),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (7,), w, b, 1e-3), (r(2, 5, 7),), (r(7), r(7))),
    "layer_norm, two dims": (
        lambda x, w, b: F.layer_norm(x, (5, 7), w, b),
        (r(2, 5, 7),),
        (r(5, 7), r(5, 7)),
    ),
    **{
        f"mean, {dims}, keepdim={keep}": (lambda x, d=dims, k=keep: x.mean(d, k), (X,), ())
        for dims in [(1, 2), (3,), (0,), (-1, 1), (2, 3), (0, 3), (0, 2), (0, 1, 2, 3), (1,)]
        for keep in (False, True)
    },
}

MOVES: dict[str, Case] = {
    **{
        f"cat of {n} along {dim}": (
            lambda *xs, d=dim: torch.cat(xs, d),
            tuple(
                r(*(n + i if j == dim % 3 else size for j, size in enumerate((2, 5, 7)))) for i in range(n)
            ),
            (),
        )
        for n, dim in [(1, 0), (2, 1), (3, -1), (4, 0), (5, 1), (6, 2), (27, 1)]
    },
    **{
        f"flip of {size}": (lambda x: x.flip(1) * 2 + x.flip((0, 3, 1)), (r(2, size, 3, 5),), ())
        for size in (1, 2, 12, 37)
    },
    "narrow": (lambda x: aten.narrow(x, 1, -3, 2) * 2, (Y,), ()),
    "pad, infinite": (lambda x: torch.clamp(F.pad(x, (1, 2), value=float("-inf")), min=-9.0), (Y,), ()),
    "permute of sizes of 1": (lambda x: x.permute(2, 0, 1, 3) * 2, (r(1, 4, 1, 5),), ()),
    "permute twice": (lambda x: (x * 2).permute(2, 0, 1).permute(1, 2, 0) + x, (Y,), ()),
    "permute, two readers": (lambda x: (lambda p: p.exp() + p)((x * 2).permute(2, 0, 1)), (Y,), ()),
    "transpose": (lambda x: (x.transpose(0, -1) * 2, x.transpose(1, 2)[0].t() + 1), (Y,), ()),
    "constant permuted": (
        lambda x, c: x * c.permute(1, 0).contiguous().view(7, 5).t(),
        (Y,),
        (r(7, 5).t().contiguous(),),
    ),
    "lift": (lambda x: aten.lift_fresh_copy(x) * 2, (Y,), ()),
}


def quantised(x: Tensor) -> Tensor:
    return DEQUANTIZE(QUANTIZE(x, 0.031, 5, -128, 127, torch.int8), 0.031, 5, -128, 127, torch.int8)


def quantised_by_rows(x: Tensor, integers: Tensor, scales: Tensor) -> Tensor:
    """As XNNPACK has it."""
    rows = D.fake_quantize_dynamic(x, [2], -128, 127, 1e-30, "balanced")
    return F.linear(rows, DEQUANTIZE_CHANNELS(integers, scales, None, 0, -128, 127, torch.int8))


INTEGERS: dict[str, Case] = {
    "quantised": (lambda x: quantised(quantised(x).abs()), (r(2, 5, 7),), ()),
    "quantised dynamically": (
        quantised_by_rows,
        (r(2, 5, 7),),
        ((r(11, 7) * 40).to(torch.int8), r(11).abs() / 40),
    ),
}

CASES = {**SHARED, **CONVOLUTIONS, **ELEMENTWISE, **MATRICES, **REDUCTIONS, **MOVES, **INTEGERS}


@cache
def lowered(name: str) -> Lowered:
    function, inputs, constants = CASES[name]
    return compare_lowered(Net(function, constants), inputs)


@pytest.mark.parametrize("name", CALLS)
def test_physical_call(name: str) -> None:
    function, inputs, constants = CALLS[name]
    result = compare(Net(function, constants), inputs)
    assert (result.delegates, result.outside) == (1, {})


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    artifact = lowered(name).artifact
    assert (artifact.delegates, artifact.outside) == (1, {})


def test_each_row_is_reached_by_a_network() -> None:
    assert unreached(OPERATORS, map(lowered, CASES)) == set()


@pytest.mark.parametrize("dims", [(1, 2, 3), (2, 3), (0, 1, 2, 3), (0, 3), (3,)])
@pytest.mark.parametrize("mean", [True, False])
def test_no_product_adds_up_many_numbers_of_several_dimensions(dims: tuple[int, ...], mean: bool) -> None:
    """XNNPACK would hold as many columns of ones as its kernel has, and read them all."""
    x = r(2, 17, 19, 23) + 0.5
    net = Net(lambda x: x.mean(dims) if mean else x.sum(dims, keepdim=True), ())
    result = compare(net, (x,))
    assert all(run.sizes[2] <= 4096 for run in result.kernels if run.name == "product")
