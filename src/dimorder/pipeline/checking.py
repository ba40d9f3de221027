"""Compare a physical program and its artifact with the network, at each point and for each branch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NoReturn

import torch
from torch.export import ExportedProgram
from torch.utils.flop_counter import FlopCounterMode

from dimorder.capture.captured import Captured
from dimorder.capture.force_cond_branches import (
    Choices,
    branch_choices,
    force_captured,
    force_exported,
    force_physical,
)
from dimorder.clock import Progress, report_each
from dimorder.contract import Contract
from dimorder.errors import UnsupportedError, VerificationError
from dimorder.graph.branches import Branches
from dimorder.graph.exported import as_function, own_module
from dimorder.graph.nodes import EXPORTED, VALUE, origin_of, tensors_in
from dimorder.ops.quantization import is_quantized
from dimorder.pipeline.planning import PhysicalProgram
from dimorder.pipeline.source import Request, Source
from dimorder.pipeline.variants import Variant, capture_at
from dimorder.plans.network_plan import NetworkPlan
from dimorder.sizes.assumptions import line_against
from dimorder.sizes.choose_points import specialization_points, verification_points
from dimorder.sizes.point_errors import explained_at
from dimorder.sizes.symbolic_program import Point, SymbolicProgram, format_point
from dimorder.targets.base import Artifact, Target
from dimorder.verification.network_calls import CALLS, Run
from dimorder.verification.selections import Selections, selects
from dimorder.verification.verify import CALLS_OF_ONE_SIZE, Trial, Verified
from dimorder.verification.verify_integers import QuantizedTrial, trial_of, trial_of_calls


@dataclass(frozen=True)
class _LabelledTrial:
    """A trial of the network, with its place: a point, or with forced choices of each `torch.cond`."""

    trial: Trial
    at: str = ""
    choices: Choices | None = None
    decides: str | None = None  # the line of the network that decides by sizes, otherwise than the program


class Checks:
    """The network's own results on random inputs, with which programs are compared.

    A network with dynamic sizes is run at the corners of its ranges and between. If it has state, it is also
    run with sizes that change from call to call. A network with branches is also run with forced choices.
    Trials are made when a program is first compared, and serve all programs. `artifacts` is how many are
    lowered, each with checks of its own.
    """

    def __init__(
        self,
        source: Source,
        variants: Sequence[Variant],
        request: Request,
        progress: Progress,
        artifacts: int = 1,
    ) -> None:
        self.source, self.variants, self.request, self.progress = source, variants, request, progress
        self.artifacts = artifacts
        self.trials: list[_LabelledTrial] = []

    def compare_program(self, physical: PhysicalProgram, planned: NetworkPlan) -> float:
        """Run a physical program in torch, and return its largest relative error.

        Raises:
            UnsupportedError: if the network makes no numbers, or not the same numbers twice.
            VerificationError: if an output is farther off than rounding explains.
        """
        what = f"the physical program for {planned.target}"
        is_dynamic = self.source.sizes is not None
        buffers = () if is_dynamic else planned.extracted.buffers
        errors = []
        for choices, checks in self._by_choices(planned.contract, "verify"):
            program = _forced(physical.program, planned, choices)
            run = as_function(program) if is_dynamic else None
            for check in checks:
                try:
                    errors.append(check.trial.compare_program(program, what + check.at, run, buffers))
                except VerificationError as error:
                    selections = self._selections(physical, planned, check)
                    if selections is None:
                        _refuse(error, check)
                    own, place = as_function(selections.program), what + check.at
                    try:
                        errors.append(check.trial.compare_selected(own, selections, place, half_sums=False))
                    except VerificationError as other:
                        _refuse(other, check)
        return max(errors)

    def compare_artifact(
        self, artifact: Artifact, physical: PhysicalProgram, planned: NetworkPlan, target: Target, runs: bool
    ) -> float:
        """Run an artifact, and return its largest relative error.

        Args:
            artifact: what was emitted from the physical program. For forced choices it is emitted again.
            physical: the physical program.
            planned: its plan.
            target: the target.
            runs: whether the artifact itself is run. If not, what it computes by other means is compared.

        Raises:
            UnsupportedError: if the network needs a type that the target computes in float32.
            VerificationError: if an output is farther off than rounding explains.
        """
        try:
            return self._compare_artifact(artifact, physical, planned, target, runs)
        except VerificationError as error:
            nodes = physical.program.graph.nodes
            types = {each.dtype for node in nodes for each in tensors_in(node.meta.get("val"))}
            needed = ", ".join(map(str, types & target.capabilities.in_float32))
            if not needed:
                raise
            found = f"{error.found}; the target computes {needed} in float32"
            fix = "let float32 be enough: smaller numbers, or .float(); or lower it for target torch"
            raise UnsupportedError(error.where, found, fix) from error

    def _compare_artifact(
        self, artifact: Artifact, physical: PhysicalProgram, planned: NetworkPlan, target: Target, runs: bool
    ) -> float:
        errors = [0.0]
        for choices, checks in self._by_choices(planned.contract, "run"):
            emitted, program = artifact, _forced(physical.program, planned, choices)
            if choices is not None:
                emitted = target.emit(program, planned.contract)
            own = as_function(program)
            run = emitted.start() if runs else emitted.reference_run
            for check in checks:
                what = f"the {target.suffix} that was emitted{check.at}"
                try:
                    if run is not None:
                        model = emitted.reference_run if runs else None
                        errors.append(check.trial.compare(run, what, model, physical=own))
                    for name, other in (emitted.other_runs if runs else {}).items():
                        ran = f"{what}, run by {name}"
                        errors.append(check.trial.compare_once(other, ran, physical=own))
                except VerificationError as error:
                    selections = self._selections(physical, planned, check)
                    if selections is None or run is None:
                        _refuse(error, check)
                    try:
                        found = _compare_selected(check.trial, emitted, selections, target, what, runs)
                    except UnsupportedError:
                        _refuse(error, check)
                    errors.append(found)
        return max(errors)

    def _selections(
        self, physical: PhysicalProgram, planned: NetworkPlan, check: _LabelledTrial
    ) -> Selections | None:
        """Return what a float network selects, if it selects anything."""
        if isinstance(check.trial, QuantizedTrial) or check.choices is not None:
            return None
        network = check.trial.functional.module.graph
        return Selections.of(physical.program, planned.contract, planned.extracted.buffers, network)

    def runs_by_default(self, target: Target) -> bool:
        """Return whether the target's runtime is fast enough to run all artifacts of the lowering."""
        most = target.runtime.most_operations
        return most == math.inf or self.artifacts * self._operations <= most

    @cached_property
    def _operations(self) -> int:
        """How many operations the products of the network take: two for each multiplication."""
        program = self.variants[0].program.exported
        args, kwargs = program.example_inputs
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            own_module(program)(*args, **kwargs)
        return int(counter.get_total_flops())

    def verified(self, error: float, artifact: Artifact, runs: bool) -> Verified:
        """Return what was found, after all comparisons; `runs` says whether the artifact was run."""
        trials = [check.trial for check in self.trials]
        eager = max((trial.eager_error for trial in trials if trial.eager_error is not None), default=None)
        return Verified(
            max_rel_error=error,
            eager_error=eager,
            artifact_ran=runs and artifact.stand_in is None,
            input_matters=all(trial.input_matters for trial in trials),
            stand_in=artifact.stand_in if runs else None,
        )

    def _by_choices(
        self, contract: Contract, step: str
    ) -> Iterator[tuple[Choices | None, Iterator[_LabelledTrial]]]:
        """Group the trials by their choices: one program serves all trials of the same choices."""
        if not self.trials:
            self.trials += self._label_trials(contract)
            self.variants[0].program.forget_float64()  # its constants are those of all
        trials = report_each(self.trials, step, self.progress)
        return itertools.groupby(trials, key=lambda trial: trial.choices)

    def _label_trials(self, contract: Contract) -> Iterator[_LabelledTrial]:
        model, sizes, program = self.source.model, self.source.sizes, self.variants[0].program
        if sizes is None:
            yield _LabelledTrial(trial_of(model, program, contract))
            for choices in branch_choices(program.exported):
                forced = force_captured(program, choices)
                trial = trial_of(forced.exported, forced, contract)
                yield _LabelledTrial(trial, ", with forced branches", choices)
            return
        planned = [variant.point for variant in self.variants]
        if self.request.cost_at is not None:  # a file names no such point, but the first of the others
            planned = specialization_points(sizes)
        points, at_points = verification_points(sizes, planned), list[Captured]()
        for i, point in enumerate(report_each(points, "running the network", self.progress)):
            trial = self._trial_at(point, sizes, contract, repeats=i == 0)
            at_points.append(trial.program)
            decides = line_against(sizes, point)
            yield _LabelledTrial(trial, f", at {format_point(point)}", decides=decides)
        if program.state:
            calls = list(itertools.islice(itertools.cycle(at_points), max(CALLS, len(points))))
            trial = trial_of_calls(model, self.source.as_called(program), contract, calls)
            yield _LabelledTrial(trial, ", with other sizes in each call")
        for choices, point in itertools.product(branch_choices(sizes.exported), points):
            trial = self._forced_trial_at(point, sizes, contract, choices)
            yield _LabelledTrial(trial, f", with forced branches, at {format_point(point)}", choices)

    def _trial_at(self, point: Point, sizes: SymbolicProgram, contract: Contract, repeats: bool) -> Trial:
        """Return the trial of a network at a point.

        A quantized network is captured there. A float network's exported program is specialized only if a
        trial needs it, or to explain what the network refuses.
        """
        model, like, exported = self.source.model, self.variants[0].program, partial(sizes.at, point)
        calls = CALLS_OF_ONE_SIZE if like.state else 1
        with explained_at(point, sizes):
            if is_quantized(like.module):
                program = capture_at(sizes, point, self.request)
                program.share_constants(like)
                return QuantizedTrial(model, program, contract, repeats, [program] * calls)
            program = replace(like, examples=sizes.inputs_at(point))
            if not isinstance(model, torch.nn.Module):
                program = replace(program, exported=exported())
            return Trial(model, program, contract, exported, repeats, [program.examples] * calls)

    def _forced_trial_at(
        self, point: Point, sizes: SymbolicProgram, contract: Contract, choices: Choices
    ) -> Trial:
        """Return the trial of a network at a point, with forced choices of each `torch.cond`."""
        like = self.variants[0].program
        if is_quantized(like.module):
            forced = force_captured(capture_at(sizes, point, self.request), choices)
            return QuantizedTrial(forced.exported, forced, contract)
        exported = force_exported(sizes.at(point), choices)
        program = replace(like, examples=sizes.inputs_at(point), exported=exported)
        return Trial(exported, program, contract)


