"""Numbers that a network computes from dynamic sizes by division: the same as PyTorch's at every size."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.sizes.affine import is_affine
from dimorder.sizes.choose_points import specialization_points
from dimorder.sizes.export_symbolic import export_symbolic
from tests.marks import require_runtime
from tests.sizes.symbols import errors

BATCH, LENGTH = Dim("N", min=1, max=6), Dim("L", min=8, max=64)


def lowered_right(
    module: nn.Module, target: str, dims: dict[int, Dim], shapes: Iterable[tuple[int, ...]]
) -> dimorder.Lowered:
    """Lower a network of a sequence, and compare it with PyTorch at these shapes."""
    lowered = dimorder.lower(module, (torch.randn(3, 4, 13),), dynamic_shapes=(dims,), target=target)
    for shape in shapes:
        assert max(errors(lowered, module, torch.randn(shape))) <= 1e-6
    return lowered


def of_length(*lengths: int) -> list[tuple[int, ...]]:
    return [(3, 4, length) for length in lengths]


class Parts(nn.Module):
    """Parts of a sequence whose beginnings, ends or lengths are quotients of its length."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, middle = x.sigmoid(), x.shape[2] // 2
        return (
            y[..., middle:],
            y[..., :middle] + 1,
            y[..., ::2],
            y[..., 1::2] * 2,
            y.narrow(2, middle, 3),
            y.unfold(2, 4, 2).amax(3),
        )


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_parts_by_quotients_of_a_size(target: str) -> None:
    lowered_right(Parts(), target, {2: LENGTH}, of_length(8, 9, 10, 11, 63, 64))


