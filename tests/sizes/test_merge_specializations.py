"""Sizes at which a network is another one are tried, and such a network is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

import dimorder
from dimorder.errors import VerificationError
from dimorder.sizes.export_symbolic import export_symbolic
from dimorder.sizes.merge_specializations import broadcast_row
from tests.sizes.symbols import BATCH, errors, refusal


def test_an_even_size_is_tried_where_all_others_are_odd() -> None:
    symbolic = export_symbolic(nn.ReLU(), (torch.randn(2, 9),), None, ({1: Dim("L", min=3, max=41)},))
    assert symbolic is not None
    assert [point["L"] for point in symbolic.verification_points] == [3, 41, 11, 10]


def test_a_remainder_of_a_size_is_computed_in_each_call() -> None:
    class Halved(nn.Module):
        """At even sizes another network, which no operator shows."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (torch.arange(x.shape[1]) + 1) * (x.shape[1] % 2)

    dims = ({1: Dim("L", min=3, max=41)},)
    lowered = dimorder.lower(Halved(), (torch.randn(2, 9),), dynamic_shapes=dims)
    for length in (3, 4, 10, 41):
        assert max(errors(lowered, Halved(), torch.randn(2, length))) == 0


def test_a_size_is_tried_at_which_a_number_is_another_one() -> None:
    class Paged(nn.Module):
        """Twice as large where the last place of a page of 40 is taken."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (1 + (x.shape[1] % 40) // 39)

    dims = ({1: Dim("L", min=3, max=44)},)
    with pytest.raises(VerificationError, match="at L = 39"):
        dimorder.lower(Paged(), (torch.randn(2, 9),), dynamic_shapes=dims)


def test_a_network_that_takes_another_way_at_some_size_is_refused() -> None:
    class Halved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() if x.shape[0] % 2 else x.sigmoid()

    first, found, fix = refusal(Halved(), torch.ones(4, 3), BATCH)
    assert first == "torch.export of Halved" and "N" in found and fix.startswith("  fix: give sizes that")


def test_rows_that_differ_by_roundings_are_one_row() -> None:
    row = torch.randn(1, 24)
    assert broadcast_row([row.repeat(3, 1), row.repeat(5, 1) * (1 + 3e-7)]) is not None
    assert broadcast_row([row.repeat(3, 1), row.repeat(5, 1) + 1e-4]) is None


def test_a_mask_hides_no_difference_of_what_it_leaves() -> None:
    """Beside -1e9, the distances to the last place are as small as roundings."""
    masks = [torch.full((count, 8), -1e9) for count in (3, 5)]
    for mask in masks:
        mask[:, :4] = torch.arange(4.0) - len(mask)
    assert broadcast_row(masks) is None
