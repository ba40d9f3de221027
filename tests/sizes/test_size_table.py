"""Sizes are looked up by their values at several points, where one size may pass for another by chance."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.export import Dim

from dimorder.sizes.affine import Formula
from dimorder.sizes.export_symbolic import export_symbolic

POINTS = [{"N": 3, "H": 23}, {"N": 4, "H": 29}, {"N": 2, "H": 14}]
BATCHES, HEIGHTS, QUARTERS, DOUBLED = (3, 4, 2), (23, 29, 14), (5, 7, 3), (10, 14, 6)


class Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        quarter = nn.functional.max_pool2d(nn.functional.max_pool2d(x, 2), 2)
        return nn.functional.interpolate(quarter, scale_factor=2)


def test_a_formula_that_holds_at_the_points_alone_is_none_of_the_size() -> None:
    dims = ({0: Dim("N", min=1, max=4), 2: Dim("H", min=9, max=40)},)
    program = export_symbolic(Halves(), (torch.randn(3, 2, 23, 16),), None, dims)
    assert program is not None
    table = program.table(POINTS)
    assert table.fit(QUARTERS, [BATCHES, HEIGHTS]) is None  # it is not 2 * N - 1
    assert table.fit(DOUBLED, [BATCHES, HEIGHTS]) is None
    assert table.fit(DOUBLED, [BATCHES, QUARTERS]) == Formula(2, (1,), 0)
    compute = table.formula(DOUBLED, [BATCHES, HEIGHTS])
    assert compute is not None and compute([1, 9]) == 4
    # The table does not know this one.
    assert table.fit((9, 12, 6), [BATCHES, HEIGHTS]) == Formula(3, (0,), 0)


class Quarter(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, ::4].relu()


def test_dimensions_that_a_view_may_join_are_known_by_their_product() -> None:
    dims = ({0: Dim("N", min=1, max=9), 1: Dim("T", min=4, max=40)},)
    program = export_symbolic(Quarter(), (torch.randn(3, 11),), None, dims)
    assert program is not None
    batches, quarters = (3, 5, 7, 7), (3, 4, 6, 6)
    points = [{"N": n, "T": t} for n, t in zip(batches, (11, 13, 22, 23), strict=True)]
    table, joined = program.table(points), (9, 20, 42, 42)
    assert table.size(joined) == 3 * 3  # the sizes of the example
    # It is not 11 * (T // 4) - 24.
    assert table.fit(joined, [quarters, batches]) == Formula(1, (0, 1), 0)


class Windows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[2]
        padded = nn.functional.pad(x, (0, 0, 0, (4 - rows % 4) % 4))
        return padded.unflatten(2, (padded.shape[2] // 4, 4))


def test_the_number_of_windows_follows_from_a_size_that_is_computed_from_it() -> None:
    dims = ({2: Dim("H", min=5, max=60)},)
    program = export_symbolic(Windows(), (torch.randn(2, 3, 23, 16),), None, dims)
    assert program is not None
    heights = (23, 29, 13, 37)
    table = program.table([{"H": height} for height in heights])
    windows = tuple(-(-height // 4) for height in heights)
    odd = tuple(2 * count - 1 for count in windows)
    table = replace(table, known={**table.known, odd: 2 * table.known[windows] - 1})
    compute = table.formula(windows, [odd])
    assert compute is not None and compute([2 * 10 - 1]) == 10
