"""Define dimorder's errors: three lines, which say where, what was found, and what to do.

Callers tell the subclasses apart. The CLI exits with 2 for `UsageError`, and with 1 for the others.
"""

from __future__ import annotations

import operator
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class DimorderError(Exception):
    """Base of every error that dimorder raises on purpose.

    Args:
        where: the operator, tensor, argument or file.
        found: what was found there.
        fix: what the user can do.

    >>> print(DimorderError("input 'x'", "4 dims", "pass a tensor of 3 dims"))
    input 'x'
      found: 4 dims
      fix: pass a tensor of 3 dims
    """

    def __init__(self, where: str, found: str, fix: str) -> None:
        super().__init__(where, found, fix)
        self.where, self.found, self.fix = (" ".join(part.split()) for part in (where, found, fix))

    def __str__(self) -> str:
        return f"{self.where}\n  found: {self.found}\n  fix: {self.fix}"


class UsageError(DimorderError):
    """An argument that cannot be right: no such order, no such file, an impossible shape."""


class ContractError(DimorderError):
    """A tensor or a file that does not keep a program's contract."""


class UnsupportedError(DimorderError):
    """A valid program that dimorder, or the chosen target, cannot handle."""


class VerificationError(DimorderError):
    """A lowered program that does not compute what the original computes."""


class ExportError(VerificationError):
    """A network from which torch.export makes a program of other numbers, as of an `if` on a dynamic size."""


class StageError(DimorderError):
    """A stage of the pipeline that does not keep its own promise: a mistake in dimorder."""


def summary(error: BaseException) -> str:
    """Return another library's error as one short line: its type, and the first line of its text.

    >>> summary(ValueError("no such size: 3\\n  in forward"))
    'ValueError: no such size: 3'
    """
    said = first_line(error)[:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def first_line(text: object) -> str:
    """Return the first line of a text, or of an error's, that is not blank."""
    return next((line.strip() for line in str(text).splitlines() if line.strip()), "")


def install_of(*extras: str) -> str:
    """Return the command that installs dimorder with these extras.

    >>> install_of("executorch", "tosa")
    "in dimorder's folder: pip install '.[executorch,tosa]'"
    """
    what = f"'.[{','.join(extras)}]'" if extras else "."
    return f"in dimorder's folder: pip install {what}"


def require_type(value: object, kinds: type | tuple[type, ...], where: str, fix: str) -> None:
    """Raise `UsageError` for a value of another type.

    >>> require_type("NHWC", int, "rank 'NHWC'", "give the number of dims")
    Traceback (most recent call last):
    dimorder.errors.UsageError: rank 'NHWC'
      found: a str
      fix: give the number of dims
    """
    if not isinstance(value, kinds):
        raise UsageError(where, f"a {type(value).__name__}", fix)


def as_int(value: Any, where: str, fix: str) -> int:
    """Return a value that counts as an int. Raises `UsageError` for any other.

    >>> as_int(True, "rank", "give the number of dims"), as_int(4, "rank", "give the number of dims")
    (1, 4)
    """
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(where, f"{value!r:.60}, which is not an int", fix) from None


@contextmanager
def installed(where: str, install: str) -> Iterator[None]:
    """Raise a missing module as an error of three lines, the last of which is the install command.

    >>> with installed("target counted", "pip install counted"):
    ...     import no_such_module
    Traceback (most recent call last):
    dimorder.errors.UnsupportedError: target counted
      found: not all that it needs is installed: No module named 'no_such_module'
      fix: pip install counted
    """
    try:
        yield
    except ImportError as error:
        found = f"not all that it needs is installed: {error}"
        raise UnsupportedError(where, found, install) from error


@contextmanager
def writable(where: str, fix: str) -> Iterator[None]:
    """Raise an error of the file system as a `UsageError`.

    >>> with writable("-o missing/net.pte", "name a folder that exists"):
    ...     open("missing/net.pte", "w")
    Traceback (most recent call last):
    dimorder.errors.UsageError: -o missing/net.pte
      found: cannot be written: No such file or directory
      fix: name a folder that exists
    """
    try:
        yield
    except OSError as error:
        raise UsageError(where, f"cannot be written: {_reason(error)}", fix) from error


def _reason(error: OSError) -> str:
    """Return the reason of an error of the file system: the first one if `shutil` reports many files."""
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        _, file, reason = error.args[0][0]
        return f"{reason} ({file})" if str(file) not in str(reason) else str(reason)
    return error.strerror or str(error)
