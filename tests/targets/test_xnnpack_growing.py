"""Call programs for XNNPACK with small sizes first, then with larger ones, from one loaded file."""

from __future__ import annotations

from collections import Counter
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


class Gate(nn.Module):
    """A gate for each channel, computed from its mean over all pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.squeeze = nn.Conv2d(3, 368, 1), nn.Conv2d(368, 38, 1)
        self.excite, self.last = nn.Conv2d(38, 368, 1), nn.Conv2d(368, 368, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        gate = self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu())
        return self.last(x * gate.sigmoid())


N, H, W = Dim("N", min=1, max=8), Dim("H", min=1, max=6), Dim("W", min=1, max=6)


def test_a_mean_of_integers_is_right_when_one_size_grows_and_another_shrinks(tmp_path: Path) -> None:
    """XNNPACK would plan its memory in the second call, for 3 pictures, and not in the third, for 4."""
    torch.manual_seed(0)
    few, middle, many = calls = [torch.randn(shape) for shape in ((4, 3, 1, 1), (3, 3, 3, 5), (1, 3, 6, 6))]
    quantized = dimorder.quantize(Gate(), [(x,) for x in calls], dynamic_shapes=({0: N, 2: H, 3: W},))
    dimorder.lower(quantized, target="xnnpack").save(tmp_path / "net.pte")
    program = dimorder.load(tmp_path / "net.pte")
    for x in (few, middle, few, many, few):
        assert torch.equal(program(x), dimorder.load(tmp_path / "net.pte")(x))


class Average(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


@pytest.mark.parametrize(("sizes", "casts"), [({2: H, 3: W}, 0), ({0: N}, 2)])
def test_a_mean_of_halves_for_a_dynamic_batch_is_computed_in_float32(
    sizes: dict[int, Dim], casts: int, kinds: Counter[str]
) -> None:
    x = torch.randn(3, 5, 4, 6).half()
    dimorder.lower(Average(), (x,), target="xnnpack", input_orders="NHWC", dynamic_shapes=(sizes,))
    assert kinds["Convert"] == casts
