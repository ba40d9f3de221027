"""Check that the program of a quantised network computes the same integers as the network.

A float that is rounded differently changes an integer by 1, and a deep network amplifies the change. So each
of three steps is compared with its own reference.

1. The captured form computes the network's integers, each from the network's earlier integers. A few may
   differ, by 1.
2. The physical program computes the captured form's integers in float64, which rounds no sum across a half.
   Constants are float32, and may move a number across a half. If the outputs differ, each integer is computed
   from the physical program's earlier integers. A few may differ, by 1.
3. The artifact returns, bit for bit, the integers that its kernels are defined to return. The graph of these
   kernels computes the physical program's integers, each from its own earlier integers. A few may differ.

In dynamic quantisation, fewer elements may share a scale on a target than in the network, with smaller steps.
So the artifact is also compared with the network. The tolerance is a multiple of how much the outputs change
if each value moves by up to half of the network's own step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.capture.captured import Captured
from dimorder.contract import Contract
from dimorder.errors import VerificationError
from dimorder.graph.exported import (
    CarriedState,
    graph_with_tensors,
    initial_state,
    turn_buffers_into_inputs,
)
from dimorder.graph.half_numbers import HALVES
from dimorder.graph.nodes import operator_at
from dimorder.graph.quantized import DEQUANTIZE
from dimorder.ops.problem_map import BufferInfo
from dimorder.ops.quantization import is_dynamic, is_quantized
from dimorder.verification.differences import Differences
from dimorder.verification.exact_outputs import exact_outputs, require_exact
from dimorder.verification.network_calls import Inputs, Run
from dimorder.verification.numerics import Float64Run, LogicalIntegersRun
from dimorder.verification.quantized_values import DRAWS, record_quantized, rounding_errors
from dimorder.verification.reference import FACTOR, HALF_FACTOR, MOST, Outputs, verify
from dimorder.verification.relative_error import (
    TOLERANCE,
    outputs_above,
    relative_error,
    relative_errors,
)
from dimorder.verification.verify import Trial

_DRAWS = 4  # of moved values: one alone may leave an output of few elements unchanged
# For integers that both compute in float64: constants that lowering computes are float32. A value that is
# computed from such constants and not quantised again may amplify that.
_SAME = 1e-6
_NUMBERS = (torch.float32, torch.int8, torch.uint8, *HALVES)


def trial_of(model: Any, program: Captured, contract: Contract) -> Trial:
    """Return the trial that a network needs: of integers if it is quantised, else of floats."""
    kind = QuantizedTrial if is_quantized(program.module) else Trial
    return kind(model, program, contract)


def trial_of_calls(model: Any, program: Captured, contract: Contract, calls: Sequence[Captured]) -> Trial:
    """Return the trial of calls of other sizes in a row: `calls` is the captured program of each."""
    if is_quantized(program.module):
        return QuantizedTrial(model, program, contract, repeats=False, programs=calls)
    return Trial(model, program, contract, repeats=False, calls=[each.examples for each in calls])


class QuantizedTrial(Trial):
    """A quantised network's own integers on random inputs; the constructor does step 1.

    `programs` is the captured program of each call, if their sizes differ. By default all are `program`.
    """

    def __init__(
        self,
        model: Any,
        program: Captured,
        contract: Contract,
        repeats: bool = True,
        programs: Sequence[Captured] = (),
    ) -> None:
        super().__init__(
            model, program, contract, repeats=repeats, calls=[each.examples for each in programs]
        )
        self.programs = programs[: self.calls] or [program] * self.calls
        # The network may make much of a rounding, as a saturated softmax does.
        _with_few_draws(
            lambda draws: self._normal_form(draws).require_few("the normal form of a quantised network")
        )
        self.allowed = self._allowed() if is_dynamic(program.module) else None

    def _normal_form(self, draws: int) -> Differences:
        """Compare what the calls of the normal form quantise with what those of the network do."""
        calls = self.programs, self._each_call(self.inputs), self._each_call(self.network_inputs)
        state = {each.name: each.initial for each in self.programs[0].state}
        differences = list[Differences]()
        for each, inputs, given in zip(*calls, strict=True):
            wanted = record_quantized(each.exported, given, each.module, state, draws)
            own = Float64Run(each.module, wanted.values, margins=wanted.margins)
            own.run(*state.values(), *inputs)
            differences, state = [*differences, *own.differences.values()], dict(wanted.state)
        return Differences.together(differences)

    def compare(
        self,
        run: Run,
        what: str,
        model: Run | None = None,
        half_sums: bool = False,
        physical: Run | None = None,
    ) -> float:
        """Return the relative error of `run`, for information; it must give the bits that `model` does.

        Raises:
            VerificationError: if the bits differ, if an output that nothing rounds is not the network's, or
                if one is farther off than dynamic quantisation explains.
        """
        got = self.program_outputs(run, self.inputs)
        if model is not None:
            _require_equal(got, self.program_outputs(model, self.inputs), what)
        specs = self.contract.outputs * self.calls
        real = [
            spec.real(g).to(w.dtype if spec.scale is not None else g.dtype) if w.is_floating_point() else g
            for spec, g, w in zip(specs, got, self.expected, strict=True)
        ]
        require_exact(real, self.expected, exact_outputs(self.program) * self.calls, what)
        errors = relative_errors(real, self.expected)
        for i, (error, allowed) in enumerate(zip(errors, self.allowed or (), strict=False)):
            if not error <= allowed:
                raise VerificationError(
                    what,
                    f"output {i} differs from the network's by {error:.2e} of its largest value, and half a "
                    f"step of what is quantised dynamically makes out {allowed / FACTOR:.2e}",
                    "report this network: a rule, or the target, is wrong",
                )
        return max(errors, default=0.0)

    def compare_once(self, run: Run, what: str, half_sums: bool = True, physical: Run | None = None) -> float:
        """Return the relative error of a run that checks its integers itself, for information."""
        return self.compare(run, what)

    def _each_call(self, inputs: Inputs) -> list[Inputs]:
        count = len(inputs) // self.calls
        return [inputs[i * count : (i + 1) * count] for i in range(self.calls)]

    @cached_property
    def _exact(self) -> list[torch.Tensor]:
        return self._in_float64()

    def _in_float64(self, seed: int | None = None) -> list[torch.Tensor]:
        """Return the outputs of the captured program, with noise if there is a seed."""

        programs = iter(self.programs)
        return self._each_output(lambda inputs: Float64Run(next(programs).module, seed=seed).tensors(*inputs))

    def _each_output(self, run: Run) -> Outputs:
        """Return the outputs of each call of the captured program, with the state of the calls before."""
        carried = CarriedState(run, [buffer.initial for buffer in self.program.state])
        return [output for inputs in self._each_call(self.inputs) for output in carried(inputs)]

    def _allowed(self) -> list[float]:
        """Return how far each output may be off if values are rounded by other steps, none larger."""
        exact = self._exact
        draws = [self._in_float64(seed) for seed in range(_DRAWS)]
        return [
            max(TOLERANCE, FACTOR * max(relative_error(draw[i], wanted) for draw in draws))
            if wanted.is_floating_point()
            else float("inf")
            for i, wanted in enumerate(exact)
        ]

    def compare_program(
        self,
        physical: ExportedProgram,
        what: str,
        run: Run | None = None,
        buffers: Sequence[BufferInfo] = (),
    ) -> float:
        wide = LogicalIntegersRun(graph_with_tensors(turn_buffers_into_inputs(physical)), buffers)
        carried = CarriedState(lambda inputs: wide.tensors(*inputs), initial_state(physical))
        got = self.program_outputs(carried, self.inputs)
        tolerances = [
            TOLERANCE if node.target is not DEQUANTIZE and w.is_floating_point() else _SAME
            for w, node in zip(self._exact, self.program.outputs * self.calls, strict=True)
        ]
        wanted = self._exact
        if wide.integers and outputs_above(tolerances, relative_errors(got, wanted), wanted):
            wanted = self._from_integers(wide.integers, what)
        return verify(got, wanted, what=what, tolerance=tolerances)

    def _from_integers(self, integers: Sequence[Mapping[str, torch.Tensor]], what: str) -> Outputs:
        """Return the outputs of the captured program with the integers of another one, call by call.

        Raises:
            VerificationError: if more of these integers differ from its own than rounding explains.
        """
        feed, programs = iter(integers), iter(self.programs)

        def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            captured = Float64Run(next(programs).module, next(feed))
            outputs = captured.tensors(*inputs)
            for node, differences in captured.differences.items():
                differences.require_few(f"{operator_at(node)} in {what}")
            return outputs

        return self._each_output(run)


def require_meant(
    physical: ExportedProgram,
    inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    integers: Mapping[Node, torch.Tensor],
    runtime: str,
) -> None:
    """Check that what was written for a runtime is the physical program: the same integers and results.

    Each integer of the program is computed from the integers before it. Dynamic quantisation is not compared:
    the kernels' own scales give other integers.

    Args:
        physical: the physical program.
        inputs: its inputs.
        results: what was written gives for them.
        integers: the integers that it has for quantize nodes of the program.
        runtime: the name of the runtime in errors.

    Raises:
        VerificationError: if they differ by more than rounding explains.
    """
    if is_dynamic(physical.graph_module):
        return
    # A norm of values that are nearly equal amplifies what float32 rounds.
    _with_few_draws(lambda draws: _require_meant(physical, inputs, results, integers, runtime, draws))


def _with_few_draws(compare: Callable[[int], None]) -> None:
    """Compare with the fewest draws of noise that explain what is found."""
    for draws in DRAWS:
        try:
            return compare(draws)
        except VerificationError:
            if draws == DRAWS[-1]:
                raise


def _require_meant(
    physical: ExportedProgram,
    inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    integers: Mapping[Node, torch.Tensor],
    runtime: str,
    draws: int,
) -> None:
    nodes = {node.name: node for node in integers}
    forced = {name: integers[node] for name, node in nodes.items()}
    errors = rounding_errors(physical, inputs, forced, half_sums=True, draws=draws)
    program = Float64Run(graph_with_tensors(physical), forced, margins=errors.read)
    wanted = program.tensors(*inputs)
    for each, differences in program.differences.items():
        differences.require_few(f"{operator_at(nodes[each.name])} as it was written for {runtime}")
    # Another result may be a choice between floats that are nearly the same.
    allowed = errors.outputs or [0.0] * len(wanted)
    real = [each for each in zip(results, wanted, allowed, strict=True) if each[0].dtype in _NUMBERS]
    verify(
        [got for got, *_ in real],
        [w.to(got.dtype) for got, w, _ in real],
        what=f"what was written for {runtime}",
        tolerance=[max(TOLERANCE, min(each, MOST) if draws else each) for *_, each in real],
    )


def require_near(got: torch.Tensor, wanted: torch.Tensor, what: str, inexact: float = 0.0) -> None:
    """Refuse floats that differ from the recomputed ones by more than other roundings explain.

    `inexact` is the relative error of sums as a kernel may keep them.
    """
    allowed = max(TOLERANCE, torch.finfo(wanted.dtype).eps, HALF_FACTOR * inexact)
    verify([got], [wanted], what=what, tolerance=allowed)


def _require_equal(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], what: str) -> None:
    for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
        off = differing(g, w.reshape(g.shape))
        if off:
            raise VerificationError(
                what,
                f"{off} of {g.numel()} elements of output {i} are not what its integer kernels should give",
                "report this network, and on which processor",
            )


def differing(got: torch.Tensor, wanted: torch.Tensor) -> int:
    """Return in how many elements two tensors differ; NaN equals NaN.

    >>> nan = float("nan")
    >>> differing(torch.tensor([1.0, nan, nan, 4.0]), torch.tensor([1.0, nan, 3.0, 5.0]))
    2
    """
    return int(((got != wanted) & ~(got.isnan() & wanted.isnan())).sum())
