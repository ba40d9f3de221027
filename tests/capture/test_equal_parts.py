"""Equal parts of a dynamic size are views: each part is that of `chunk` or `split`, along any dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from dimorder.capture.equal_parts import EqualParts


class Parts(nn.Module):
    def __init__(self, divide: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        self.divide = divide

    def forward(self, x: Tensor) -> list[Tensor]:
        return [part * (i + 1.5) for i, part in enumerate(self.divide(x))]


@pytest.mark.parametrize("dim", [2, -1, 1, -2])
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_along_a_dimension_are_torchs(dim: int, parts: int) -> None:
    network, width = Parts(lambda x: x.chunk(parts, dim)), 6 * Dim("W", min=1, max=4)
    other = ({dim % 3: width},)
    shape = [2, 5, 7]
    shape[dim] = 12
    with EqualParts():
        program = torch.export.export(network, (torch.randn(shape),), dynamic_shapes=other)
    for size in (6, 12, 24):
        shape[dim] = size
        x = torch.randn(shape)
        for got, wanted in zip(program.module()(x), network(x), strict=True):
            assert torch.equal(got, wanted)


def test_parts_of_half_a_size_are_torchs() -> None:
    network = Parts(lambda x: x.split(x.shape[-1] // 2, -1))
    sizes = ({1: 2 * Dim("W", min=1, max=9)},)
    with EqualParts():
        program = torch.export.export(network, (torch.randn(3, 8),), dynamic_shapes=sizes)
    x = torch.randn(3, 14)
    for got, wanted in zip(program.module()(x), network(x), strict=True):
        assert torch.equal(got, wanted)


def test_a_number_has_no_parts() -> None:
    with EqualParts(), pytest.raises(RuntimeError, match="dimension"):
        torch.tensor(1.0).chunk(2)
