"""Test that what a network computes under torch.set_grad_enabled is lowered like its other calls."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import dimorder

SHAPE = (2, 3, 5, 7)


class Returned(nn.Module):
    """The result is what the block computes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return self.conv(x)


class Nested(Returned):
    """One block is in another, results are returned twice, and one is what the block was given."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            y = self.conv(x)
            with torch.no_grad():
                z = y * 2
            chosen = torch.cond(z.sum() > 0, lambda a: a + 1, lambda a: a * 3, (z,))
        return x, y, chosen, y


class Writes(nn.Module):
    """A block writes a buffer and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(1, 2, 7))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            self.scale.mul_(1.5)
            y = x * self.scale
            first = y[:, :1]
            first.add_(1)
        first.mul_(2)
        return y


class Sized(Returned):
    """A block computes a size."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = self.conv(torch.cat([x, x * 2]))
            count = y.shape[0]
        return y.reshape(count, -1) * 2


@pytest.mark.parametrize("network", [Returned, Nested, Writes])
def test_it_computes_what_pytorch_does(network: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = network().eval()
    lowered, eager = dimorder.lower(model, (torch.randn(SHAPE),)), copy.deepcopy(model)
    for scale in (1, -2, 3):
        x = torch.randn(SHAPE) * scale
        torch.testing.assert_close(lowered(x), eager(x).detach() if network is not Nested else eager(x))


def test_dynamic_sizes_pass_through_the_block() -> None:
    torch.manual_seed(0)
    model, sizes = Sized().eval(), ({0: torch.export.Dim("N", min=1, max=5)},)
    lowered = dimorder.lower(model, (torch.randn(SHAPE),), dynamic_shapes=sizes)
    for count in (1, 5, 3):
        x = torch.randn(count, *SHAPE[1:])
        torch.testing.assert_close(lowered(x), model(x))
