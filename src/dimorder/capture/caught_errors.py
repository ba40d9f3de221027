"""Let a network catch the error of a part that it calls, as torch.export traces it.

torch 2.13 takes a part off its stack of calls only if the call returns. It then raises an `AssertionError`.
speechbrain's networks call each part with the lengths, and without them if that raises a `TypeError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch.fx import Tracer


@contextmanager
def caught_errors() -> Iterator[None]:
    """Take a part off torch's stack of calls if its call raises an error.

    >>> import torch
    >>> class Tries(torch.nn.Sequential):
    ...     def forward(self, x):
    ...         for part in self:
    ...             try:
    ...                 x = part(x, lengths=None)
    ...             except TypeError:
    ...                 x = part(x)
    ...         return x
    >>> with caught_errors():
    ...     program = torch.export.export(Tries(torch.nn.Linear(3, 2)), (torch.ones(4, 3),))
    >>> program.module()(torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """
    trace = Tracer.call_module

    def call_module(self: Tracer, *call: Any) -> Any:
        depth = len(self.module_stack)
        try:
            return trace(self, *call)
        except Exception:
            while len(self.module_stack) > depth:
                self.module_stack.popitem()
            raise

    with patch.object(Tracer, "call_module", call_module):
        yield
