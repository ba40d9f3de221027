"""Test what cannot be quantised: each error has three lines."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.errors import UnsupportedError, UsageError


class Halved(nn.Module):
    """A linear of half a bias, which a pass of the quantizer cannot write."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.weight = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(8, 5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight, beta=0.5)


def test_an_error_in_a_pass_of_the_quantizer_has_three_lines() -> None:
    with pytest.raises(UnsupportedError) as refused:
        dimorder.quantize(Halved(), [torch.randn(3, 8)] * 2, target="tosa")
    assert str(refused.value).splitlines() == [
        "quantizer TOSAQuantizer, pass ReplaceScalarWithTensorByProfilePass, aten.mul.Scalar",
        "  found: AttributeError: 'Parameter' object has no attribute 'to_tensor'",
        "  fix: write the operator in other operators, or lower the network in float",
    ]
    assert str(refused.value.__cause__).startswith("An error occurred when running the 'ReplaceScalar")


def test_weights_of_double_precision_are_refused() -> None:
    with pytest.raises(UsageError, match=r"found: weights of torch\.float64"):
        dimorder.quantize(nn.Linear(3, 5).double(), [torch.randn(2, 3, dtype=torch.float64)])
