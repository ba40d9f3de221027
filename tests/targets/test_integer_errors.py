"""Test what target xnnpack says of quantised networks that it cannot take as they are.

Each is refused in three lines, or becomes a float island with its reason and gives the right numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder
from dimorder.errors import ContractError, UnsupportedError

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.graph.quantized import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE
from tests.fuzz.integer_operators import requantised

quantized = torch.ops.quantized_decomposed
X = torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A function of an input, and of weights for a convolution and a linear."""

    def __init__(self, compute: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.compute = compute
        self.kernel = torch.randint(-127, 128, (4, 6, 3, 2), generator=generator).to(torch.int8)
        self.matrix = torch.randint(-127, 128, (12, 8), generator=generator).to(torch.int8)
        self.scales = 0.002 + 0.004 * torch.rand(4, generator=generator)
        self.group_scales = 0.002 + 0.004 * torch.rand(12, 2, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


def _in_int16(x: Tensor) -> Tensor:
    how = (1e-4, 0, -32768, 32767, torch.int16)
    return DEQUANTIZE(QUANTIZE(x, *how), *how)


def _by_channels(net: Any, x: Tensor) -> Tensor:
    how = (net.scales[:1].expand(6), torch.zeros(6, dtype=torch.int64), 1, -128, 127, torch.int8)
    return DEQUANTIZE_CHANNELS(quantized.quantize_per_channel.default(x, *how), *how)


def _between(compute: Callable[[Tensor], Tensor], *scale: Any) -> Net:
    return Net(lambda net, x: requantised(compute(requantised(x, *(scale or (0.0247, 5)))), 0.0911, -7))


REFUSED: dict[str, tuple[Net, str, str]] = {
    "activations of int16": (
        Net(lambda net, x: _in_int16(F.relu(_in_int16(x)))),
        "quantized_decomposed.quantize_per_tensor",
        "integers from -32768 to 32767; XNNPACK has those of 8 bits, as XNNPACKQuantizer makes them",
    ),
    "activations with a scale per channel": (
        Net(_by_channels),
        "quantized_decomposed.quantize_per_channel",
        "XNNPACK has no quantized_decomposed.quantize_per_channel.default",
    ),
    "a negative scale": (
        _between(F.relu, -0.01, 5),
        "quantized_decomposed.quantize_per_tensor",
        "the scale -0.01; XNNPACK has positive ones, as XNNPACKQuantizer makes them",
    ),
    "a scale that no float32 of full precision is": (
        _between(F.relu, 1e-42, 5),
        "quantized_decomposed.quantize_per_tensor",
        "the scale 1e-42; XNNPACK has positive ones, as XNNPACKQuantizer makes them",
    ),
    "a zero point that is no int8": (
        _between(F.relu, 0.01, 500),
        "quantized_decomposed.quantize_per_tensor",
        "the zero point 500, outside of -128 to 127",
    ),
    "an operator that nothing computes": (
        _between(lambda x: torch.special.bessel_j0(x)),
        "aten.special_bessel_j0.default",
        "no kernel in the runtime for aten::special_bessel_j0.out"
        " (outside because: XNNPACK has no aten.special_bessel_j0.default)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_where_what_and_what_to_do(name: str) -> None:
    network, where, found = REFUSED[name]
    with pytest.raises(UnsupportedError) as refused:
        dimorder.lower(network, (X,), target="xnnpack")
    told = str(refused.value).splitlines()
    assert re.fullmatch(rf"{re.escape(where)} \(test_integer_errors\.py:\d+(, in .*)?\)", told[0])
    assert told[1] == f"  found: {found}"
    assert told[2].startswith("  fix: replace it in the module, or ") and len(told) == 3


def _convolved(net: Any, x: Tensor, zero_points: Tensor) -> Tensor:
    weight = DEQUANTIZE_CHANNELS(net.kernel, net.scales, zero_points, 0, -127, 127, torch.int8)
    return requantised(F.conv2d(requantised(x, 0.0247, 5), weight), 0.0911, -9)


def _in_groups(net: Any, x: Tensor) -> Tensor:
    how = (net.group_scales, torch.zeros(12, 2), -128, 127, torch.int8, 4, torch.float32)
    weight = quantized.dequantize_per_channel_group.default(net.matrix, *how)
    return requantised(F.linear(requantised(x.flatten(2)[:, :, :8], 0.0247, 5), weight), 0.0911, -9)


def _unsigned(net: Any, x: Tensor) -> Tensor:
    integers = (net.kernel.int() + 128).to(torch.uint8)
    weight = DEQUANTIZE(integers, 0.004, 128, 0, 255, torch.uint8)
    return requantised(F.conv2d(requantised(x, 0.0247, 5), weight), 0.0911, -9)


OTHER_WEIGHT = "a weight that is not int8 with one scale per output channel and one zero point"
ISLANDS: dict[str, tuple[Net, str]] = {
    "weights with a zero point": (
        Net(lambda net, x: _convolved(net, x, torch.full((4,), 3))),
        "a weight with the zero point 3",
    ),
    "weights with several": (Net(lambda net, x: _convolved(net, x, torch.arange(4) - 1)), OTHER_WEIGHT),
    "unsigned weights": (Net(_unsigned), "a weight with the zero point 128"),
    "weights with a scale for each group of inputs": (Net(_in_groups), OTHER_WEIGHT),
}


@pytest.mark.parametrize("name", ISLANDS)
def test_weights_that_no_int8_kernel_takes_are_a_float_island(name: str) -> None:
    network, reason = ISLANDS[name]
    lowered = dimorder.lower(network, (X,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert [found for _, found in lowered.plan.float_islands] == [reason]
    off = (lowered.run(X) - network(X)).abs() / 0.0911
    assert off.max() < 1.01 and (off > 0.5).double().mean() < 0.01


@pytest.mark.parametrize(
    ("tensor", "found", "x"),
    [
        (X, "torch.float32", "x"),
        (X.to(torch.int16), "torch.int16", "x.float()"),
        (X.to(torch.uint8), "torch.uint8", "x.float()"),
        (
            torch.quantize_per_tensor(X, 0.05, 0, torch.qint8),
            "torch.qint8 of scale 0.05, zero point 0",
            "x.dequantize()",
        ),
    ],
)
def test_an_input_of_another_type_or_scale_is_refused(tensor: Tensor, found: str, x: str) -> None:
    lowered = dimorder.lower(_between(F.relu), (X,), target="xnnpack", input_types="int8")
    promised = "int8, scale 0.0247, zero point 5 is promised"
    with pytest.raises(ContractError) as refused:
        lowered.run(tensor)
    first, second, third = str(refused.value).splitlines()
    assert first == "input 'x'"
    assert second in (f"  found: {found}, where {promised}", f"  found: {found}, where torch.{promised}")
    assert third == f"  fix: x = torch.clamp(torch.round({x} / 0.0247) + 5, -128, 127).to(torch.int8)"
    held = {"x": tensor, "torch": torch}
    exec(refused.value.fix, held)
    lowered.run(held["x"])
