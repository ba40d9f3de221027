"""Compare outputs with a network's: within the tolerance, or as near to float64 as the network itself is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule

from dimorder.errors import VerificationError
from dimorder.graph.interpreter import GraphRun
from dimorder.verification.fp16_accumulation import HalfSums
from dimorder.verification.numerics import Float64Run, FunctionalProgram
from dimorder.verification.relative_error import (
    TOLERANCE,
    error_in_float64,
    outputs_above,
    relative_errors,
    rounding_error,
)

FACTOR = 4  # times the network's own distance from float64: sums have other orders
MOST = 1e-2  # the largest error that rounding excuses
# The same if half precision rounds each result.
HALF_FACTOR = 2
HALF_MOST = 0.25

Outputs = list[torch.Tensor]


@dataclass
class Reference:
    """The outputs of a network on some inputs, with which those of a program are compared.

    Attributes:
        expected: The outputs.
        program: Returns the network as it was exported. It is asked for only if an error is above the
            tolerance.
        leaves: The arguments of that program.
        eps: The coarsest spacing of the floats about 1 that the network computes with.
        named: Returns the name of an output in errors.
        narrow: Makes the run of that program as torch computes.
        wide: Makes the run in float64.
        eager_error: The largest error of the outputs against float64 that was measured, or None.
    """

    expected: Outputs
    program: Callable[[], FunctionalProgram]
    leaves: Sequence[Any]
    eps: float
    named: Callable[[int], str]
    narrow: Callable[[GraphModule], GraphRun] = GraphRun
    wide: Callable[[GraphModule], GraphRun] = Float64Run
    eager_error: float | None = None

    def compare(self, got: Outputs, what: str, half_sums: bool = True) -> float:
        """Return the relative error of a program's outputs.

        Args:
            got: the outputs, as logical tensors.
            what: the name of the program in errors.
            half_sums: whether the program may keep sums in float16.

        Raises:
            VerificationError: if an output is farther off than rounding explains.
        """
        errors = relative_errors(got, self.expected)
        for i in outputs_above(TOLERANCE, errors, self.expected):
            self._require_as_exact(i, got[i], errors[i], what, half_sums)
        return max(errors, default=0.0)

    @property
    def is_half(self) -> bool:
        return self.eps > torch.finfo(torch.float32).eps

    @property
    def is_float16(self) -> bool:
        return self.eps == torch.finfo(torch.float16).eps

    def _require_as_exact(self, i: int, got: torch.Tensor, error: float, what: str, half_sums: bool) -> None:
        """Check that an output is no farther from float64 than the network's, within what rounding explains.

        Rounding is measured on the exported program, in float32 and float64. A network that is not the
        program exported from it is refused as well.
        """
        try:
            narrow, wide = self._twice
        except RuntimeError as reason:  # an operator that torch does not have in float64
            raise wrong(what, self.named(i), error) from reason
        inexact = error_in_float64(narrow[i], wide[i])
        factor, most = (HALF_FACTOR, HALF_MOST) if self.is_half else (FACTOR, MOST)
        floating = self.expected[i].is_floating_point()
        allowed = factor * max(inexact, rounding_error(self.expected[i])) if floating else 0.0
        if allowed > most:
            whose = f"PyTorch's own {self.expected[i].dtype}"
            raise self._nothing_shown(i, error, what, whose, inexact)
        if got.dtype != narrow[i].dtype:
            raise wrong(what, self.named(i), error)
        eager = error_in_float64(self.expected[i], wide[i])
        found = max(eager, error_in_float64(got, wide[i]))
        if half_sums and self.is_float16 and floating and eager <= allowed < found:
            inexact = error_in_float64(self._summed_in_half[i], wide[i])
            allowed = factor * inexact
            if allowed > most:
                raise self._nothing_shown(i, error, what, "what keeps its sums in float16", inexact)
        if not found <= allowed:
            raise wrong(what, self.named(i), error)
        self.eager_error = max(eager, self.eager_error or 0.0)

    def _nothing_shown(
        self, i: int, error: float, what: str, whose: str, inexact: float
    ) -> VerificationError:
        return VerificationError(
            what,
            f"{self.named(i)} differs from PyTorch's by {error:.2e} of its largest value, and "
            f"{whose} from float64 by {inexact:.2e}",
            "this network makes so much of a rounding that nothing can be shown: give it trained weights",
        )

    @cached_property
    def _twice(self) -> tuple[Outputs, Outputs]:
        program = self.program()
        return program.run(self.leaves, self.narrow), program.run(self.leaves, self.wide)

    @cached_property
    def _summed_in_half(self) -> Outputs:
        program = self.program()  # not made within the mode
        with HalfSums():
            return program.run(self.leaves, self.narrow)


def wrong(what: str, output: str, error: float) -> VerificationError:
    """Return the error of a program with a wrong output."""
    found = f"{output} differs from PyTorch's by {error:.2e} of its largest value"
    return VerificationError(what, found, "report this network: a rule, or the target, is wrong")
