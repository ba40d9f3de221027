"""Say in errors at which sizes they were found, and which operator does not accept these sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dimorder.errors import DimorderError, UnsupportedError
from dimorder.sizes.symbolic_program import Point, SymbolicProgram, format_point


@contextmanager
def at_point(point: Point) -> Iterator[None]:
    """Say in an error at which sizes it was found."""
    try:
        yield
    except DimorderError as error:
        raise type(error)(f"{error.where}, at {format_point(point)}", error.found, error.fix) from error


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
        found = next(iter(str(error).splitlines()), "")
        if not isinstance(error, RuntimeError) and not found.startswith("Guard failed"):  # torch's own words
            raise
        fix = "narrow the range of sizes, or make the network take them all"
        raise UnsupportedError(f"the network at {format_point(point)}", found, fix) from error
