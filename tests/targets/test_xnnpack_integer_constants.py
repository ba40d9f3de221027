"""Constants of quantised networks: scales however they are given, and constants of float islands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from tests.targets.int8_cases import X
from tests.targets.quantised import by_xnnpack


def test_a_float_island_may_make_much_of_constants() -> None:
    """The norm of rows whose elements hardly differ, of what an enlargement in constants of float32 gave."""

    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(6, 4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            large = F.interpolate(1 + F.relu(x[..., :2, :2]) * 0.1, scale_factor=3, mode="bicubic")
            return self.convolution(x), F.layer_norm(large, (6,))

    made = by_xnnpack(Steep().eval(), X)
    lowered = dimorder.lower(made, (X,), target="xnnpack")
    assert lowered.artifact.delegates == 1


def _affine(x: Tensor, block: Any, scales: Tensor, zeros: Tensor) -> Tensor:
    """Rounded by torchao's operators, a scale for each block."""
    from torchao.quantization.quant_primitives import dequantize_affine, quantize_affine

    integers = quantize_affine(x, block, scales, zeros, torch.int8, -128, 127)
    return dequantize_affine(integers, block, scales, zeros, torch.int8, -128, 127)


def _by_tensors(x: Tensor, scale: float, zero: int, *limits: Any) -> Tensor:
    ops, of = torch.ops.quantized_decomposed, (torch.tensor(scale), torch.tensor(zero), *limits, torch.int8)
    overload = "tensor2" if limits and isinstance(limits[0], Tensor) else "tensor"
    integers = getattr(ops.quantize_per_tensor, overload)(x, *of)
    return getattr(ops.dequantize_per_tensor, overload)(integers, *of)


KNOWN_SCALES = {
    "torchao's": lambda x, s, z: _affine(x, x.shape, torch.tensor([s]), torch.tensor([z])),
    "of tensors": lambda x, s, z: _by_tensors(x, s, z, -128, 127),
    "of tensors alone": lambda x, s, z: _by_tensors(x, s, z, torch.tensor(-128), torch.tensor(127)),
}


@pytest.mark.parametrize("name", KNOWN_SCALES)
def test_scales_that_are_constants_are_known_however_they_are_given(name: str) -> None:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(6, 10, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            rounded, weight = KNOWN_SCALES[name], self.conv.weight
            scales = weight.detach().abs().amax((1, 2, 3)) / 127
            weight = _affine(weight, (1, *weight.shape[1:]), scales, torch.zeros(10, dtype=torch.int32))
            return rounded(F.relu(F.conv2d(rounded(x, 0.0247, 5), weight)), 0.0151, -128)

    torch.manual_seed(0)
    model = Convolution().eval()
    lowered = dimorder.lower(model, (X,), target="xnnpack")
    assert (lowered.artifact.delegates, lowered.artifact.outside, lowered.plan.float_islands) == (
        1,
        {},
        (),
    )
    with torch.no_grad():
        assert (lowered.run(X) - model(X)).abs().max() <= 1.01 * 0.0151
    assert [i.bytes for i in lowered.plan.conversions] == [X.numel(), 2 * 10 * 3 * 5]


def test_what_is_left_in_floats_may_be_computed_with_constants_of_float32() -> None:
    class Beside(nn.Module):
        """A quantised convolution, and a picture of another size, in weights that lowering works out."""

        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(6, 4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            small = F.interpolate(x, size=(3, 2), mode="bicubic", antialias=True)
            return self.convolution(x), small

    made = by_xnnpack(Beside().eval(), X)
    lowered = dimorder.lower(made, (X,), target="xnnpack")
    for got, wanted in zip(lowered.run(X), made(X), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-4)
    assert lowered.artifact.delegates == 1


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_integers_are_joined_with_a_constant(target: str) -> None:
    ops = torch.ops.quantized_decomposed
    own, other = ((scale, zero, -128, 127, torch.int8) for scale, zero in ((0.0213, -10), (0.0427, -69)))

    class Joined(nn.Module):
        """Integers and a constant, which are read as numbers of their own type and of another one."""

        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(3)
            row = torch.randint(-127, 128, (2, 1, 5, 7), generator=generator, dtype=torch.int8)
            self.register_buffer("row", row)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            both = torch.cat([ops.quantize_per_tensor(x, *own), self.row], 1)
            return ops.dequantize_per_tensor(both, *own), ops.dequantize_per_tensor(both, *other), both

    lowered = dimorder.lower(Joined(), (X,), target=target)
    for got, wanted in zip(lowered.run(X), Joined()(X), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
