"""Check that a physical program is the network it was made from: the same numbers on random inputs.

Nothing is trusted that was not run. The error is relative to the largest value of each output. One trial is
on numbers of one magnitude, one on numbers of many magnitudes, with zeros among them.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch.export import ExportedProgram

from dimorder.capture.captured import Captured
from dimorder.capture.state import restart
from dimorder.contract import Contract
from dimorder.errors import UnsupportedError, VerificationError
from dimorder.graph.exported import as_function
from dimorder.graph.interpreter import GraphRun
from dimorder.layout.rewrite import at_boundary
from dimorder.ops.problem_map import BufferInfo
from dimorder.verification.flat_network import flat_network, takes_floats
from dimorder.verification.fp16_accumulation import HalfSums
from dimorder.verification.numerics import FunctionalProgram, NoisyRun
from dimorder.verification.random_inputs import (
    changed,
    copies,
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
    finite_error,
    relative_error,
)
from dimorder.verification.selections import Numerics, Selections

CALLS = 10  # in a row, for a network that writes buffers
CALLS_OF_ONE_SIZE = 3  # in a row, for such a network that also gets CALLS calls of changing sizes
_LEAST_SHARE = 1e-4  # of inputs of many magnitudes

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
Inputs = tuple[torch.Tensor, ...]


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


@dataclass(frozen=True)
class _Steep:
    """A network's outputs on steep inputs: the inputs as the program takes them, and as the network does."""

    inputs: Inputs
    network_inputs: Inputs
    expected: Outputs


