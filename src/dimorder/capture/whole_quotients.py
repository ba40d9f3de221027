"""Compute a quotient of sizes that is rounded to a whole number in integers, as torch.export traces it.

A same padding takes `math.ceil(size / stride)`. torch 2.13 keeps it as a rounded float. It proves nothing of
floats inside floats, one for each stride, and takes minutes. Floor divisions of integers merge into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import SymFloat, SymInt

_PARTS = "_dimorder_parts"


@contextmanager
def whole_quotients() -> Iterator[None]:
    """Let `math.ceil` and `math.floor` of a quotient of sizes be divisions of integers.

    >>> import math
    >>> import torch
    >>> class Halves(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x[: math.ceil(x.shape[0] / 2)]
    >>> sizes = ({0: torch.export.Dim("N", min=4, max=8)},)
    >>> with whole_quotients():
    ...     program = torch.export.export(Halves(), (torch.ones(7),), dynamic_shapes=sizes)
    >>> "truediv" in str(program.graph), program.module()(torch.ones(5)).shape
    (False, torch.Size([3]))
    """
    with ExitStack() as methods:
        for (owner, name), write in _METHODS.items():
            methods.enter_context(patch.object(owner, name, write(getattr(owner, name))))
        yield


def _divide(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a division that notes the integers on its result, if the divisor is fixed and above 0."""

    def divide(self: SymInt, other: Any) -> Any:
        quotient = original(self, other)
        if isinstance(quotient, SymFloat) and type(other) is int and other > 0:
            setattr(quotient, _PARTS, (self, other))
        return quotient

    return divide


def _round(of_parts: Callable[[SymInt, int], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def write(original: Callable[..., Any]) -> Callable[..., Any]:
        def rounded(self: SymFloat) -> Any:
            parts = getattr(self, _PARTS, None)
            return original(self) if parts is None else of_parts(*parts)

        return rounded

    return write


def _up(size: SymInt, divisor: int) -> Any:
    return -(-size // divisor)


def _down(size: SymInt, divisor: int) -> Any:
    return size // divisor


_METHODS: Any = {
    (SymInt, "__truediv__"): _divide,
    (SymFloat, "__ceil__"): _round(_up),
    (SymFloat, "__floor__"): _round(_down),
}
