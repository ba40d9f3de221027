"""Numbers are explained by sizes in one module."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import dimorder
from dimorder.contract import Symbol
from dimorder.sizes.affine import (
    AffineFunction,
    Formula,
    corner_weights,
    fit_affine,
    fit_formula,
    fit_quotient,
    is_affine,
)

SIZES = st.lists(st.integers(1, 999), min_size=3, max_size=3, unique=True)


@given(SIZES, st.integers(1, 99), st.integers(-99, 99))
def test_an_affine_function_is_found(sizes: list[int], factor: int, offset: int) -> None:
    values = [factor * size + offset for size in sizes]
    assert fit_affine(values, sizes) == AffineFunction(Fraction(factor), Fraction(offset))
    found = fit_formula(values, [sizes])
    assert found is not None and [found([size]) for size in sizes] == values


@given(SIZES, st.integers(2, 9))
def test_a_floor_is_found_and_is_no_affine_function(sizes: list[int], divisor: int) -> None:
    sizes = [divisor * size + 1 for size in sizes]
    values = [size // divisor for size in sizes]
    found = fit_quotient(values, [sizes])
    assert found is not None and [found([size]) for size in sizes] == values


@given(SIZES)
def test_a_square_is_no_affine_function(sizes: list[int]) -> None:
    assert not is_affine([size * size for size in sizes], sizes)


@given(st.integers(1, 16), st.integers(2, 9))
def test_corners_predict_what_is_affine_in_each_size(first: int, second: int) -> None:
    symbols = [Symbol("N", 1, 16), Symbol("L", 2, 9)]

    def cost(n: int, length: int) -> int:
        return 3 * n * length + 5 * n - 7 * length + 11

    corners = [cost(n, length) for n in (1, 16) for length in (2, 9)]
    weights = corner_weights(symbols, {"N": first, "L": second})
    assert sum(w * corner for w, corner in zip(weights, corners, strict=True)) == cost(first, second)


def test_no_other_module_fits_sizes() -> None:
    folder = Path(dimorder.__file__).parent
    fits = [file for file in folder.rglob("*.py") if "Fraction(" in file.read_text() and "sizes" in str(file)]
    assert [file.name for file in fits] == ["affine.py"]


def test_a_fixed_number_less_a_size_is_likelier_than_a_product() -> None:
    windows, remainders, others = (8, 12, 16, 16), (2, 1, 0, 3), (4, 4, 5, 0)
    found = fit_formula((8, 4, 0, 0), [windows, remainders, others])
    assert found == Formula(-1, (0,), 16)


def test_a_product_is_likelier_than_a_line_through_two_values() -> None:
    remainder, batch, depth = (0, 1, 1), (5, 3, 2), (4, 2, 3)
    product = Formula(1, (1, 2), 0)
    assert fit_formula((20, 6, 6), [remainder, batch, depth]) == product
    assert fit_formula((20, 6, 6), [remainder]) == Formula(-14, (0,), 20)
    assert fit_formula((0, 6, 6), [remainder, batch, depth]) == Formula(6, (0,), 0)