def _refuse(error: VerificationError, check: _LabelledTrial) -> NoReturn:
    """Raise the error of a program whose selections are not followed, and say so if it selects anything.

    Raises:
        UnsupportedError: if torch.export says another shape of an output than the network returns. It says
            those of sizes of at least 2.
    """
    trial = check.trial
    nodes = {node.name: node for node in trial.exported.graph.nodes}
    returned = [
        nodes[name].meta[VALUE] for name in trial.exported.graph_signature.user_outputs if name in nodes
    ]
    exported = [value for value in returned if isinstance(value, torch.Tensor)]
    for i, (said, own) in enumerate(zip(exported, trial.expected, strict=False)):
        if said.shape != own.shape:
            found = f"output {i} has the shape {tuple(own.shape)}; torch.export says {tuple(said.shape)}"
            fix = "let the ranges begin at 2 (min=2), or return the same dimensions and sizes there"
            if check.decides is not None:
                found = f"the network decides by sizes at {check.decides}: {found}"
                fix = "narrow the ranges, or decide by torch.where"
            raise UnsupportedError(error.where, found, fix) from error
    if not selects(trial.functional.module.graph):
        raise error
    fix = "return what it selects from: a rounding may exchange scores, or cross a step; else report it"
    raise type(error)(error.where, error.found, fix) from error


