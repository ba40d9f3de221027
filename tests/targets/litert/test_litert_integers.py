"""Test quantised networks on target litert: XNNPACK's delegate computes them in integers. Each file gives the
bits of the model of its kernels (`targets/litert/model.py`), and is refused if it gives others. LiteRT's own
kernels are within a quantum of the model, operator by operator.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from dimorder.lowered import Lowered
from dimorder.targets.litert.exact import OperatorsRun
from dimorder.targets.litert.file import operators
from dimorder.targets.litert.target import TfLite

pytest.importorskip("ai_edge_litert")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from tests.marks import slow_but
from tests.small_networks import OneInput
from tests.targets.int8_cases import IN_INT8, PRODUCTS, Between, Weighted, X, Y
from tests.targets.quantised import INT8, Net, Symmetric, by_arm, by_xnnpack, quantised

# What XNNPACK's delegate lacks, or has for another type of the result.
ISLANDS = frozenset(
    (
        *("hardswish", "gelu", "elu", "exp", "abs", "square", "sin", "cos", "neg", "floor", "ceil"),
        *("sigmoid", "tanh", "hardtanh", "maximum", "minimum"),
        *("cropped", "every second pixel"),  # of a hardswish, and of a tanh
    )
)
BESIDE = {  # what runs beside the delegate in any case
    "reflect pad": {"GATHER", "REVERSE_V2"},
    "index": {"GATHER"},
    "every second pixel": {"MAX_POOL_2D"},
}


def lowered_for_litert(module: nn.Module, *inputs: Tensor, **how: Any) -> Lowered:
    """A lowered network, which both of LiteRT's own kernels compute within a quantum of the model."""
    lowered = dimorder.lower(module, inputs, target="litert", **how)
    artifact = lowered.artifact
    assert isinstance(artifact, TfLite) and artifact.exact is not None
    specs = lowered.contract.inputs
    held = [spec.quantized(x).permute(tuple(spec.dim_order)) for spec, x in zip(specs, inputs, strict=True)]
    OperatorsRun(artifact.exact.written, artifact.contract, "builtin")(held)
    return lowered


def kinds(lowered: Lowered) -> Counter[str]:
    return operators(lowered.artifact.data)


RESULTS = {"coarse": (0.0311, -7), "fine": (0.0089, 3)}


@pytest.mark.parametrize("result", slow_but(RESULTS, ["coarse"]))
@pytest.mark.parametrize("name", IN_INT8)
def test_an_operator_between_quantised_values_is_in_int8_or_an_island(name: str, result: str) -> None:
    compute, inputs = IN_INT8[name]
    lowered = lowered_for_litert(Between(compute, RESULTS[result]), *inputs)
    assert bool(lowered.plan.float_islands) == (name in ISLANDS)
    if name not in ISLANDS:
        assert kinds(lowered)["QUANTIZE"] == len(inputs) and kinds(lowered)["DEQUANTIZE"] == 1
    assert set(lowered.artifact.outside) <= BESIDE.get(name, set())


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_with_int8_weights_computes_in_int8(name: str) -> None:
    lowered = lowered_for_litert(Weighted(*PRODUCTS[name]), X)
    assert lowered.plan.float_islands == ()
    assert (kinds(lowered)["QUANTIZE"], kinds(lowered)["DEQUANTIZE"]) == (1, 1)


@pytest.mark.parametrize(("order", "conversions"), slow_but([("NCHW", 1), ("NHWC", 0)], [("NCHW", 1)]))
def test_a_network_is_one_delegate_of_int8(order: str, conversions: int) -> None:
    x = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(3))
    lowered = lowered_for_litert(by_xnnpack(Net(), x), x, input_orders=order)
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert (lowered.plan.float_islands, lowered.to_dict()["conversion_count"]) == ((), conversions)
    assert kinds(lowered)["TRANSPOSE"] == conversions
    assert (kinds(lowered)["QUANTIZE"], kinds(lowered)["DEQUANTIZE"]) == (1, 1)


def test_a_network_of_another_quantizer_is_too() -> None:
    x = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(3))
    lowered = lowered_for_litert(by_arm(Net(), x), x, input_orders="NHWC")
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert lowered.plan.float_islands == ()


@pytest.mark.parametrize("clamp", [F.relu, F.relu6, lambda x: F.hardtanh(x, -1.0, 1.0)])
def test_a_clamp_is_the_activation_of_a_product_with_ones(clamp: Any) -> None:
    lowered = lowered_for_litert(Between(clamp, (0.0311, -7)), X)
    assert lowered.plan.float_islands == ()
    assert kinds(lowered) == {"QUANTIZE": 1, "MUL": 1, "DEQUANTIZE": 1}


PADDED: dict[str, tuple[Any, str]] = {
    "zeros": (lambda x: F.pad(x, (2, 0, 0, 3)), "PAD"),
    "a quantised value": (lambda x: F.pad(x, (2, 0, 0, 3), value=0.0247 * 3), "PADV2"),
}


@pytest.mark.parametrize("name", PADDED)
def test_a_pad_is_of_integers(name: str) -> None:
    """The network quantises after the pad, as PT2E does."""
    pad, kind = PADDED[name]
    made = Weighted(*PRODUCTS["convolution"])
    made.before = pad
    lowered = lowered_for_litert(made, X, input_orders="NHWC")
    assert (lowered.plan.float_islands, kinds(lowered)[kind]) == ((), 1)


