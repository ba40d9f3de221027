"""Quantised networks on target litert: integers in XNNPACK's delegate, each file bit for bit the model of its
kernels (`targets/litert/model.py`), and LiteRT's own kernels within a quantum of it, operator by operator. A
lowering whose file gives other bits is refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.lowered import Lowered
from dimorder.targets.litert.exact import OperatorsRun
from dimorder.targets.litert.file import operators
from dimorder.targets.litert.target import TfLite

pytest.importorskip("ai_edge_litert")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

from tests.targets.int8_cases import IN_INT8, PRODUCTS, Between, Weighted, X
from tests.targets.quantised import Net, by_xnnpack

# The operators that XNNPACK's delegate lacks, or has for other types; they are float islands.
ISLANDS = {
    **dict.fromkeys(("hardswish", "gelu", "elu", "exp", "abs", "square", "sin", "neg", "floor", "ceil")),
    **dict.fromkeys(("cos", "maximum", "minimum", "sigmoid", "tanh", "sum over the last", "hardtanh")),
}
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


@pytest.mark.parametrize("result", [(0.0311, -7), (0.0089, 3)])
@pytest.mark.parametrize("name", IN_INT8)
def test_an_operator_between_quantised_values_is_in_int8_or_an_island(
    name: str, result: tuple[float, int]
) -> None:
    compute, inputs = IN_INT8[name]
    lowered = lowered_for_litert(Between(compute, result), *inputs)
    assert bool(lowered.plan.float_islands) == (name in ISLANDS)
    if name not in ISLANDS:
        assert kinds(lowered)["QUANTIZE"] == len(inputs) and kinds(lowered)["DEQUANTIZE"] == 1
    assert set(lowered.artifact.outside) <= BESIDE.get(name, set())


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_with_int8_weights_computes_in_int8(name: str) -> None:
    lowered = lowered_for_litert(Weighted(*PRODUCTS[name]), X)
    assert lowered.plan.float_islands == ()
    assert (kinds(lowered)["QUANTIZE"], kinds(lowered)["DEQUANTIZE"]) == (1, 1)


@pytest.mark.parametrize(("order", "conversions"), [("NCHW", 1), ("NHWC", 0)])
def test_a_network_is_one_delegate_of_int8(order: str, conversions: int) -> None:
    x = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(3))
    lowered = lowered_for_litert(by_xnnpack(Net(), x), x, input_orders=order)
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})
    assert (lowered.plan.float_islands, lowered.to_dict()["conversion_count"]) == ((), conversions)
    assert kinds(lowered)["TRANSPOSE"] == conversions
    assert (kinds(lowered)["QUANTIZE"], kinds(lowered)["DEQUANTIZE"]) == (1, 1)
