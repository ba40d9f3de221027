"""A network of float16 is computed in float32 between casts, and its weights are stored as float16."""

from __future__ import annotations

import torch
from torch import nn

import dimorder
from dimorder.targets.litert.file import operators
from tests.targets.cases import Net
from tests.zoo import perturb


def test_a_network_of_float16_is_right_and_half_as_large() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1),
        nn.Hardswish(),
        nn.Conv2d(32, 64, 1),
        nn.GELU(),
        nn.Flatten(2),
        nn.Linear(24, 50),
        nn.Softmax(-1),
    )
    perturb(net.eval())
    x = torch.randn(1, 3, 8, 12)
    large = dimorder.lower(net, (x,), target="litert")
    small = dimorder.lower(net.half(), (x.half(),), target="litert")
    found = operators(small.artifact.data)
    assert (found["CAST"], found["DEQUANTIZE"]) == (2, 3)
    assert len(small.artifact.data) < 0.7 * len(large.artifact.data)
    got, wanted = small(x.half()), net(x.half())
    assert got.dtype == torch.float16 and (got - wanted).abs().max() <= 2e-3 * wanted.abs().max()


def test_a_cast_of_the_network_rounds() -> None:
    class Rounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.half().float() - x

    x = torch.tensor([0.1, 0.2, 1 / 3])
    lowered = dimorder.lower(Rounded(), (x,), target="litert")
    assert torch.equal(lowered(x), Rounded()(x))


def test_the_limits_of_numbers_are_those_of_their_type() -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.5], dtype=torch.float16)
    lowered = dimorder.lower(Net(torch.nan_to_num), (x,), target="litert")
    assert lowered(x).tolist() == [65504.0, -65504.0, 0.0, 1.5]
