"""Test which operators of half precision compute in float32, in the normal form of a quantized network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dimorder.capture.captured import capture
from dimorder.graph.quantized import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE, Scaled

TYPE = (0.0247, 5, -128, 127, torch.int8)
X = torch.randn(2, 3, 7, 5, generator=torch.Generator().manual_seed(1)).half()


def quantised(x: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    return DEQUANTIZE(QUANTIZE(x, *TYPE), *TYPE, out_dtype=dtype)


class Net(nn.Module):
    """A function with a weight of integers, which is float16."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(7)
        self.function, self.bias = function, nn.Parameter(torch.randn(8, generator=draw).half())
        self.integers = torch.randint(-127, 128, (8, 3, 3, 3), generator=draw).to(torch.int8)
        self.scales = 0.002 + 0.004 * torch.rand(8, generator=draw)

    def forward(self, x: Tensor) -> Tensor:
        given = (self.integers, self.scales, None, 0, -127, 127, torch.int8)
        return self.function(x, DEQUANTIZE_CHANNELS(*given, out_dtype=torch.float16), self.bias)


def types(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[str]:
    """The operators of the normal form with the types of their results, and the weights of integers."""
    program = capture(Net(function), (X,))
    constants = [getattr(program.module, str(n.target)) for n in program.nodes if n.op == "get_attr"]
    weights = ["weight of integers"] * sum(isinstance(each, Scaled) and each.dim() > 1 for each in constants)
    assert {each.dtype for each in constants if isinstance(each, Scaled)} <= {torch.float32}
    calls = [node for node in program.nodes if node.op == "call_function"]
    names = [node.target._opname.removesuffix("_per_tensor") for node in calls]
    dtypes = [str(node.meta["val"].dtype).removeprefix("torch.") for node in calls]
    return [*map(" ".join, zip(names, dtypes, strict=True)), *weights]


QUANTIZED = ["_to_copy float32", "quantize int8", "dequantize float32"]
CASES: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], list[str]]] = {
    "a convolution between integers": (
        lambda x, w, b: quantised(F.relu(F.conv2d(quantised(x), w, b))),
        [
            *QUANTIZED,
            *("convolution float32", "relu float32", "quantize int8", "dequantize float32"),
            *("_to_copy float16", "weight of integers"),
        ],
    ),
    "integer weights, and a result of half precision": (
        lambda x, w, b: F.relu(F.conv2d(quantised(x), w, b)),
        [*QUANTIZED, "convolution float32", "_to_copy float16", "relu float16", "weight of integers"],
    ),
    "an operator that a result reads too": (
        lambda x, w, b: quantised(y := quantised(x).exp()) + y,
        [
            *(*QUANTIZED, "_to_copy float16", "exp float16", "_to_copy float32", "quantize int8"),
            *("dequantize float32", "_to_copy float16", "add float16"),
        ],
    ),
    "half precision of the network's own": (
        lambda x, w, b: quantised(F.gelu(quantised(x, torch.float32).half()).float(), torch.float32),
        [*QUANTIZED, "_to_copy float16", "gelu float16", *QUANTIZED],
    ),
    "integer weights alone": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b)),
        ["convolution float16", "relu float16"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_operators_between_integers_compute_in_float32(case: str) -> None:
    function, wanted = CASES[case]
    assert types(function) == wanted


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_dequantized_constant_has_the_type_that_it_is_given(dtype: torch.dtype) -> None:
    integers = torch.tensor([[100, -3], [7, 90]], dtype=torch.int8)
    scaled = Scaled.of(integers, torch.tensor([[0.3], [0.7]]), 2, dtype)
    assert scaled.dtype == scaled.T.dtype == dtype
    assert torch.equal(scaled.as_subclass(Tensor), ((integers - 2) * torch.tensor([[0.3], [0.7]])).to(dtype))
