"""A network may catch the error of a part that it calls."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.verification.relative_error import relative_error


class Scaled(nn.Module):
    """Refuses lengths too, but inside a part, after it has begun to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 4)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return torch.as_tensor(self.inner(x * 2, lengths) if lengths is not None else self.inner(x))


class Tries(nn.Module):
    """Calls each part with lengths, and without them if that raises an error."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList([nn.Conv1d(3, 6, 3), nn.Conv1d(6, 7, 2), Scaled()])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            try:
                x = part(x, lengths=torch.ones(2))
            except TypeError:
                x = part(x)
        return x


@pytest.mark.parametrize("sizes", [None, ({0: torch.export.Dim("N", min=1, max=9)},)])
def test_a_part_is_called_again_after_its_error_was_caught(sizes: object) -> None:
    model = Tries().eval()
    lowered = dimorder.lower(model, (torch.randn(2, 3, 8),), target="torch", dynamic_shapes=sizes)
    x = torch.randn(2, 3, 8)
    assert relative_error(lowered(x), model(x)) < 1e-5