class Trial:
    """A network's own outputs on random inputs; each stage of its lowering is compared with them.

    On steep inputs neighbours differ by up to six orders of magnitude, and a network may amplify a rounding.
    So the bound there is how far the network's outputs move when its inputs change by a millionth.

    If the network writes buffers, inputs and outputs are those of several calls in a row, one after another.

    Args:
        model: the network as it was passed to `capture`.
        program: the captured program.
        contract: what the program promises.
        exported: returns the exported program of the trial's sizes, if that is not `program.exported`. It is
            asked for only if an error is above the tolerance.
        repeats: whether the network is called again, to find out whether it keeps what is no buffer.
        calls: the leaves of each call in a row, of any sizes; by default the example's, ten times with state.
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
        self.contract, self.program = contract, program
        calls = calls or [program.examples] * (CALLS if program.state else 1)
        self.calls, self.leaves = len(calls), [leaf for call in calls for leaf in call]
        self.network = flat_network(model, program, calls)
        self.examples = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        self.inputs, self.network_inputs, self.expected, self._like = self._computed()
        if repeats and isinstance(model, torch.nn.Module):
            self._require_no_hidden_state(flat_network(model, program, calls[:1]))
        self._exported = exported or (lambda: program.exported)
        self._steep: dict[tuple[int, float], _Steep | None] = {}

    @cached_property
    def input_matters(self) -> bool:
        """Whether other inputs give other outputs. Integers are not made up: they may be ids or masks."""
        pairs = zip(self.contract.inputs * self.calls, self.inputs, strict=True)
        if not any(spec.scale or x.is_floating_point() for spec, x in pairs):
            return True
        for steep in filter(None, self._steep.values()):
            if all(map(_is_finite, steep.expected)) and differ(steep.expected, self.expected):
                return True
        others = self._outputs(self._drawn(self._like, seed=1)[1])
        return not isinstance(others, str) and differ(others, self.expected)

    def _computed(self) -> tuple[Inputs, Inputs, Outputs, Callable[..., Inputs]]:
        """Return the first inputs for which the network computes numbers.

        Returns the inputs as the program takes them, the inputs as the network takes them, and the network's
        outputs. Last comes the function that draws such inputs.
        """
        why = ""
        for like in (random_like, uniform_like, near_like, copies):
            inputs, network_inputs = self._drawn(like, seed=0)
            expected = self._outputs(network_inputs)
            why = expected if isinstance(expected, str) else all_nan(expected)
            if not isinstance(expected, str) and not why:
                return inputs, network_inputs, expected, like
        fix = "give example inputs of which it makes numbers"
        raise UnsupportedError("the network on its example inputs", why, fix)

    def _require_no_hidden_state(self, first_call: Callable[..., Outputs]) -> None:
        """Check that the network keeps nothing between calls that the program cannot know.

        The first call, made again on the same inputs, would show it.
        """
        network_inputs, expected = (
            each[: len(each) // self.calls] for each in (self.network_inputs, self.expected)
        )
        again = self._outputs(network_inputs, first_call)
        if isinstance(again, str) or differ(again, expected):
            raise UnsupportedError(
                "the network, called again on the same inputs",
                "other results than before: it keeps something that is no buffer",
                "register what it keeps: self.register_buffer(name, tensor)",
            )

    def _outputs(
        self, inputs: Sequence[torch.Tensor], network: Callable[..., Outputs] | None = None
    ) -> Outputs | str:
        """Return the outputs of the network, or of some of its calls, or the error that it raises."""
        try:
            with torch.no_grad():
                return (network or self.network)(*inputs)
        except Exception as error:  # whatever a network says about inputs that it does not accept
            return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"

    def _drawn(self, like: Callable[..., Inputs], seed: int) -> tuple[Inputs, Inputs]:
        """Return inputs as the program takes them, and as the network does: integers may stand for floats."""
        specs = self.contract.inputs * self.calls
        floats = takes_floats(self.program.exported) * self.calls
        reals = [spec.real(x) for spec, x in zip(specs, self.examples, strict=True)]
        held = [spec.quantized(x) for spec, x in zip(specs, like(reals, seed), strict=True)]
        return tuple(held), tuple(
            spec.real(x) if is_float else x for spec, x, is_float in zip(specs, held, floats, strict=True)
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
        self._require_steep(run, what, half_sums)
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
        leaves, functional = self._leaves(self.network_inputs), self._functional
        verify(functional.run(leaves), self.expected, what="the network as it was exported")
        recorded = selections.record(run)
        got = self._logical(recorded, self.inputs)
        tolerance = max(TOLERANCE, 4 * self._eps)
        narrow = selections.follow(GraphRun, tolerance)
        expected = functional.run(leaves, narrow)
        reference = Reference(
            expected, lambda: functional, leaves, self._eps, self._named, narrow, selections.follow
        )
        error = reference.compare(got, what, half_sums)
        self._require_steep(recorded, what, half_sums, selections)
        return error

    def require_same(self, run: Run, other: Run, what: str) -> None:
        """Check that two runs give the same outputs, bit for bit."""
        for i, pair in enumerate(
            zip(self._logical(run, self.inputs), self._logical(other, self.inputs), strict=True)
        ):
            if not torch.equal(*pair):
                raise wrong(what, self._named(i), relative_error(*pair))

    def _require_steep(
        self, run: Run, what: str, half_sums: bool, selections: Selections | None = None
    ) -> None:
        """Check a run on steep inputs, where the places that are selected need not be the best ones."""
        if any(map(torch.is_floating_point, self.inputs)):
            # A number that is rounded to either side of a step differs once.
            first = self._steep_faults(run, 2, half_sums, selections)
            if first and self._steep_faults(run, 3, half_sums, selections):
                found = f"{first[0]} on inputs of many magnitudes"
                raise VerificationError(what, found, "report this network: a rule, or the target, is wrong")

    def compare_once(self, run: Run, what: str, half_sums: bool = True, physical: Run | None = None) -> float:
        """Run a program on the trial's first inputs alone, and return its relative error; see `compare`."""
        outputs = cache(partial(self._logical, physical, self.inputs)) if physical else None
        return self._reference.compare(self._logical(run, self.inputs), what, half_sums, outputs)

    @cached_property
    def _reference(self) -> Reference:
        leaves = self._leaves(self.network_inputs)
        return Reference(self.expected, lambda: self._functional, leaves, self._eps, self._named)

    @property
    def eager_error(self) -> float | None:
        """The error of the network's own outputs against float64, if any comparison measured it."""
        return self._reference.eager_error

    @cached_property
    def exported(self) -> ExportedProgram:
        """Return the exported program of the trial's sizes."""
        return self._exported()

    @cached_property
    def _eps(self) -> float:
        """Return the coarsest spacing of the floats about 1 that the network computes with."""
        values = (node.meta.get("val") for node in self.program.exported.graph.nodes)
        floats = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
        return max((torch.finfo(dtype).eps for dtype in floats), default=0.0)

    @cached_property
    def _functional(self) -> FunctionalProgram:
        return FunctionalProgram(self.exported, self.program.in_pairs)

    def _logical(self, run: Run, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        specs, got = self.contract.inputs, list[torch.Tensor]()
        if self.program.state:
            restart(run)
        for first in range(0, len(inputs), len(specs)):
            held = [
                at_boundary(*pair) for pair in zip(inputs[first : first + len(specs)], specs, strict=True)
            ]
            try:
                with torch.no_grad():
                    given = run(held)
            except RuntimeError as error:
                found = f"it does not run: {next(iter(str(error).splitlines()), '')}"
                raise VerificationError(
                    "what was made of the network", found, "report this network, or lower it for target torch"
                ) from error
            outputs = zip(given, self.contract.outputs, strict=True)
            got += [spec.from_boundary(tensor) for tensor, spec in outputs]
        return got

    def _steep_faults(
        self, run: Run, seed: int, half_sums: bool, selections: Selections | None, share: float = 1.0
    ) -> list[str]:
        """Return the outputs that differ by more than a small change of the inputs, or float16 sums, explain.

        Outputs of integers are not compared. A runtime may make NaN of an infinity that the network computes
        on the way: then a smaller `share` of the inputs is compared.
        """
        if (seed, share) not in self._steep:
            inputs, network_inputs = self._drawn(partial(steep_like, share=share), seed)
            expected = self._outputs(network_inputs)
            steep = None if isinstance(expected, str) else _Steep(inputs, network_inputs, expected)
            self._steep[seed, share] = steep
        steep = self._steep[seed, share]
        if steep is None:  # the network does not accept such inputs
            return []
        rounding = max(TOLERANCE, 4 * self._eps)
        got, expected = self._logical(run, steep.inputs), steep.expected
        outputs: Callable[[Inputs], Outputs | str] = self._outputs
        follow: Callable[[Numerics], Numerics] = (
            selections.follow if selections else lambda numerics: numerics
        )
        if selections is not None:
            outputs = partial(self._exported_outputs, follow(GraphRun))
            expected = outputs(steep.network_inputs)
        pairs = enumerate(zip(got, expected, strict=True))
        errors = {i: finite_error(g, w) for i, (g, w) in pairs if w.is_floating_point()}
        errors = {i: error for i, error in errors.items() if not error <= rounding}
        if not errors:
            return []
        factor, share = (4, self._eps) if self._reference.is_half else (100, 1e-6)

        def beyond(others: Outputs) -> dict[int, float]:
            bounds = {i: factor * finite_error(others[i], expected[i]) for i in errors}
            return {i: error for i, error in errors.items() if not error <= bounds[i]}

        moved = outputs(changed(steep.network_inputs, share, seed))
        if isinstance(moved, str):
            return []
        errors = beyond(moved)
        # If operators rounded otherwise, two values that tie may differ.
        errors = beyond(self._exported_outputs(follow(NoisyRun), steep.network_inputs)) if errors else {}
        if errors and half_sums and self._reference.is_float16:  # a sum of finite terms may overflow
            with HalfSums():
                errors = beyond(self._exported_outputs(follow(GraphRun), steep.network_inputs))
        leaves = self._leaves(steep.network_inputs)
        if errors and share > _LEAST_SHARE and self._functional.overflows(leaves, follow):
            return self._steep_faults(run, seed, half_sums, selections, share / 16)
        return [
            f"{self._named(i)} differs from PyTorch's by {error:.2e} of its largest value"
            for i, error in errors.items()
        ]

    def _named(self, i: int) -> str:
        call, output = divmod(i, len(self.contract.outputs))
        return f"output {output}" + (f" of call {call}" if self.calls > 1 else "")

    def _exported_outputs(self, numerics: Numerics, inputs: Sequence[torch.Tensor]) -> Outputs:
        """Return the outputs of the exported program in other numerics."""
        return self._functional.run(self._leaves(inputs), numerics)

    def _leaves(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Return the exported program's arguments, call by call, with these tensors in place of its own."""
        feed = iter(inputs)
        return [next(feed) if isinstance(x, torch.Tensor) else x for x in self.leaves]

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
