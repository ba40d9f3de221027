"""Test operators that Ethos-U55 has for one image alone, or not along the last dimension."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")
pytest.importorskip("ethosu")

import dimorder
from tests.small_networks import Net

CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "doubled": (lambda x: F.interpolate(x, scale_factor=2), (2, 3, 5, 7)),
    "doubled twice": (lambda x: F.interpolate(x, size=(20, 28)), (3, 6, 5, 7)),
    "one image reversed": (lambda x: x.flip(3), (1, 3, 5, 7)),
    "matrix reversed": (lambda x: x.flip(1), (5, 7)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_ethos_u55_computes_in_another_form(name: str) -> None:
    compute, shape = CASES[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    net = Net(lambda m, x: compute(x) * 0.7)
    quantized = dimorder.quantize(net, [x, 0.8 * x], target="ethos-u55-128")
    lowered = dimorder.lower(quantized, (x,), target="ethos-u55-128")
    (found,) = quantized.compare(lowered)
    assert found.quanta <= 1 and found.snr_db is not None and found.snr_db > 30
