"""Test what the normal form moves before a quantize: a clamp between two of them, and moves of a constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dimorder.capture.integers import normalize_quantization
from dimorder.graph.nodes import where
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE

aten = torch.ops.aten
SCALE = (0.25, 3, -128, 127, torch.int8)


def quantised(x: Tensor) -> Tensor:
    return DEQUANTIZE(QUANTIZE(x, *SCALE), *SCALE)


class Net(nn.Module):
    def __init__(self, clamp: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.clamp = clamp

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return quantised(self.clamp(quantised(x + y)))


BEFORE = ["add", "quantize", "dequantize", "clamp", "quantize", "dequantize"]
AFTER = ["add", "clamp", "quantize", "dequantize"]


def calls(graph: torch.fx.Graph, clamp: Any) -> list[str]:
    """The names of the calls of a graph, and "clamp" for that operator."""
    called = [node.target for node in graph.nodes if node.op == "call_function"]
    return ["clamp" if target is clamp else target._opname.split("_per_")[0] for target in called]


@pytest.mark.parametrize(
    ("clamp", "operator"),
    [
        (F.relu, aten.relu.default),
        (aten.relu6, aten.relu6.default),
        (lambda x: F.hardtanh(x, -0.5, 0.75), aten.hardtanh.default),
        (lambda x: x.clamp_max(0.75), aten.clamp_max.default),
    ],
)
def test_a_clamp_between_two_quantizes_comes_before_the_first(
    clamp: Callable[[Tensor], Tensor], operator: Any
) -> None:
    x, y = 9 * torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(1))
    network = Net(clamp)
    module = torch.export.export(network, (x, y)).module()
    module.graph.eliminate_dead_code()
    assert calls(module.graph, operator)[-6:] == BEFORE
    normalize_quantization(module)
    module.recompile()
    assert calls(module.graph, operator)[-4:] == AFTER
    assert torch.equal(module(x, y), network(x, y))


def test_a_constant_is_sliced_and_viewed_before_it_is_quantized() -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("whole", torch.randn(6, 8))

        def forward(self, x: Tensor) -> Tensor:
            return quantised(self.whole[:3, :5].reshape(15)) + quantised(x[:3, :5].reshape(15))

    module = torch.export.export(Sliced(), (torch.randn(4, 7),)).module()
    module.graph.eliminate_dead_code()
    assert calls(module.graph, None) == [
        *("slice", "slice", "reshape", "quantize", "dequantize"),
        *("slice", "slice", "reshape", "quantize", "dequantize", "add"),
    ]
    normalize_quantization(module)
    assert calls(module.graph, None) == [
        *("quantize", "slice", "slice", "reshape", "quantize", "dequantize"),
        *("slice", "slice", "reshape", "dequantize", "add"),
    ]


def test_a_conversion_without_a_source_line_has_that_of_its_value_or_reader() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return quantised(quantised(x).sin())

    module = torch.export.export(Twice(), (torch.randn(2, 3),)).module()
    module.graph.eliminate_dead_code()
    for node in module.graph.nodes:
        if node.target in (QUANTIZE, DEQUANTIZE):
            for key in ("stack_trace", "nn_module_stack"):
                node.meta.pop(key, None)
    normalize_quantization(module)
    called = [node for node in module.graph.nodes if node.op == "call_function"]
    (line,) = {where(node) for node in called if node.target is aten.sin.default}
    assert line.startswith("test_integers.py:")
    assert len(called) == 5 and {where(node) for node in called} == {line}
