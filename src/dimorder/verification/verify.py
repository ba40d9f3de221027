"""Check that a physical program is the network it was made from: the same numbers on random inputs.

Nothing is trusted that was not run. The error is relative to the largest value of each output. One trial is
on numbers of one magnitude, one on numbers of many magnitudes, with zeros among them. If the examples are
unlike normal numbers, as pictures of 0 to 255 are, one is on the examples.

Some networks cannot compute with normal numbers: the logarithm of a negative one, or the factor of a matrix
that has none. The first trial is then on numbers between 0 and 1, else near the examples.

If float32 itself is farther from float64 than the tolerance, the program may be as far from it as PyTorch is.
Half precision always is. A program in half precision is compared with the float64 of its network. It may be
twice as far from float64 as PyTorch's own half precision. One run may be near float64 by chance, so runs with
a little noise in each result count too. The artifact may also be twice as far as the network or the physical
program with sums in float16 (`fp16_accumulation.py`).

A network that writes buffers is called several times in a row, and so is the program.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch.export import ExportedProgram

from dimorder.capture.captured import Captured
from dimorder.contract import Contract
from dimorder.errors import UnsupportedError, VerificationError
from dimorder.graph.exported import as_function
from dimorder.graph.interpreter import GraphRun
from dimorder.ops.problem_map import BufferInfo
from dimorder.verification.amplified import AmplifyingInputs
from dimorder.verification.flat_network import flat_network
from dimorder.verification.network_calls import CALLS, Inputs, NetworkCalls, Run
from dimorder.verification.random_inputs import (
    copies,
    is_normal,
    near_like,
    random_like,
    steep_like,
    uniform_like,
)
from dimorder.verification.reference import Outputs, Reference, verify, wrong
from dimorder.verification.relative_error import (
    TOLERANCE,
    all_nan,
    differ,
    relative_error,
)
from dimorder.verification.selections import Selections

CALLS_OF_ONE_SIZE = 3  # in a row, for such a network that also gets CALLS calls of changing sizes
FEWEST_CALLS = 2  # in a row: the first of them shows no state


@dataclass(frozen=True)
class Verified:
    """The result of comparing a network with its program on random inputs.

    Attributes:
        max_rel_error: The largest relative error of any output, of the physical program and, if
            `artifact_ran`, of the artifact. If `stand_in` is not None, it is also that of the stand-in.
        eager_error: The error of the network's own float32 or half precision against float64. It is measured
            only if an error is above the tolerance, else None.
        artifact_ran: Whether the artifact's file was run.
        input_matters: Whether other inputs give other outputs. If not, the other figures show little.
        stand_in: The form that was run if the file runs only on a device: the "TOSA graph" of an ethos-u.
    """

    max_rel_error: float
    eager_error: float | None
    artifact_ran: bool
    input_matters: bool
    stand_in: str | None = None


class Trial(NetworkCalls):
    """A network's own outputs on random inputs; each stage of its lowering is compared with them.

    Args:
        model: as for `NetworkCalls`, and so are the other arguments.
        program: the captured program.
        contract: what the program promises.
        exported: returns the exported program of the trial's sizes, if that is not `program.exported`.
        repeats: whether the network is called again, to find out whether it keeps what is no buffer.
        calls: the leaves of each call in a row. If the network raises an error in a later one, it gets fewer.
    """

    def __init__(
        self,
        model: Any,
        program: Captured,
        contract: Contract,
        exported: Callable[[], ExportedProgram] | None = None,
        repeats: bool = True,
        calls: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        calls = calls or [program.examples] * (CALLS if program.state else 1)
        while True:
            super().__init__(model, program, contract, exported, calls)
            try:
                self.inputs, self.network_inputs, self.expected, self._like = self._computed()
                break
            except UnsupportedError:  # a cache may be full before the last call
                if len(calls) <= FEWEST_CALLS:
                    if len(calls) > 1:  # what the first call raises is no matter of their number
                        super().__init__(model, program, contract, exported, calls[:1])
                        self._computed()
                    raise
            calls = calls[: max(FEWEST_CALLS, len(calls) // 2)]
        if repeats and isinstance(model, torch.nn.Module):
            first_call = self.leaves[: len(self.leaves) // self.calls]
            self._require_no_hidden_state(flat_network(model, program, [first_call]))

    @cached_property
    def input_matters(self) -> bool:
        """Whether other inputs give other outputs. Integers are not made up: they may be ids or masks."""
        pairs = zip(self.contract.inputs * self.calls, self.inputs, strict=True)
        if not any(spec.scale or x.is_floating_point() for spec, x in pairs):
            return True
        for inputs in itertools.chain(*self._amplifying.values()):
            for outputs in inputs.known_outputs:
                if all(map(_is_finite, outputs)) and differ(outputs, self.expected):
                    return True
        others = self.outputs(self._other_inputs)
        return not isinstance(others, str) and differ(others, self.expected)

    @cached_property
    def _other_inputs(self) -> Inputs:
        """Further inputs of the same kind, as the network takes them."""
        return self.draw(self._like, seed=1)[1]

    def _computed(self) -> tuple[Inputs, Inputs, Outputs, Callable[..., Inputs]]:
        """Return the first inputs for which the network computes numbers: for each element if there are such.

        A network that takes the logarithm of its input computes NaN for every number below 0.

        Returns the inputs as the program takes them, the inputs as the network takes them, and the network's
        outputs. Last comes the function that draws such inputs.
        """
        why, some = "", None
        for like in (random_like, uniform_like, near_like, copies):
            if like is copies and some is not None:  # other inputs show more
                break
            inputs, network_inputs = self.draw(like, seed=0)
            expected = self.outputs(network_inputs)
            why = expected if isinstance(expected, str) else all_nan(expected)
            if isinstance(expected, str) or why:
                continue
            some = some or (inputs, network_inputs, expected, like)
            if not any(output.isnan().any() for output in expected):
                return inputs, network_inputs, expected, like
        if some is not None:
            return some
        where, fix = "the network on its example inputs", "give example inputs of which it makes numbers"
        if self.calls > 1:
            where = f"{where}, {self.calls} times in a row"
            fix = f"give example inputs, such as shorter ones, that it takes {self.calls} times in a row"
        raise UnsupportedError(where, why, fix)

    def _require_no_hidden_state(self, first_call: Callable[..., Outputs]) -> None:
        """Check that the network keeps nothing between calls that the program cannot know.

        The first call, made again on the same inputs, would show it. Other inputs come in between, for the
        network may have kept these inputs from an earlier attempt.
        """
        network_inputs, expected = (
            each[: len(each) // self.calls] for each in (self.network_inputs, self.expected)
        )
        self.outputs(self._other_inputs[: len(network_inputs)], first_call)
        again = self.outputs(network_inputs, first_call)
        if isinstance(again, str) or differ(again, expected):
            raise UnsupportedError(
                "the network, called again on the same inputs",
                "other results: it keeps something that is no buffer, or a kernel of PyTorch varies",
                "register what it keeps: self.register_buffer(name, tensor)",
            )

    def compare(
        self,
        run: Run,
        what: str,
        model: Run | None = None,
        half_sums: bool = True,
        physical: Run | None = None,
    ) -> float:
        """Run a program on the trial's inputs, and return its relative error.

        Args:
            run: takes and returns tensors as the program's signature has them.
            what: the name of the program in errors.
            model: for numbers that are not floats; unused here.
            half_sums: whether the program may keep sums in float16.
            physical: the physical program that it was written from, in torch.

        Raises:
            VerificationError: if an output is farther off than rounding explains.
        """
        error = self.compare_once(run, what, half_sums, physical)
        self._require_amplified(run, what, half_sums)
        return error

    def compare_selected(self, run: Run, selections: Selections, what: str, half_sums: bool = True) -> float:
        """Compare a run of a program with the network that selects what the program selects; see `compare`.

        Args:
            run: a run of the program of `selections`.
            selections: the program that also returns its places.
            what: the name of the program in errors.
            half_sums: whether the program may keep sums in float16.

        Raises:
            VerificationError: if an output is farther off than rounding explains, or if the program does not
                select the best scores.
        """
        leaves, functional = self.leaves_of(self.network_inputs), self.functional
        verify(functional.run(leaves), self.expected, what="the network as it was exported")
        recorded = selections.record(run)
        got = self.program_outputs(recorded, self.inputs)
        tolerance = max(TOLERANCE, 4 * self.eps)
        narrow = selections.follow(GraphRun, tolerance)
        expected = functional.run(leaves, narrow)
        reference = Reference(
            expected, lambda: functional, leaves, self.eps, self.named, narrow, selections.follow
        )
        error = reference.compare(got, what, half_sums)
        self._require_amplified(recorded, what, half_sums, selections)
        return error

    def require_same(self, run: Run, other: Run, what: str) -> None:
        """Check that two runs give the same outputs, bit for bit."""
        for i, pair in enumerate(
            zip(self.program_outputs(run, self.inputs), self.program_outputs(other, self.inputs), strict=True)
        ):
            if not torch.equal(*pair):
                raise wrong(what, self.named(i), relative_error(*pair))

    @cached_property
    def _amplifying(self) -> Mapping[str, Sequence[AmplifyingInputs]]:
        """The further inputs that a run is compared on, by their names in errors: first ones, and others."""
        if not any(map(torch.is_floating_point, self.inputs)):
            return {}
        further = {"inputs of many magnitudes": [AmplifyingInputs(self, steep_like, seed) for seed in (2, 3)]}
        if self._like in (random_like, uniform_like) and not all(map(is_normal, self.real_examples)):
            further["the example inputs"] = [AmplifyingInputs(self, like, 0) for like in (copies, near_like)]
        return further

    def _require_amplified(
        self, run: Run, what: str, half_sums: bool, selections: Selections | None = None
    ) -> None:
        """Check a run on further inputs, where the places that are selected need not be the best ones."""
        for name, (first, other) in self._amplifying.items():
            # A number that is rounded to either side of a step differs once.
            faults = first.faults(run, half_sums, selections)
            if faults and other.faults(run, half_sums, selections):
                found = f"{faults[0]} on {name}"
                raise VerificationError(what, found, "report this network: a rule, or the target, is wrong")

    def compare_once(self, run: Run, what: str, half_sums: bool = True, physical: Run | None = None) -> float:
        """Run a program on the trial's first inputs alone, and return its relative error; see `compare`."""
        outputs = cache(partial(self.program_outputs, physical, self.inputs)) if physical else None
        return self._reference.compare(self.program_outputs(run, self.inputs), what, half_sums, outputs)

    @cached_property
    def _reference(self) -> Reference:
        leaves = self.leaves_of(self.network_inputs)
        return Reference(self.expected, lambda: self.functional, leaves, self.eps, self.named)

    @property
    def eager_error(self) -> float | None:
        """The error of the network's own outputs against float64, if any comparison measured it."""
        return self._reference.eager_error

    def compare_program(
        self,
        physical: ExportedProgram,
        what: str,
        run: Run | None = None,
        buffers: Sequence[BufferInfo] = (),
    ) -> float:
        """Run a physical program in torch, or as the function that it is; see `compare`.

        `buffers` are those of its layout problem, if its sizes are fixed.
        """
        return self.compare(run or as_function(physical), what, half_sums=False)


def _is_finite(output: torch.Tensor) -> bool:
    return bool(torch.isfinite(output).all())
