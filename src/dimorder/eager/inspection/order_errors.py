"""Say at which line a network fails in another order than its own.

The most frequent cause is `view`, which cannot merge dimensions that lie apart in memory.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dimorder.errors import DimorderError, UnsupportedError
from dimorder.modules import eval_mode, left_as_it_was

# Frames of torch and of this package.
_WATCHING = str(Path(__file__).with_name("trace.py"))
_BETWEEN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


@contextmanager
def naming_the_order(model: nn.Module, args: Any, kwargs: Any) -> Iterator[None]:
    """Raise `UnsupportedError` for an error of a network that runs in its own order without one.

    An error that it has in its own order too passes through, and so does one of a watched run.
    """
    try:
        yield
    except DimorderError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        if any(frame.filename == _WATCHING for frame in frames) or not _runs(model, args, kwargs):
            raise
        what = str(error) or type(error).__name__
        fix = "write reshape for view in that line" if "view size" in what else "let that line take any order"
        raise UnsupportedError(
            f"{type(model).__name__}{_line_of(error)}",
            f"it fails only in another order than its own: {what}",
            f"{fix}, or inspect its own order alone: order=None, --order as-is without --compare",
        ) from error


def _runs(model: nn.Module, args: Any, kwargs: Any) -> bool:
    try:
        with left_as_it_was(model, (args, kwargs)), eval_mode(model), torch.no_grad():
            model(*args, **kwargs)
    except Exception:
        return False
    return True


def _line_of(error: Exception) -> str:
    """Return the innermost line outside of torch and of this package, or an empty text."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_BETWEEN):
            return f" ({Path(frame.filename).name}:{frame.lineno})"
    return ""
