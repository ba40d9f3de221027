"""Integers that the runtime gives are held to the kernels' own rounding, halves to either side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from tests.targets.int8_cases import Between, X, Y
from tests.targets.quantised import INT8, quantised


def test_a_wrong_island_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dimorder.errors import VerificationError
    from dimorder.targets.xnnpack import model

    wrong = {**model._FLOAT, "Softmax": lambda fields, x: x.softmax(-1) * 1.02}
    monkeypatch.setattr(model, "_FLOAT", wrong)
    with pytest.raises(VerificationError, match=r"aten.softmax.int .* in float32"):
        dimorder.lower(Between(lambda x: x.softmax(1), (1 / 256, -128)), (X,), target="xnnpack")


def test_a_wrong_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dimorder.errors import VerificationError
    from dimorder.targets.xnnpack import model

    right = model.ROUNDINGS["Multiply"]

    def wrong(kernel: Any) -> Tensor:
        quanta = right(kernel)
        quanta[0, 0, 0, 0] -= quanta[0, 0, 0, 0].sign()
        return quanta

    monkeypatch.setattr(model, "ROUNDINGS", {**model.ROUNDINGS, "Multiply": wrong})
    with pytest.raises(VerificationError, match="1 of 420 elements of output 0 are not what its integer"):
        dimorder.lower(Between(torch.mul, (0.0311, -7)), (X, Y), target="xnnpack")


HALVES = torch.arange(-128, 128).to(torch.int8).reshape(1, 256)


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_means_on_a_half_are_rounded_as_the_kernel_does_it(target: str) -> None:
    """The mean of 6 is a sum times 5 / 12, but less in float32: each of its two quotients is rounded."""
    if target == "litert":
        pytest.importorskip("ai_edge_litert")

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return quantised(quantised(x, 0.03, 0).mean((1, 2), keepdim=True), 0.012, 0)

    x = torch.randn(5, 3, 2, 40, generator=torch.Generator().manual_seed(0))
    assert not dimorder.lower(Mean(), (x,), target=target).plan.float_islands


@pytest.mark.parametrize("result", [(0.0494, -8), (0.0494, -9), (0.0988, 2)])
def test_integers_on_a_half_are_rounded_as_the_kernel_does_it(result: tuple[float, int]) -> None:
    """Twice or four times the scale: half of the integers, or a quarter, lie on a half of the new one."""

    class Coarser(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return QUANTIZE(DEQUANTIZE(x, 0.0247, 5, *INT8), *result, *INT8)

    lowered = dimorder.lower(Coarser(), (HALVES,), target="xnnpack")
    assert (lowered.run(HALVES).int() - Coarser()(HALVES).int()).abs().max() <= 1


HALVED = {
    "reshaped": lambda x: x.unflatten(0, (1, -1)).transpose(0, 1).flatten(0, 1),
    "repeated": lambda x: x.repeat(2, 3),
    "joined twice": lambda x: x[:, [3, 1, 1, 7, 5, 9, 11]],
    "joined with what lies elsewhere": lambda x: torch.cat([x, x.flip(1)], 1),
}


@pytest.mark.parametrize("name", HALVED)
def test_a_half_may_be_rounded_either_way_before_it_is_moved(name: str) -> None:
    """3.75 times the scale: of every fourth integer a half is made, which float32 does not hold."""

    class Moved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            moved = HALVED[name](DEQUANTIZE(x, 0.03102, 0, *INT8))
            return DEQUANTIZE(QUANTIZE(moved, 0.008272, 0, *INT8), 0.008272, 0, *INT8)

    lowered = dimorder.lower(Moved(), (HALVES,), target="xnnpack")
    assert (lowered.run(HALVES) - Moved()(HALVES)).abs().max() <= 1.01 * 0.008272


def test_what_is_computed_from_a_half_is_as_unsure() -> None:
    """1.25 times the scale makes halves, which are quantised again before they are repeated."""

    class Chain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = quantised(x, 0.005545, 0).unsqueeze(3).expand(2, 2, 14, 2, 3)
            return quantised(quantised(x, 0.004436, 0), 0.01314, 0)

    x = torch.randn(2, 2, 14, 3, generator=torch.Generator().manual_seed(11))
    lowered = dimorder.lower(Chain(), (x,), target="xnnpack")
    assert (lowered.run(x) - Chain()(x)).abs().max() <= 1.01 * 0.01314


class Enlarged(nn.Module):
    """A bicubic resize, whose weights are float32 in a program, and in float64 off by some 1e-7."""

    def forward(self, x: Tensor) -> Tensor:
        x = quantised(x, 1 / 255, -128)
        y = F.interpolate(x, scale_factor=3, mode="bicubic", align_corners=False)
        y = quantised(y, 0.0043, -119)
        return quantised(torch.cat([y, quantised(0.2 * y, 0.00087, -119)], 1), 1 / 255, -128)


def test_a_constant_may_move_a_number_across_a_half() -> None:
    x = torch.rand(1, 3, 32, 40, generator=torch.Generator().manual_seed(5))
    lowered = dimorder.lower(Enlarged(), (x,), target="xnnpack")
    assert (lowered.run(x) - Enlarged()(x)).abs().max() <= 2.01 / 255


def test_a_wrong_constant_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dimorder.errors import VerificationError
    from dimorder.ops import resize

    right = resize.resized_by
    monkeypatch.setattr(resize, "resized_by", lambda *of: right(*of) * 1.01)
    with pytest.raises(VerificationError, match=r"quantize_per_tensor .* in the physical program"):
        dimorder.lower(Enlarged(), (torch.rand(1, 3, 32, 40),), target="xnnpack")


@pytest.mark.parametrize("scale", [0.028, 0.01055])  # whose inverse is another in float64 than in float32
def test_numbers_on_a_half_are_rounded_as_the_kernel_does_it(scale: float) -> None:
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return QUANTIZE(x, scale, -9, *INT8)

    x = (HALVES.double() + 0.5).mul(scale).float()
    lowered = dimorder.lower(Rounded(), (x,), target="xnnpack")
    (wanted,) = lowered.artifact.reference_run([x])
    assert torch.equal(lowered.run(x), wanted)


def test_a_mean_of_integers_of_one_scale_lies_on_halves() -> None:
    x = torch.randn(2, 8, 6, 10, generator=torch.Generator().manual_seed(3))
    lowered = dimorder.lower(Between(lambda x: F.avg_pool2d(x, 2), (0.0247, 5)), (x,), target="xnnpack")
    assert lowered.plan.float_islands == ()


def test_a_mean_on_a_half_is_rounded_as_the_kernel_does_it() -> None:
    """Test a mean of 14 numbers: the sum is scaled before the zero point is taken away."""

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return QUANTIZE(DEQUANTIZE(x, 0.0247, 5, *INT8).mean((2, 3), keepdim=True), 0.0247, 5, *INT8)

    x = torch.randint(-30, 40, (1, 3001, 2, 7), generator=torch.Generator().manual_seed(3)).to(torch.int8)
    lowered = dimorder.lower(Mean(), (x,), target="xnnpack", input_orders="NHWC")
    (wanted,) = lowered.artifact.reference_run([x.permute(0, 2, 3, 1)])
    assert torch.equal(lowered.run(x).flatten(), wanted.flatten())