def _compare_selected(
    trial: Trial, artifact: Artifact, selections: Selections, target: Target, what: str, runs: bool
) -> float:
    """Return the relative error of an artifact whose network selects what the artifact selects.

    The artifact is emitted once more, with what it selects among its outputs. The others must be equal.

    Raises:
        UnsupportedError: if the target cannot give these outputs.
        VerificationError: if the artifact does not select well, or is farther off than rounding explains.
    """
    more = target.emit(selections.program, selections.contract)
    errors = []
    for name, own, other in _runs(artifact, more, what, runs):
        trial.require_same(own, selections.record(other), name)
        errors.append(trial.compare_selected(other, selections, name))
    return max(errors)


def _runs(artifact: Artifact, more: Artifact, what: str, runs: bool) -> Iterator[tuple[str, Run, Run]]:
    """Yield each way to run an artifact and another one, with its name in errors."""
    ways = [(each.start() if runs else each.reference_run) for each in (artifact, more)]
    if ways[0] is not None and ways[1] is not None:
        yield what, ways[0], ways[1]
    for name, own in (artifact.other_runs if runs else {}).items():
        yield f"{what}, run by {name}", own, more.other_runs[name]


def _forced(program: ExportedProgram, planned: NetworkPlan, choices: Choices | None) -> ExportedProgram:
    """Return a physical program with the choices that the exported network has."""
    if choices is None:
        return program
    sites = planned.extracted.sites
    calls = [node for node in program.graph.nodes if isinstance(node.target, Branches)]
    return force_physical(
        program, {call.name: choices[sites[origin_of(call)["site"]].node.meta[EXPORTED]] for call in calls}
    )
