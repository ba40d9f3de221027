"""Test what each mechanism makes of a small network: its source, and below it the physical program.

Names are numbered from the second of a kind on; `as` is a free view, ᵀ one with the last two
dimensions swapped. `convert` lines are the plan's conversions, and there are no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dimorder import DimOrder
from dimorder.api import plan
from dimorder.layout import check_program
from dimorder.layout.rewrite import rewrite
from dimorder.plans.printing import physical_text
from dimorder.targets import find
from dimorder.verification.verify import Trial
from tests.small_networks import OneInput


@dataclass(frozen=True)
class Mechanism:
    """A network that shows one thing, the shape of its input, and the program that a target gets for it."""

    network: nn.Module
    shape: tuple[int, ...]
    target: str
    becomes: str
    input_order: Any = None
    output_order: Any = None


def conv(inputs: int, outputs: int, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


def _pooled_by_context(x: Tensor, mask: nn.Module) -> Tensor:
    """The mean of all pixels, weighed by a softmax over a mask."""
    weights = mask(x).flatten(2).softmax(-1)
    return x.flatten(2) @ weights.transpose(1, 2)


def _shuffled(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    y = y.unflatten(1, (2, 3)).transpose(1, 2).flatten(1, 2)
    return m.b(y)


def _scores(m: Any, x: Tensor) -> Tensor:
    return x[:, 0] @ x[:, 1].transpose(1, 2)


MECHANISMS = {
    "a channel shuffle vanishes into the weight behind it": Mechanism(
        OneInput(_shuffled, a=conv(3, 6), b=nn.Conv2d(6, 5, 1)),
        (2, 3, 9, 7),
        "xnnpack",
        """
        x         2×9×7×3  NHWC  input
        conv2d    2×9×7×6  NHWC  conv2d_nhwc(x, a_weight[6×3×3×3], a_bias[6], padding 1)
        conv2d_2  2×9×7×5  NHWC  conv2d_nhwc(conv2d, b_weight[5×1×1×6], b_bias[5])
        output0   2×9×7×5  NHWC  conv2d_2
        """,
        "NHWC",
        "NHWC",
    ),
    "flatten takes any order before a dense layer, whose weight follows": Mechanism(
        OneInput(lambda m, x: m.dense(m.conv(x).flatten(1)), conv=conv(3, 8), dense=nn.Linear(8 * 9 * 7, 5)),
        (2, 3, 9, 7),
        "xnnpack",
        """
        x        2×9×7×3  NHWC  input
        conv2d   2×9×7×8  NHWC  conv2d_nhwc(x, conv_weight[8×3×3×3], conv_bias[8], padding 1)
        linear   2×5      NC    linear(conv2d as 2×504, dense_weight[5×504], dense_bias[5])
        output0  2×5      NC    linear
        """,
        "NHWC",
    ),
    "a hard-coded permute before a dense layer vanishes into its weight": Mechanism(
        OneInput(
            lambda m, x: m.dense(m.conv(x).permute(0, 3, 1, 2).flatten(1)),
            conv=conv(3, 8),
            dense=nn.Linear(8 * 9 * 7, 5),
        ),
        (2, 3, 9, 7),
        "xnnpack",
        """
        x        2×9×7×3  NHWC  input
        conv2d   2×9×7×8  NHWC  conv2d_nhwc(x, conv_weight[8×3×3×3], conv_bias[8], padding 1)
        linear   2×5      NC    linear(conv2d as 2×504, dense_weight[5×504], dense_bias[5])
        output0  2×5      NC    linear
        """,
        "NHWC",
    ),
    "two readers share a conversion": Mechanism(
        OneInput(lambda m, x: m.a(x).maximum(m.b(x)), a=conv(3, 8), b=conv(3, 8)),
        (2, 3, 9, 7),
        "xnnpack",
        """
        x         2×3×9×7  NCHW  input
        x.NHWC    2×9×7×3  NHWC  convert x, 1,512 bytes
        conv2d    2×9×7×8  NHWC  conv2d_nhwc(x.NHWC, a_weight[8×3×3×3], a_bias[8], padding 1)
        conv2d_2  2×9×7×8  NHWC  conv2d_nhwc(x.NHWC, b_weight[8×3×3×3], b_bias[8], padding 1)
        maximum   2×9×7×8  NHWC  maximum(conv2d, conv2d_2)
        output0   2×9×7×8  NHWC  maximum
        """,
        None,
        "NHWC",
    ),
    "a matrix by a vector is turned where the matrix lies transposed": Mechanism(
        OneInput(
            lambda m, x: _pooled_by_context(m.conv(x), m.mask), conv=conv(3, 8), mask=nn.Conv2d(8, 1, 1)
        ),
        (2, 3, 9, 7),
        "xnnpack",
        """
        x         2×9×7×3  NHWC  input
        conv2d    2×9×7×8  NHWC  conv2d_nhwc(x, conv_weight[8×3×3×3], conv_bias[8], padding 1)
        conv2d_2  2×9×7×1  NCHW  conv2d_nhwc(conv2d, mask_weight[1×1×1×8], mask_bias[1])
        softmax   2×1×63   NCL   softmax(conv2d_2 as 2×1×63, dim 2)
        matmul    2×1×8    NCL   matmul(softmax, conv2d as 2×63×8)
        output0   2×8×1    NCL   matmul
        """,
        "NHWC",
    ),
    "cuts that conflict make a block: 14 = 2·7 = 7·2 stays together, and may lie innermost": Mechanism(
        OneInput(lambda m, x: (x.unflatten(1, (2, 7)).sum(1), x.unflatten(1, (7, 2)).amax(1))),
        (3, 14, 5),
        "torch",
        """
        x        3×5×14   NLC  input
        sum      3×5×1×7  NLC  sum(x as 3×5×2×7, dim 2, keepdim True)
        amax     15×1×2   NLC  amax(x as 15×7×2, dim 1, keepdim True)
        output0  3×5×7    NLC  sum
        output1  3×5×2    NLC  amax
        """,
        DimOrder(0, 2, 1),
        DimOrder(0, 2, 1),
    ),
    "an operator outside takes part in the plan": Mechanism(
        OneInput(lambda m, x: m.b(m.a(x).sort(1)[0]), a=conv(3, 8), b=conv(8, 5)),
        (2, 3, 9, 7),
        "xnnpack",
        """
        x            2×9×7×3           NHWC  input
        conv2d       2×9×7×8           NHWC  conv2d_nhwc(x, a_weight[8×3×3×3], a_bias[8], padding 1)
        conv2d.NCHW  2×8×9×7           NCHW  convert conv2d, 4,032 bytes
        topk         2×8×9×7, 2×8×9×7  NCHW  outside: topk(conv2d.NCHW, k 8, dim 1, largest False)
        topk.NHWC    2×9×7×8           NHWC  convert topk.0, 4,032 bytes
        conv2d_2     2×9×7×5           NHWC  conv2d_nhwc(topk.NHWC, b_weight[5×3×3×8], b_bias[5], padding 1)
        output0      2×9×7×5           NHWC  conv2d_2
        """,
        "NHWC",
        "NHWC",
    ),
    "a 7×7 depthwise is split for XNNPACK": Mechanism(
        OneInput(lambda m, x: m.conv(x), conv=nn.Conv2d(6, 6, 7, padding=3, groups=6)),
        (2, 6, 9, 11),
        "xnnpack",
        """
        x         2×9×11×6  NHWC  input
        conv2d    2×9×11×6        conv2d_nhwc(x, conv_weight[6×7×3×1], conv_bias[6], padding 3, dilation 1×3, groups 6)
        conv2d_2  2×9×11×6        conv2d_nhwc(x, conv_weight__1[6×7×2×1], padding [3, 3, 2, 1], dilation 1×3, groups 6)
        add       2×9×11×6        add(conv2d, conv2d_2)
        conv2d_3  2×9×11×6        conv2d_nhwc(x, conv_weight__2[6×7×2×1], padding [3, 3, 1, 2], dilation 1×3, groups 6)
        add_2     2×9×11×6  NHWC  add(add, conv2d_3)
        output0   2×9×11×6  NHWC  add_2
        """,  # noqa: E501
        "NHWC",
        "NHWC",
    ),
    "and is whole for TOSA": Mechanism(
        OneInput(lambda m, x: m.conv(x), conv=nn.Conv2d(6, 6, 7, padding=3, groups=6)),
        (2, 6, 9, 11),
        "tosa",
        """
        x        2×9×11×6  NHWC  input
        conv2d   2×9×11×6  NHWC  conv2d_nhwc(x, conv_weight[6×7×7×1], conv_bias[6], padding 3, groups 6)
        output0  2×9×11×6  NHWC  conv2d
        """,
        "NHWC",
        "NHWC",
    ),
    "a dense layer is a convolution for TOSA": Mechanism(
        OneInput(lambda m, x: m.dense(x), dense=nn.Linear(6, 5)),
        (2, 9, 6),
        "tosa",
        """
        x        2×9×6     NCL  input
        conv2d   1×18×1×5  NCL  conv2d_nhwc(x as 1×18×1×6, dense_weight[5×1×1×6], dense_bias[5])
        output0  2×9×5     NCL  conv2d
        """,
    ),
    "XNNPACK reads the right operand of a product transposed": Mechanism(
        OneInput(_scores),
        (2, 2, 9, 4),
        "xnnpack",
        """
        x           2×2×9×4  NCHW  input
        slice       2×1×9×4  NCHW  slice(x, dim 1, 0:1)
        slice_2     2×1×9×4  NCHW  slice(x, dim 1, 1:2)
        matmul      2×9×9    NCL   matmul(slice as 2×9×4, (slice_2 as 2×9×4)ᵀ)
        matmul.NLC  2×9×9    NLC   convert matmul, 648 bytes
        output0     2×9×9    NLC   matmul.NLC
        """,
        None,
        DimOrder(0, 2, 1),
    ),
    "where TOSA has (AB)ᵀ = BᵀAᵀ": Mechanism(
        OneInput(_scores),
        (2, 2, 9, 4),
        "tosa",
        """
        x           2×2×9×4  NCHW  input
        slice       2×1×9×4  NCHW  slice(x, dim 1, 0:1)
        slice_2     2×1×9×4  NCHW  slice(x, dim 1, 1:2)
        slice.NCWH  2×1×4×9  NCWH  convert slice, 288 bytes
        matmul      2×9×9    NLC   matmul(slice_2 as 2×9×4, slice.NCWH as 2×4×9)
        output0     2×9×9    NLC   matmul
        """,
        None,
        DimOrder(0, 2, 1),
    ),
    "a 3-D pool is two 2-D ones": Mechanism(
        OneInput(lambda m, x: F.max_pool3d(x, (2, 3, 2))),
        (2, 5, 4, 9, 6),
        "xnnpack",
        """
        x             2×4×9×6×5  NDHWC  input
        max_pool2d    8×3×3×5           max_pool2d_nhwc(x as 8×9×6×5, kernel_size 3×2, stride 3×2)
        max_pool2d_2  2×2×9×5    NDHWC  max_pool2d_nhwc(max_pool2d as 2×4×9×5, kernel_size 2×1, stride 2×1)
        output0       2×2×3×3×5  NDHWC  max_pool2d_2
        """,
        "NDHWC",
        "NDHWC",
    ),
    "zeros round a picture are the convolution's own": Mechanism(
        OneInput(lambda m, x: m.a(F.pad(x, (0, 1, 2, 0))), a=conv(5, 8, stride=2)),
        (2, 5, 11, 7),
        "xnnpack",
        """
        x        2×11×7×5  NHWC  input
        conv2d   2×7×4×8   NHWC  conv2d_nhwc(x, a_weight[8×3×3×5], a_bias[8], stride 2, padding [3, 1, 1, 2])
        output0  2×7×4×8   NHWC  conv2d
        """,
        "NHWC",
        "NHWC",
    ),
    "a strided slice is the first column of a view": Mechanism(
        OneInput(lambda m, x: x[:, :, 1::3]),
        (2, 5, 11, 7),
        "xnnpack",
        """
        x                2×5×11×7  NCHW  input
        slice            2×5×10×7        slice(x, dim 2, 1:11)
        constant_pad_nd  2×5×12×7        constant_pad_nd(slice, pad [0, 0, 0, 2])
        slice_2          40×1×7    NCHW  slice(constant_pad_nd as 40×3×7, dim 1, 0:1)
        output0          2×5×4×7   NCHW  slice_2
        """,
    ),
    "a strided slice of a dimension that a block keeps whole: 14 = 2·7 there": Mechanism(
        OneInput(lambda m, x: (x[:, ::2], x.unflatten(1, (2, 7)).sum(1))),
        (3, 14, 5),
        "torch",
        """
        x        3×5×14   NLC  input
        slice    3×5×7    NLC  slice(x, dim 2, 0:14:2)
        sum      3×5×1×7  NLC  sum(x as 3×5×2×7, dim 2, keepdim True)
        output0  3×5×7    NLC  slice
        output1  3×5×7    NLC  sum
        """,
        DimOrder(0, 2, 1),
        DimOrder(0, 2, 1),
    ),
    "what is computed twice is computed once, and an output has an order of its own": Mechanism(
        OneInput(lambda m, x: (torch.relu(x), torch.relu(x))),
        (2, 3, 5, 7),
        "torch",
        """
        x          2×3×5×7  NCHW  input
        relu       2×3×5×7  NCHW  relu(x)
        relu.NHWC  2×5×7×3  NHWC  convert relu, 840 bytes
        output0    2×5×7×3  NHWC  relu.NHWC
        output1    2×3×5×7  NCHW  relu
        """,
        None,
        ["NHWC", "NCHW"],
    ),
    "a concatenation along the outermost dimension lays one part after the other": Mechanism(
        OneInput(lambda m, x: torch.cat([x.relu(), x], 1)),
        (2, 8, 9, 7),
        "xnnpack",
        """
        x        8×2×9×7   CNHW  input
        relu     8×2×9×7   CNHW  relu(x)
        cat      16×2×9×7  CNHW  cat([relu, x])
        output0  16×2×9×7  CNHW  cat
        """,
        DimOrder(1, 0, 2, 3),
        DimOrder(1, 0, 2, 3),
    ),
}


def physical(row: Mechanism) -> str:
    """The physical program of a row, checked, and run against the network."""
    x = torch.randn(row.shape)
    found = plan(
        row.network.eval(),
        (x,),
        target=row.target,
        input_orders=row.input_order,
        output_orders=row.output_order,
    )
    program = rewrite(found.extracted, found.layout_plan, found.contract)
    capabilities = find(row.target).capabilities
    faults = check_program.physical_faults(
        program, found.extracted, found.layout_plan, found.contract, capabilities
    )
    assert not list(faults)
    trial = Trial(row.network, found.extracted.annotated.program, found.contract)
    assert trial.compare_program(program, row.target) < 1e-5
    return physical_text(program, found)


@pytest.mark.parametrize("row", MECHANISMS.values(), ids=MECHANISMS)
def test_mechanism(row: Mechanism) -> None:
    assert physical(row) == dedent(row.becomes).strip()
