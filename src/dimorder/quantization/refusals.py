"""Say in three lines why a network could not be observed."""

from __future__ import annotations

import re
import traceback

from dimorder.errors import UnsupportedError


def not_observed(example: int, error: Exception) -> UnsupportedError:
    """Return the error for an example on which an observer, or the network itself, raised.

    >>> print(not_observed(3, IndexError("index out of range in self")))
    example 3 of the calibration
      found: the network raised IndexError: index out of range in self
      fix: give examples that the network takes: model(*example) must run in PyTorch
    """
    where = f"example {example} of the calibration"
    if _is_of_numbers(error):
        fix = "give examples of which the network makes numbers, or lower it in float"
        return UnsupportedError(where, _first_line(error), fix)
    fix = "give examples that the network takes: model(*example) must run in PyTorch"
    return UnsupportedError(where, f"the network raised {_first_line(error)}", fix)


def _is_of_numbers(error: Exception) -> bool:
    """Return whether an observer of torchao raised, of NaN or of infinities."""
    frames = traceback.extract_tb(error.__traceback__)
    observes = bool(frames) and "torchao" in frames[-1].filename
    return observes and re.search(r"\bnan\b|not finite", str(error)) is not None


def _first_line(error: Exception) -> str:
    """Return the type of an error, and the first line of its text that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