class Clamped(nn.Module):
    """A sum and a product of matrices, clamped as no activation clamps, or by an operator that has none."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = quantised(x, 0.0247, 5), quantised(y, 0.0313, 0)
        odd = quantised(F.hardtanh(x + y, -0.51, 0.77), 0.0151, -9)
        return odd, quantised(F.relu(x @ y.transpose(2, 3)), 0.0911, -7)


def test_a_clamp_that_no_activation_has_is_a_maximum_and_a_minimum_of_integers() -> None:
    lowered = lowered_for_litert(Clamped(), X, Y)
    assert lowered.artifact.outside == {"MAXIMUM": 1, "MINIMUM": 1}


@pytest.mark.parametrize("transposed", [True, False])
def test_a_product_of_matrices_computes_in_int8(transposed: bool) -> None:
    lowered = lowered_for_litert(Symmetric(transposed), X, Y)
    assert (lowered.plan.float_islands, kinds(lowered)["BATCH_MATMUL"]) == ((), 1)


FIXED: dict[str, tuple[Any, tuple[float, int]]] = {
    "LOGISTIC": (torch.sigmoid, (1 / 256, -128)),
    "TANH": (torch.tanh, (1 / 128, 0)),
}


@pytest.mark.parametrize("kind", FIXED)
def test_a_function_is_in_int8_if_its_result_has_the_type_that_litert_asks_for(kind: str) -> None:
    compute, result = FIXED[kind]
    lowered = lowered_for_litert(Between(compute, result), X)
    assert (lowered.plan.float_islands, lowered.artifact.outside) == ((), {})
    assert kinds(lowered) == {"QUANTIZE": 1, kind: 1, "DEQUANTIZE": 1}


@pytest.mark.parametrize("taken", slow_but(["int8", "uint8"], ["uint8"]))
def test_integers_may_be_the_callers(taken: str) -> None:
    x = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(3))
    how = {"input_types": taken, "output_types": taken, "input_orders": "NHWC"}
    lowered = lowered_for_litert(by_xnnpack(Net(), x), x, **how)
    spec = lowered.contract.inputs[0]
    assert str(spec.dtype) == taken
    assert lowered.artifact.outside == ({} if taken == "int8" else {"QUANTIZE": 2})
    assert not kinds(lowered)["DEQUANTIZE"]


NAMED: dict[str, tuple[nn.Module, tuple[Tensor, ...], str]] = {
    "softmax": (
        Between(lambda x: x.softmax(3), (1 / 256, -128)),
        (X,),
        "LiteRT computes SOFTMAX of int8 outside of XNNPACK's delegate",
    ),
    "silu": (Between(F.silu, (0.0311, -7)), (X,), "no int8 kernel computes it alone"),
    "leaky relu": (
        Between(lambda x: F.leaky_relu(x, 0.13), (0.0311, -7)),
        (X,),
        "XNNPACK's int8 kernel rounds otherwise than what is quantised next",
    ),
    "sigmoid of another type": (
        Between(torch.sigmoid, (0.0041, -120)),
        (X,),
        "a result that is not of scale 1/256 and zero point -128",
    ),
    "clamp": (
        Between(lambda x: F.hardtanh(x, -0.51, 0.77), (0.0311, -7)),
        (X,),
        "a clamp to [-0.51, 0.77], which no activation of LiteRT has",
    ),
    "zero point of a matrix": (
        Between(lambda x, y: x @ y.transpose(2, 3), (0.0911, -7)),
        (X, Y),
        "a right matrix with the zero point 5",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_no_int8_kernel_computes_is_a_float_island_with_its_reason(name: str) -> None:
    module, inputs, reason = NAMED[name]
    lowered = lowered_for_litert(module, *inputs)
    assert [found for _, found in lowered.plan.float_islands] == [reason]
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})


class Offset(nn.Module):
    """A sum with a constant of many numbers that is quantised, as the positions of a transformer are."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.integers = torch.randint(-128, 128, (1, 6, 5, 7), generator=generator).to(torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        offset = DEQUANTIZE(self.integers, 0.0313, -17, *INT8)
        return quantised(quantised(x, 0.0247, 5) + offset, 0.0431, 3)


def test_a_constant_of_integers_is_an_operand() -> None:
    lowered = lowered_for_litert(Offset(), X)
    assert lowered.plan.float_islands == ()
    assert kinds(lowered) == {"QUANTIZE": 1, "ADD": 1, "DEQUANTIZE": 1}


def test_a_number_of_no_dimensions_may_be_an_integer() -> None:
    """The shape of such a number is an empty constant of the file."""

    def rounded(m: Any, x: Tensor) -> Tensor:
        return DEQUANTIZE(QUANTIZE(x, 0.05, 3, -128, 127, torch.int8), 0.05, 3, -128, 127, torch.int8)

    types = {"input_types": "int8", "output_types": "int8"}
    lowered = dimorder.lower(OneInput(rounded), (torch.tensor(0.7),), target="litert", **types)
    assert int(lowered.run(torch.tensor(17, dtype=torch.int8))) == 17
