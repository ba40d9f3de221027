"""Slices of computed sizes: torch's length of them is checked at the ends of the ranges."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.errors import UnsupportedError

SIZES = ({1: Dim("C", min=1, max=9), 2: Dim("W", min=2, max=11)},)


class Cut(nn.Module):
    def __init__(self, cut: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(x.flatten()) * 2.0


@pytest.mark.parametrize(
    ("cut", "length"),
    [
        (lambda x: x[:20], "20"),
        (lambda x: x[-20:], "20"),
        (lambda x: x[2:20:2], "9"),
        (lambda x: x[:-20], "-18"),
        (lambda x: x[:20].median(), "20"),
    ],
)
def test_a_slice_that_torch_measures_by_the_example_is_refused(
    cut: Callable[[Tensor], Tensor], length: str
) -> None:
    with pytest.raises(UnsupportedError, match=r"aten\.slice.*, at C = 1, W = 2") as refused:
        dimorder.lower(Cut(cut), (torch.randn(1, 6, 7),), target="torch", dynamic_shapes=SIZES)
    assert refused.value.found.startswith("a slice of a size of 2, of which")
    assert f"says that {length} are left" in refused.value.found


def test_a_slice_that_takes_as_many_at_all_sizes_is_lowered() -> None:
    network, sizes = Cut(lambda x: x[2:20:2]), ({1: Dim("C", min=4, max=9), 2: Dim("W", min=5, max=11)},)
    lowered = dimorder.lower(network, (torch.randn(1, 6, 7),), target="torch", dynamic_shapes=sizes)
    x = torch.randn(1, 4, 5)
    torch.testing.assert_close(lowered(x), network(x))
