"""Test that what quantizers write for dynamic quantisation becomes one operator with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dimorder.capture.captured import capture
from dimorder.ops.quantization import FAKE_QUANTIZE_DYNAMIC, quantized

LIMITS = (-128, 127)
X = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(3)) * torch.tensor([1.0, 9.0]).reshape(
    2, 1, 1
)


class Rounds(nn.Module):
    """Scales that are chosen, quantize, dequantize."""

    def __init__(self, choose: Callable[[Tensor], Any], kind: str) -> None:
        super().__init__()
        self.choose = choose
        self.quantize, self.dequantize = (
            getattr(quantized, f"{word}_per_{kind}") for word in ("quantize", "dequantize")
        )

    def forward(self, x: Tensor) -> Tensor:
        scale, zero = self.choose(x)
        more = (torch.float32,) if "token" in str(self.dequantize) else ()
        q = self.quantize(x, scale, zero, *LIMITS, torch.int8)
        return self.dequantize(q, scale, zero, *LIMITS, torch.int8, *more)


WRITTEN: dict[str, tuple[nn.Module, list[int], str]] = {
    "one scale": (
        Rounds(lambda x: quantized.choose_qparams.tensor(x, *LIMITS, 1e-5, torch.int8), "tensor"),
        [0, 1, 2],
        "asymmetric",
    ),
    "one symmetric scale": (
        Rounds(
            lambda x: quantized.choose_qparams_symmetric.tensor(x, *LIMITS, 1e-5, torch.int8),
            "tensor",
        ),
        [0, 1, 2],
        "symmetric",
    ),
    "tokens": (
        Rounds(lambda x: quantized.choose_qparams_per_token(x, torch.int8), "token"),
        [2],
        "symmetric",
    ),
    "asymmetric tokens": (
        Rounds(lambda x: quantized.choose_qparams_per_token_asymmetric(x, torch.int8), "token"),
        [2],
        "balanced",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_one_operator_gives_the_same(name: str) -> None:
    net, dims, mode = WRITTEN[name]
    check(net, dims, mode)


def check(net: nn.Module, dims: list[int], mode: str) -> None:
    program = capture(net, (X,))
    (call,) = (node for node in program.nodes if node.op == "call_function")
    assert call.target is FAKE_QUANTIZE_DYNAMIC
    assert (call.args[1], call.args[-1]) == (dims, mode)
    torch.testing.assert_close(program.module(X)[0], net(X), rtol=0, atol=1e-5)
    assert (program.module(X)[0] - X).abs().max() > 1e-3


class Affine(nn.Module):
    """The same, as torchao has it."""

    def __init__(self, mapping: str, block: list[int]) -> None:
        super().__init__()
        self.mapping, self.block = mapping, block

    def forward(self, x: Tensor) -> Tensor:
        ops, kept = torch.ops.torchao, (torch.int8, *LIMITS)
        scale, zero = ops.choose_qparams_affine(
            x, self.mapping, self.block, torch.int8, *LIMITS, None, None, torch.int8
        )
        q = ops.quantize_affine(x, self.block, scale, zero, *kept)
        return ops.dequantize_affine(q, self.block, scale, zero, *kept)


@pytest.mark.parametrize("mapping", ["SYMMETRIC", "ASYMMETRIC"])
@pytest.mark.parametrize(("block", "dims"), [([1, 1, 7], [2]), ([1, 5, 7], [1, 2]), ([2, 5, 7], [0, 1, 2])])
def test_so_does_what_torchao_writes(mapping: str, block: list[int], dims: list[int]) -> None:
    pytest.importorskip("torchao.quantization")
    check(Affine(mapping, block), dims, mapping.lower())


def test_scales_of_something_else_are_left_as_they_are() -> None:
    """A value that is quantised by the scales of another is not quantised dynamically."""
    net = Rounds(lambda x: quantized.choose_qparams.tensor(x * 2, *LIMITS, 1e-5, torch.int8), "tensor")
    program = capture(net, (X,))
    assert FAKE_QUANTIZE_DYNAMIC not in {node.target for node in program.nodes}
