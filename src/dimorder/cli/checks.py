"""Decides which kinds of file `dimorder check` reads. It knows them by their content, not by their name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dimorder.errors import UsageError


class Finding(Protocol):
    """What was found: printed as it is, or written as JSON."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Kind:
    """A kind of file: the four bytes that a flatbuffer of it has at byte 4, and what reads it."""

    name: str
    identifier: bytes
    read: Callable[[bytes], Finding]


def check(path: str) -> Finding:
    """What the file holds. Raises `UsageError` for one that is missing, damaged or of no known kind."""
    where = f"check {path}"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(where, str(error.strerror or error), "give the path of a .tosa file") from error
    kind = next((kind for kind in KINDS if data[4:8] == kind.identifier), None)
    if kind is None:
        names = " or ".join(kind.name for kind in KINDS)
        raise UsageError(where, f"{len(data)} bytes that do not begin as {names} does", f"give {names}")
    try:
        return kind.read(data)
    except UsageError as error:
        raise UsageError(where, error.found, error.fix) from error


def _tosa(data: bytes) -> Finding:
    from dimorder.targets.tosa import inspect_tosa

    return inspect_tosa(data)


KINDS = (Kind("a .tosa graph", b"TOSA", _tosa),)
