"""Let torch.export leave open what only the example's sizes decide, as it does for sizes that data decide.

torch 2.13 asks whether a size is 1, and demands the example's answer of all others. A convolution of 3
columns leaves one of 3, and a ReLU after it would refuse 3 columns. The answer for unknown sizes is right for
all of them. A size is not 1, and is equal to what it must be equal to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.fx.experimental import symbolic_shapes


@contextmanager
def undecided_by_example() -> Iterator[None]:
    """Let torch take its answer for unknown sizes, where its own ranges do not decide.

    >>> class Pairs(torch.nn.Module):
    ...     def forward(self, x):
    ...         return (x[1:] + x[:-1]).relu()
    >>> sizes = ({0: torch.export.Dim("N", min=2, max=8)},)
    >>> with undecided_by_example():
    ...     program = torch.export.export(Pairs(), (torch.ones(3, 4),), dynamic_shapes=sizes)
    >>> program.module()(torch.ones(2, 4)).shape
    torch.Size([1, 4])
    """
    known = vars(symbolic_shapes)
    original = known["_guard_or"]
    known["_guard_or"] = _answer
    try:
        yield
    finally:
        known["_guard_or"] = original


def _answer(question: bool | torch.SymBool, default: bool) -> bool:
    if isinstance(question, bool):
        return question
    known = symbolic_shapes._static_eval_sym_bool(question)
    return default if known is None else known
