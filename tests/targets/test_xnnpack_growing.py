"""Call programs for XNNPACK with small sizes first, then with larger ones, from one loaded file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder

pytest.importorskip("executorch")

QUANTIZED = torch.ops.quantized_decomposed
L = Dim("L", min=2, max=40)


def rounded(x: Tensor, scale: float, zero_point: int) -> Tensor:
    """Return a value rounded to integers of int8."""
    of = (scale, zero_point, -128, 127, torch.int8)
    return QUANTIZED.dequantize_per_tensor(QUANTIZED.quantize_per_tensor(x, *of), *of)


class Scores(nn.Module):
    """The scores of attention, with keys of integers."""

    def __init__(self, zero_point: int) -> None:
        super().__init__()
        self.zero_point = zero_point

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        left, right = (x.view(2, -1, 3, 4).transpose(1, 2) for x in (queries, keys))
        return rounded(left @ rounded(right, 0.03, self.zero_point).transpose(2, 3), 0.05, 3)


def call(length: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(length)
    return torch.randn(2, length, 12, generator=draw), torch.randn(2, length, 12, generator=draw)


@pytest.mark.parametrize("zero_point", [0, 7])
def test_a_matmul_of_integers_grows(zero_point: int, tmp_path: Path) -> None:
    file = tmp_path / "net.pte"
    sizes = ({1: L}, {1: L})
    dimorder.lower(Scores(zero_point), call(6), target="xnnpack", dynamic_shapes=sizes).save(file)
    program = dimorder.load(file)
    for length in (2, 5, 40, 3, 17):
        assert torch.equal(program(*call(length)), dimorder.load(file)(*call(length)))


def pictures(count: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(count)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_means_of_integers_and_halves_grow(dtype: torch.dtype, tmp_path: Path) -> None:
    """XNNPACK adds these up in memory that it plans for the size that the file names."""
    torch.manual_seed(0)
    network: nn.Module = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.AdaptiveAvgPool2d(1)).to(dtype)
    sizes, file = ({0: Dim("N", min=1, max=8)},), tmp_path / "net.pte"
    if dtype == torch.float32:
        calls = [pictures(2, dtype), pictures(3, dtype)]
        lowered = dimorder.lower(dimorder.quantize(network, calls, dynamic_shapes=sizes), target="xnnpack")
    else:
        lowered = dimorder.lower(network, (pictures(2, dtype),), target="xnnpack", dynamic_shapes=sizes)
    lowered.save(file)
    for counts in ((1, 2, 3, 4, 5), (2, 5), (3, 4, 8, 5)):
        program = dimorder.load(file)
        for count in counts:
            x = pictures(count, dtype)
            assert torch.equal(program(x), dimorder.load(file)(x))
