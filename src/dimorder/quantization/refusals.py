"""Say in three lines why torchao, or a quantizer, could not take a network to integers."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from dimorder.errors import DimorderError, UnsupportedError, summary


def not_observed(example: int, error: Exception, runs: bool = False) -> UnsupportedError:
    """Return the error for an example on which an observer, or the network itself, raised.

    `runs` says that the float network takes the example, so that what was prepared raised.

    >>> print(not_observed(3, IndexError("index out of range in self")))
    example 3 of the calibration
      found: the network raised IndexError: index out of range in self
      fix: give examples that the network takes: model(*example) must run in PyTorch
    """
    where = f"example {example} of the calibration"
    if _is_of_numbers(error):
        fix = "leave the example out, since the network makes no numbers of it, or lower it in float"
        return UnsupportedError(where, summary(error), fix)
    if runs:
        fix = "write the operator in other operators, or lower the network in float"
        return UnsupportedError(where, f"the network with observers raised {summary(error)}", fix)
    fix = "give examples that the network takes: model(*example) must run in PyTorch"
    return UnsupportedError(where, f"the network raised {summary(error)}", fix)


def _is_of_numbers(error: Exception) -> bool:
    """Return whether an observer of torchao raised, of NaN or of infinities."""
    frames = traceback.extract_tb(error.__traceback__)
    observes = bool(frames) and "torchao" in frames[-1].filename
    return observes and re.search(r"\bnan\b|not finite", str(error)) is not None


@contextmanager
def explained_by_pass(tool: str) -> Iterator[None]:
    """Raise what a pass raises in three lines: the tool, the pass and its operator; the cause; the fix.

    >>> with explained_by_pass("quantizer A"):
    ...     raise KeyError("scale")
    Traceback (most recent call last):
    dimorder.errors.UnsupportedError: quantizer A
      found: KeyError: 'scale'
      fix: write the operator in other operators, or lower the network in float
    """
    try:
        yield
    except (DimorderError, ImportError):
        raise
    except Exception as error:  # a pass may raise anything
        chain = [error]
        while isinstance(cause := chain[-1].__cause__ or chain[-1].__context__, Exception):
            chain.append(cause)
        text = "\n".join(map(str, chain))
        passes = re.findall(r"when running the '(\w+)' pass", text)[-1:]
        operators = re.findall(r"While executing .*?target=(?:torch\.ops\.)?([\w.]+)", text)[-1:]
        where = [tool, *(f"pass {name}" for name in passes), *operators]
        fix = "write the operator in other operators, or lower the network in float"
        raise UnsupportedError(", ".join(where), summary(chain[-1]), fix) from error
