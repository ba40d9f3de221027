"""Compare outputs with a network's: within the tolerance, or as near to float64 as the network itself is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from dimorder.errors import ExportError, VerificationError
from dimorder.graph.interpreter import GraphRun
from dimorder.verification.fp16_accumulation import HalfSums
from dimorder.verification.numerics import Float64Run, FunctionalProgram, NoisyRun
from dimorder.verification.relative_error import (
    TOLERANCE,
    error_in_float64,
    outputs_above,
    relative_error,
    relative_errors,
    rounding_error,
)
from dimorder.verification.selections import Numerics

FACTOR = 4  # times the network's own distance from float64: sums have other orders
MOST = 1e-2  # the largest error that rounding excuses
# The same if half precision rounds each result.
HALF_FACTOR = 2
HALF_MOST = 0.25
# One run of few outputs may be near float64 by chance: half precision is run this often, with a noise that is
# half as large as the largest error of a rounding.
DRAWS = 8
NOISE = 0.25

Outputs = list[torch.Tensor]


def is_half(eps: float) -> bool:
    """Return whether floats with this spacing about 1 are of half precision."""
    return eps > torch.finfo(torch.float32).eps


def is_float16(eps: float) -> bool:
    """Return whether floats with this spacing about 1 are float16."""
    return eps == torch.finfo(torch.float16).eps


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
        follow: Returns numerics in which the network selects what the program does.
        eager_error: The largest error of the outputs against float64 that was measured, or None.
    """

    expected: Outputs
    program: Callable[[], FunctionalProgram]
    leaves: Sequence[Any]
    eps: float
    named: Callable[[int], str]
    narrow: Numerics = GraphRun
    follow: Callable[[Numerics], Numerics] = lambda numerics: numerics
    eager_error: float | None = None
    _drawn: dict[tuple[int, bool], Outputs] = field(default_factory=dict)

    def compare(
        self, got: Outputs, what: str, half_sums: bool = True, physical: Callable[[], Outputs] | None = None
    ) -> float:
        """Return the relative error of a program's outputs.

        Args:
            got: the outputs, as logical tensors.
            what: the name of the program in errors.
            half_sums: whether the program may keep sums in float16.
            physical: computes the outputs of the physical program that it was written from. The program may
                be as far off as these are if their sums are kept in float16.

        Raises:
            VerificationError: if an output is farther off than rounding explains.
        """
        errors = relative_errors(got, self.expected)
        for i in outputs_above(TOLERANCE, errors, self.expected):
            self._require_as_exact(i, got[i], errors[i], what, half_sums, physical)
        return max(errors, default=0.0)

    def _require_as_exact(
        self,
        i: int,
        got: torch.Tensor,
        error: float,
        what: str,
        half_sums: bool,
        physical: Callable[[], Outputs] | None,
    ) -> None:
        """Check that an output is no farther from float64 than the network's, within what rounding explains.

        Rounding is measured on the exported program, in float32 and float64. A network that is not the
        program exported from it is refused as well.
        """
        try:
            narrow, wide = self._twice
        except RuntimeError as reason:  # an operator that torch does not have in float64
            raise wrong(what, self.named(i), error) from reason
        inexact = error_in_float64(narrow[i], wide[i])
        factor, most = (HALF_FACTOR, HALF_MOST) if is_half(self.eps) else (FACTOR, MOST)
        floating = self.expected[i].is_floating_point()
        allowed = factor * max(inexact, rounding_error(self.expected[i])) if floating else 0.0
        if allowed > most:
            whose = f"PyTorch's own {self.expected[i].dtype}"
            raise self._nothing_shown(i, error, what, whose, inexact)
        if got.dtype != narrow[i].dtype:
            raise wrong(what, self.named(i), error)
        eager = error_in_float64(self.expected[i], wide[i])
        found = max(eager, error_in_float64(got, wide[i]))
        if is_half(self.eps) and floating and eager <= allowed < found:
            for whose, outputs in self._rounded_otherwise(half_sums and is_float16(self.eps), physical):
                inexact = error_in_float64(outputs[i], wide[i])
                allowed = max(allowed, factor * inexact)
                if allowed > most:
                    raise self._nothing_shown(i, error, what, whose, inexact)
                if found <= allowed:
                    break
        if not found <= allowed:
            if not floating and self._is_chosen_by_roundings(i):
                raise self._nothing_shown(i, error, what, "PyTorch's own with other roundings", found)
            if not relative_error(narrow[i], self.expected[i]) <= max(allowed, TOLERANCE):
                raise _exported_otherwise(what, self.named(i), error)
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
        return program.run(self.leaves, self.narrow), program.run(self.leaves, self.follow(Float64Run))

    def _rounded_otherwise(
        self, half_sums: bool, physical: Callable[[], Outputs] | None
    ) -> Iterator[tuple[str, Outputs]]:
        """Yield the network's outputs with other roundings, and whose they are; the quickest runs first."""
        if half_sums:
            yield "what keeps its sums in float16", self._draw(0, half_sums)
            if physical is not None:
                with HalfSums():
                    outputs = physical()
                yield "what keeps its sums in float16", outputs
        for seed in range(1, DRAWS + 1):
            yield "half precision with other roundings", self._draw(seed, half_sums)

    def _is_chosen_by_roundings(self, i: int) -> bool:
        """Return whether other roundings give other integers: places of nearly equal values, for example."""
        runs = (self._draw(seed, half_sums=False) for seed in range(1, DRAWS + 1))
        return any(not torch.equal(outputs[i], self.expected[i]) for outputs in runs)

    def _draw(self, seed: int, half_sums: bool) -> Outputs:
        """Return the network's outputs with this seed's noise, without noise for seed 0."""
        if (seed, half_sums) not in self._drawn:
            noisy = self.follow(partial(NoisyRun, seed=seed, roundings=NOISE))
            program = self.program()  # not made within the mode
            with HalfSums() if half_sums else nullcontext():
                outputs = program.run(self.leaves, noisy if seed else self.narrow)
            self._drawn[seed, half_sums] = outputs
        return self._drawn[seed, half_sums]


def wrong(what: str, output: str, error: float) -> VerificationError:
    """Return the error of a program with a wrong output."""
    found = f"{output} differs from PyTorch's by {error:.2e} of its largest value"
    return VerificationError(what, found, "report this network: a rule, or the target, is wrong")


def _exported_otherwise(what: str, output: str, error: float) -> ExportError:
    found = (
        f"{output} differs from PyTorch's by {error:.2e} of its largest value, as torch.export's program does"
    )
    fix = "the network differs when torch.export traces it, as by a size: narrow ranges, or pass the program"
    return ExportError(what, found, fix)


def verify(
    got: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    *,
    what: str,
    tolerance: float | Sequence[float] = TOLERANCE,
) -> float:
    """Return the largest relative error of a program's outputs.

    Args:
        got: the program's outputs, as logical tensors.
        wanted: the network's outputs, as logical tensors.
        what: the name of the program in errors.
        tolerance: the tolerance of all outputs, or of each.

    Raises:
        VerificationError: if an error is above the tolerance. A wrong program is never returned.
    """
    errors = relative_errors(got, wanted)
    for i in outputs_above(tolerance, errors, wanted):
        raise wrong(what, f"output {i}", errors[i])
    return max(errors, default=0.0)
