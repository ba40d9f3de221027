"""Define a pass: one step from a program to a program, with checks that run if DIMORDER_CHECK is set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dimorder.errors import StageError

CHECK = "DIMORDER_CHECK"  # the environment's switch: any text but 0
FIX = "report this network: dimorder is wrong, not the network"

Program = TypeVar("Program")


@dataclass(frozen=True)
class Pass(Generic[Program]):
    """A step that returns a program with the same numbers, or changes one in place.

    Attributes:
        name: The name of the pass in errors.
        run: Returns the new program, or None if it changed the program in place.
        requires: Checks of the program before the pass; each yields the faults that it finds.
        ensures: Checks of the result; each yields the faults that it finds.

    >>> half = Pass("half", lambda number: number // 2, requires=(lambda n: ["it is odd"] * (n % 2),))
    >>> half(6)
    3
    >>> half(3)
    Traceback (most recent call last):
    dimorder.errors.StageError: before half
      found: it is odd
      fix: report this network: dimorder is wrong, not the network
    """

    name: str
    run: Callable[[Program], Program | None]
    requires: tuple[Callable[[Program], Iterable[str]], ...] = ()
    ensures: tuple[Callable[[Program], Iterable[str]], ...] = ()

    def __call__(self, program: Program) -> Program:
        for faults in self.requires:
            require(f"before {self.name}", faults(program))
        result = self.run(program)
        result = program if result is None else result
        for faults in self.ensures:
            require(f"after {self.name}", faults(result))
        return result


def run_passes(passes: Iterable[Pass[Program]], program: Program) -> Program:
    """Run passes one after another, and return the last result.

    >>> run_passes([Pass("double", lambda n: 2 * n), Pass("increment", lambda n: n + 1)], 3)
    7
    """
    for each in passes:
        program = each(program)
    return program


def require(stage: str, faults: Iterable[str]) -> None:
    """Raise a `StageError` for the first fault of a stage; without DIMORDER_CHECK no fault is computed.

    >>> require("the sum", (f"2 + {n} is 5" for n in ()))
    """
    if os.environ.get(CHECK, "0") == "0":
        return
    for fault in faults:
        raise StageError(stage, fault, FIX)
