"""Say in errors at which sizes they were found, and which operator does not accept these sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dimorder.errors import (
    DimorderError,
    ExportError,
    StageError,
    UnsupportedError,
    VerificationError,
    first_line,
)
from dimorder.sizes.choose_points import are_enough
from dimorder.sizes.symbolic_program import Point, SymbolicProgram, format_point


@contextmanager
def at_point(point: Point) -> Iterator[None]:
    """Say in an error at which sizes it was found."""
    try:
        yield
    except DimorderError as error:
        raise type(error)(f"{error.where}, at {format_point(point)}", error.found, error.fix) from error


@contextmanager
def explained_by_points(sizes: SymbolicProgram | None, points: Sequence[Point]) -> Iterator[None]:
    """Say of an error of a wrong program that the ranges have too few sizes to plan for, if they have.

    Raises:
        UnsupportedError: instead of that error.
    """
    try:
        yield
    except (VerificationError, StageError) as error:
        if sizes is None or isinstance(error, ExportError) or are_enough(sizes, points):
            raise
        found = f"too few sizes in {sizes.ranges}: deep in the network, one is always 1 or one other number"
        fix = "give wider ranges, or ranges in which it is always that number, or fix a size"
        raise UnsupportedError("the ranges of sizes", found, fix) from error


@contextmanager
def explained_at(point: Point, sizes: SymbolicProgram) -> Iterator[None]:
    """Say of an error at a point which operator does not accept these sizes.

    Raises:
        UnsupportedError: for that operator, or with what torch says.
    """
    try:
        yield
    except Exception as error:
        sizes.require(point)
        found = first_line(error)
        if not isinstance(error, RuntimeError) and not found.startswith("Guard failed"):  # torch's own words
            raise
        fix = "narrow the range of sizes, or make the network take them all"
        raise UnsupportedError(f"the network at {format_point(point)}", found, fix) from error