class Rolled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sigmoid().roll(x.shape[2] // 2, 2)


def test_a_roll_by_half_of_a_size() -> None:
    lowered_right(Rolled(), "xnnpack", {2: LENGTH}, of_length(8, 9, 63, 64))


class Halves(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.sigmoid()
        return y[:, :, x.shape[2] // 2 :], y[..., 1::2]


def test_parts_by_quotients_beside_another_dynamic_size() -> None:
    shapes = ((1, 4, 8), (2, 4, 9), (6, 4, 10), (5, 4, 63), (1, 4, 64))
    lowered_right(Halves(), "xnnpack", {0: BATCH, 2: LENGTH}, shapes)


class Padded(nn.Module):
    """A sequence padded to an even length, to a multiple of 4, and to a fixed length."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, length = x.sigmoid(), x.shape[2]
        return F.pad(y, (0, length % 2)), F.pad(y, (0, -length % 4)) + 1, F.pad(y, (0, 64 - length))


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_padding_by_what_a_size_lacks(target: str) -> None:
    lowered_right(Padded(), target, {2: LENGTH}, of_length(8, 9, 10, 11, 63, 64))


class Later(nn.Module):
    """The steps of a sequence without the first ones."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.sigmoid()
        return y[..., 1:] * 2, y[..., 3:].exp()


def test_a_slice_from_a_fixed_place_to_the_end_is_in_the_delegate() -> None:
    shapes = ((1, 4, 8), (2, 4, 9), (6, 4, 64), (5, 4, 63))
    lowered = lowered_right(Later(), "xnnpack", {0: BATCH, 2: LENGTH}, shapes)
    assert (lowered.artifact.delegates, lowered.artifact.outside) == (1, {})


class Spread(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.var(2)


def test_a_variance_over_a_dynamic_size() -> None:
    lowered_right(Spread(), "xnnpack", {2: LENGTH}, of_length(8, 9, 64))


def test_a_division_leaves_different_remainders_at_the_points() -> None:
    symbolic = export_symbolic(Halves(), (torch.randn(3, 4, 13),), None, ({0: BATCH, 2: LENGTH},))
    assert symbolic is not None
    assert {point["L"] % 2 for point in specialization_points(symbolic)} == {0, 1}


def test_the_product_of_two_small_sizes_is_in_line_with_neither() -> None:
    dims = {0: Dim("N", min=1, max=4), 1: Dim("L", min=1, max=6)}
    symbolic = export_symbolic(nn.ReLU(), (torch.randn(2, 5, 8),), None, (dims,))
    assert symbolic is not None
    points = specialization_points(symbolic)
    products = [point["N"] * point["L"] for point in points]
    assert not any(is_affine(products, [point[name] for point in points]) for name in "NL")


class PaddedTwice(nn.Module):
    """Rows and columns that are lost by a pool and a resize are padded, as U-Nets do it."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0)
        rows, columns = x.shape[2] - y.shape[2], x.shape[3] - y.shape[3]
        return torch.cat([x, F.pad(y, [0, columns, 0, rows])], 1)


@pytest.mark.parametrize("target", ["torch", "xnnpack"])
def test_remainders_of_two_sizes_do_not_pass_for_one_another(target: str) -> None:
    dims = {0: Dim("N", min=1, max=4), 2: Dim("H", min=9, max=40), 3: Dim("W", min=11, max=37)}
    module, x = PaddedTwice(), torch.randn(2, 3, 31, 29)
    lowered = dimorder.lower(module, (x,), dynamic_shapes=(dims,), target=target)
    for height, width in ((9, 37), (40, 11), (18, 23), (23, 18), (30, 32), (32, 31)):
        assert max(errors(lowered, module, torch.randn(2, 3, height, width))) == 0


class Places(nn.Module):
    """Places from 0 to 1, where one element is at 0; torch.export keeps the maximum in the graph."""

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[2]
        return x + torch.arange(count) / max(count - 1, 1)


@pytest.mark.parametrize("target", ["torch", "xnnpack", "litert"])
def test_integers_are_divided_by_a_number_that_differs_at_a_size_of_one(target: str) -> None:
    """At the planned sizes the number is n - 1, by which one element would be divided by 0."""
    require_runtime(target)
    dims = {0: BATCH, 2: Dim("L", min=1, max=31)}
    shapes = [(3, 4, 1), (1, 4, 1), (6, 4, 31), (2, 4, 2), (4, 4, 17)]
    lowered_right(Places(), target, dims, shapes)


class Resized(nn.Module):
    """Resizes to numbers of which `int` makes integers of Python: torch.export fixes them without a word."""

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = int(x.shape[2] * 0.5), int(x.shape[3] * 0.75)
        return F.interpolate(x, size=(rows, columns), mode="bilinear").relu()


def test_sizes_that_torch_export_fixes_as_it_defers_assertions_are_traced() -> None:
    dims, module = {2: Dim("H", min=6, max=40), 3: Dim("W", min=8, max=37)}, Resized()
    lowered = dimorder.lower(module, (torch.randn(2, 3, 17, 22),), dynamic_shapes=(dims,), target="torch")
    for height, width in ((6, 8), (40, 37), (9, 22), (17, 11)):
        assert max(errors(lowered, module, torch.randn(2, 3, height, width))) <= 1e-6


class Rounded(nn.Module):
    """Pads to lengths that Python rounds in floats, as `math.ceil` does: up, down and to the nearest."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(4, 5, 8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        length = x.shape[2]
        frames = math.ceil((length - 8) / 4 + 1)
        even = int(length / 8.0 + 0.875) * 8
        middle = (even - length) // 2
        return (
            self.conv(F.pad(x, (0, (frames - 1) * 4 + 8 - length))),
            self.conv(F.pad(x, (middle, even - length - middle))),
            F.pad(x, (0, round(length * 1.5) - length)),
            F.pad(x, (int(length * 0.3), 0)),
        )


@pytest.mark.parametrize("target", ["torch", "xnnpack"])
def test_numbers_that_python_rounds_in_floats(target: str) -> None:
    lowered_right(Rounded().eval(), target, {2: LENGTH}, of_length(8, 9, 10, 11, 12, 13, 30, 63, 64))
