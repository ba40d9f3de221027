"""A size inside a network may be 1 at some sizes, and another size at the example's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.verification.relative_error import relative_error
from tests.marks import require_runtime


class Activated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).relu()
        return torch.as_tensor(self.linear((y + y.mean(3, keepdim=True)).mean((2, 3))))


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_a_size_after_a_convolution_may_be_1_before_an_activation(target: str) -> None:
    if target != "torch":
        require_runtime(target)
    model, sizes = Activated().eval(), ({2: Dim("H", min=3, max=18), 3: Dim("W", min=3, max=20)},)
    lowered = dimorder.lower(model, (torch.randn(2, 3, 16, 10),), target=target, dynamic_shapes=sizes)
    for high, wide in ((3, 3), (18, 20), (3, 20), (18, 3), (4, 3), (3, 3)):
        x = torch.randn(2, 3, high, wide)
        assert relative_error(lowered(x), model(x)) < 1e-5
