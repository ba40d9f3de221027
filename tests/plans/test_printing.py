"""Test what the texts of programs say of many dimensions and of dynamic sizes."""

from __future__ import annotations

import torch
from torch import nn

import dimorder


class Turned(nn.Module):
    """The last of eleven dimensions comes first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(10, *range(10)).relu()


class Half(nn.Module):
    """The upper half of what a convolution makes of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)[:, :, : x.shape[2] // 2]


def test_orders_of_more_than_ten_dimensions_are_numbers_apart() -> None:
    x = torch.randn(2, 1, 3, 1, 1, 2, 1, 1, 1, 2, 5)
    first, *_ = dimorder.lower(Turned(), (x,), target="torch").text("physical").splitlines()
    assert "  0 1 2 3 4 5 6 7 8 9 10  " in first


def test_a_slice_to_a_dynamic_size_says_it_in_the_names_of_the_contract() -> None:
    rows = ({2: 2 * torch.export.Dim("H", min=4, max=16)},)
    lowered = dimorder.lower(Half(), (torch.randn(1, 3, 12, 7),), dynamic_shapes=rows, target="torch")
    assert "slice(conv2d, dim 1, 0:H/2)" in lowered.text("physical")
