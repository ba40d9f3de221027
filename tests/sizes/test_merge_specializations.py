"""Sizes at which a network is another one are tried, and such a network is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

import dimorder
from dimorder.errors import VerificationError
from dimorder.sizes.choose_points import specialization_points, verification_points
from dimorder.sizes.export_symbolic import export_symbolic
from tests.sizes.symbols import BATCH, errors, refusal


def test_an_even_size_is_tried_where_all_others_are_odd() -> None:
    symbolic = export_symbolic(nn.ReLU(), (torch.randn(2, 9),), None, ({1: Dim("L", min=3, max=41)},))
    assert symbolic is not None
    points = verification_points(symbolic, specialization_points(symbolic))
    assert [point["L"] for point in points] == [3, 41, 11, 10]


def test_a_remainder_of_a_size_is_computed_in_each_call() -> None:
    class Halved(nn.Module):
        """At even sizes another network, which no operator shows."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (torch.arange(x.shape[1]) + 1) * (x.shape[1] % 2)

    dims = ({1: Dim("L", min=3, max=41)},)
    lowered = dimorder.lower(Halved(), (torch.randn(2, 9),), dynamic_shapes=dims)
    for length in (3, 4, 10, 41):
        assert max(errors(lowered, Halved(), torch.randn(2, length))) == 0


class Paged(nn.Module):
    """Twice as large where the last place of a page is taken."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.places = places

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.round().int() * (1 + (x.shape[1] % self.places) // (self.places - 1))


def test_a_size_is_planned_at_which_a_number_is_another_one() -> None:
    dims = ({1: Dim("L", min=3, max=44)},)
    lowered = dimorder.lower(Paged(40), (torch.randn(2, 9),), dynamic_shapes=dims)
    for length in (38, 39, 40, 3, 44):
        assert max(errors(lowered, Paged(40), 3 * torch.randn(2, length))) == 0


def test_a_size_is_tried_at_which_a_number_is_another_one() -> None:
    """No size is planned where the number of a long page differs."""
    dims = ({1: Dim("L", min=3, max=900)},)
    with pytest.raises(VerificationError, match="differs from PyTorch"):
        dimorder.lower(Paged(400), (torch.randn(2, 9),), dynamic_shapes=dims)


def test_a_network_that_takes_another_way_at_some_size_is_refused() -> None:
    class Halved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() if x.shape[0] % 2 else x.sigmoid()

    first, found, fix = refusal(Halved(), torch.ones(4, 3), BATCH)
    assert first.startswith("torch.export of Halved (test_merge_specializations.py:")
    assert "N" in found and fix.startswith("  fix: give sizes that")


def test_what_differs_by_little_from_size_to_size_is_no_repeated_row() -> None:
    class Counted(nn.Module):
        """Adds the number of the row to numbers beside which it is as small as a rounding."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + (1e7 + torch.arange(x.shape[1]))[None, :, None] - 1e7

    dims = ({1: Dim("L", min=3, max=41)},)
    lowered = dimorder.lower(Counted(), (torch.randn(2, 9, 5),), dynamic_shapes=dims)
    for length in (3, 10, 41):
        assert max(errors(lowered, Counted(), torch.randn(2, length, 5))) == 0
