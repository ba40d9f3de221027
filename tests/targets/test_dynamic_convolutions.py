"""Test convolutions that quantise as the program runs: a picture by one scale, or each pixel by its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

pytest.importorskip("executorch")

import dimorder
from tests.small_networks import OneInput

PIXELS = nn.Conv2d(6, 5, 1)
CASES: dict[str, nn.Module] = {
    "of pixels": PIXELS,
    "of pixels, without a bias": nn.Conv2d(6, 5, 1, bias=False),
    "of pixels in groups": nn.Conv2d(6, 8, 1, groups=2),
    "of pixels with a stride": nn.Conv2d(6, 5, 1, stride=2),
    "of pixels and padding": nn.Conv2d(6, 5, 1, padding=1),
    "of taps, before ReLU": nn.Sequential(nn.Conv2d(6, 5, 3), nn.ReLU()),
    "of pixels, clamped": nn.Sequential(PIXELS, nn.ReLU6()),
    "of taps": nn.Conv2d(6, 5, 3),
    "of pixels, and of taps": OneInput(
        lambda m, x: (m.one(x), m.nine(x)), one=PIXELS, nine=nn.Conv2d(6, 5, 3)
    ),
    "transposed": nn.ConvTranspose2d(6, 5, 1),
}


@pytest.mark.parametrize("sizes", [None, ({0: Dim("N", min=1, max=5), 2: Dim("H", min=4, max=12)},)])
@pytest.mark.parametrize("name", CASES)
def test_a_convolution(name: str, sizes: Any) -> None:
    torch.manual_seed(4)
    x, net = torch.randn(2, 6, 7, 9), CASES[name].eval()
    quantized = dimorder.quantize(
        net, None, "int8-dynamic", target="xnnpack", args=(x,), dynamic_shapes=sizes
    )
    lowered = dimorder.lower(quantized, (x,), target="xnnpack")
    found = quantized.compare(lowered)
    assert all(each.snr_db is not None and each.snr_db > 35 for each in found)
    assert lowered.artifact.delegates == 1
