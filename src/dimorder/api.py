"""Run the pipeline: capture, annotate, extract, solve, rewrite, verify, emit.

This is the page to read first. `lower` is the whole pipeline, `plan` stops before anything is written, and
`load` reads a saved program.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from dimorder.capture.captured import Captured, Slices, arguments, capture, where
from dimorder.capture.decompose_dynamic_resize import decompose_dynamic_resize
from dimorder.capture.fold_into_weights import rewrite_linears
from dimorder.capture.force_cond_branches import force_cond_branches
from dimorder.capture.integer_boundary import Types, own_types, with_types
from dimorder.clock import Clock, Progress
from dimorder.contract import Contract
from dimorder.errors import UnsupportedError, UsageError
from dimorder.graph.branches import has_branches
from dimorder.layout import check_calls, check_program
from dimorder.layout.annotate import annotate
from dimorder.layout.choose import choose
from dimorder.layout.costs import Costs
from dimorder.layout.problem import Extracted, extract
from dimorder.layout.rewrite import constant_bytes, rewrite
from dimorder.lowered import Lowered
from dimorder.ops.quantization import is_quantised
from dimorder.plans.make_contract import Orders, make_contract
from dimorder.plans.network_plan import NetworkPlan
from dimorder.plans.state_plan import state_specs
from dimorder.quantization.quantize import QuantizedNetwork
from dimorder.runtime.guard import OnMismatch, require_choice
from dimorder.runtime.program import Program
from dimorder.sizes.constants_by_size import capture_specializations
from dimorder.sizes.ranges import plan_ranges
from dimorder.sizes.symbolic import merge_programs, record_max_shapes
from dimorder.sizes.symbolic_program import Point, SymbolicProgram, export_symbolic, format_point
from dimorder.targets import DEFAULT, find, target_for_file
from dimorder.targets.base import Artifact, Target
from dimorder.targets.target_info import installed
from dimorder.verification.verify import Run, Trial, Verified
from dimorder.verification.verify_integers import trial_of

__all__ = ["Lowered", "load", "lower", "plan"]

_Network = torch.nn.Module | ExportedProgram | QuantizedNetwork | str | Path
_Asked = tuple[tuple[Orders, Orders], tuple[Types, Types]]


def plan(
    model: _Network,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target = DEFAULT,
    input_orders: Orders = None,
    output_orders: Orders = None,
    input_types: Types = None,
    output_types: Types = None,
    objective: str | None = None,
    dynamic_shapes: Any = None,
    cost_at: Point | None = None,
    progress: Progress = lambda step: None,
) -> NetworkPlan:
    """Return the proven plan of a network for a target and a contract, without emitting anything.

    Args:
        model: the network, as for `lower`.
        args: example positional inputs, as for `lower`.
        kwargs: example keyword inputs, as for `lower`.
        target: the target's name, or the target.
        input_orders: the order that the contract promises for inputs, as for `lower`.
        output_orders: the order that the contract promises for outputs, as for `lower`.
        input_types: the integer types of inputs, as for `lower`.
        output_types: the integer types of outputs, as for `lower`.
        objective: what the plan minimises, as for `lower`, except "cycles", which only `lower` can compare.
        dynamic_shapes: the dynamic sizes, as in torch.export.
        cost_at: the sizes at which costs are reported, as for `lower`.
        progress: called with the name of each step as the step begins.

    Returns:
        The plan. `print(plan)` shows it, and `plan.explain(i)` gives the reason for conversion `i`.

    Raises:
        DimorderError: if the network cannot be planned; the error says what to do.

    >>> conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> found = plan(conv, (torch.randn(2, 3, 5, 7),), output_orders="NHWC")
    >>> found.cost, found.conversions[0].to_order
    ((840, 1), 'NHWC (0, 2, 3, 1)')
    """
    clock, chosen = Clock(progress), find(target)
    objective = objective or chosen.objectives[0]
    model, args, kwargs = _called(model, args, kwargs)
    asked = (input_orders, output_orders), (input_types, output_types)
    sized = clock.step("capture", export_symbolic, model, args, kwargs, dynamic_shapes)
    if sized is not None:
        return _plan_ranges(sized, chosen, asked, objective, cost_at, clock)[0]
    program = clock.step("capture", _captured, model, args, kwargs, chosen, objective)
    _require_state(program, chosen)
    program, contract, chosen = _promised(program, chosen, *asked)
    return _plan(program, contract, chosen, objective, clock)


def lower(
    model: _Network,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target = DEFAULT,
    input_orders: Orders = None,
    output_orders: Orders = None,
    input_types: Types = None,
    output_types: Types = None,
    objective: str | None = None,
    dynamic_shapes: Any = None,
    cost_at: Point | None = None,
    run_artifact: bool | None = None,
    progress: Progress = lambda step: None,
) -> Lowered:
    """Lower a network to a verified artifact with a proven plan, and with its contract inside.

    The physical program is run and compared with the network before it is emitted, and the artifact after
    that. A buffer that the network writes is state of the program, on targets that have state. The network
    itself is left unchanged.

    Args:
        model: a module, an exported program, a `.pt2` file, or the result of `quantize`.
        args: example positional inputs. Their sizes are fixed, except those that `dynamic_shapes` names.
        kwargs: example keyword inputs.
        target: the target's name, or the target.
        input_orders: the order that the contract promises for inputs: one for all, or one per tensor. The
            default is contiguous.
        output_orders: the same for outputs.
        input_types: "int8" or "uint8" if the caller of a quantised network passes integers: one for all, or
            one per tensor. The contract says what the integers stand for. The default is floats, and on
            target tosa the network's own integers.
        output_types: the same for outputs that the caller gets as integers.
        objective: one of the target's objectives; the default is the first. Every target of this package has
            "bytes" moved by conversions, and the "count" of conversions. Target xnnpack also has "time" in
            nanoseconds, and an ethos-u "cycles": several plans are emitted, and the one with the fewest
            cycles by Vela is kept.
        dynamic_shapes: the dynamic sizes, as in torch.export, on targets torch, inductor and xnnpack. One
            program then serves their ranges, and its plan is proven for the ranges if that is possible.
        cost_at: a size for each dynamic size. The plan is proven for these sizes if it cannot be proven for
            the ranges. The default is the middle of each range.
        run_artifact: whether the artifact is run and compared. The default is to run it unless the target's
            runtime is slow (tosa).
        progress: called with the name of each step as the step begins.

    Returns:
        The lowered network, with its plan, its contract and the artifact.

    Raises:
        DimorderError: if the network cannot be lowered or verified; the error says what to do. A wrong
            program is never returned.

    >>> conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    >>> lowered = lower(conv, (torch.randn(2, 3, 5, 7),), input_orders="NHWC", output_orders="NHWC")
    >>> len(lowered.plan.conversions), lowered.max_rel_error < 1e-5
    (0, True)
    """
    clock, chosen = Clock(progress), find(target)
    objective = objective or chosen.objectives[0]
    model, args, kwargs = _called(model, args, kwargs)
    asked = (input_orders, output_orders), (input_types, output_types)
    sized = clock.step("capture", export_symbolic, model, args, kwargs, dynamic_shapes)
    if sized is not None:
        planned, fixed = _plan_ranges(sized, chosen, asked, objective, cost_at, clock)
        return _emit_ranges(planned, fixed, sized, model, chosen, run_artifact, clock)
    program = clock.step("capture", _captured, model, args, kwargs, chosen, objective)
    lowered = _lower_fixed(program, model, chosen, asked, objective, run_artifact, clock)
    for forced in force_cond_branches(program.exported):  # the example inputs choose only one branch of each
        given, named = pytree.tree_unflatten(program.examples, forced.call_spec.in_spec)
        way = clock.step("capture", _captured, forced, given, named, chosen, objective)
        _lower_fixed(way, forced, chosen, asked, objective, run_artifact, clock)
    return lowered


def _lower_fixed(
    program: Captured,
    model: _Network,
    chosen: Target,
    asked: _Asked,
    objective: str,
    run_artifact: bool | None,
    clock: Clock,
) -> Lowered:
    """Lower a network of fixed sizes."""
    _require_state(program, chosen)
    program, contract, chosen = _promised(program, chosen, *asked)
    trial: Trial | None = None
    made: dict[object, Lowered] = {}
    # There is one contender, except for an objective that only a compiler can compare.
    for each, contender in chosen.contenders.get(objective, ((objective, chosen),)):
        planned = _plan(program, contract, contender, each, clock)
        alike = (contender.capabilities.implementations, planned.layout_plan.choice)
        if alike not in made:
            trial = trial or clock.step("verify", trial_of, model, program, contract)
            made[alike] = _emit(planned, program, trial, contender, run_artifact, clock)
    return min(made.values(), key=lambda one: 0 if one.artifact.npu is None else one.artifact.npu.cycles)


def _plan_ranges(
    sized: SymbolicProgram,
    target: Target,
    asked: _Asked,
    objective: str,
    cost_at: Point | None,
    clock: Clock,
) -> tuple[NetworkPlan, list[_Fixed]]:
    """Return the plan of a network with dynamic sizes, and its programs of fixed sizes."""
    costs = _costs(target, objective)
    if costs.configuration is None:
        found = f"symbolic sizes, {', '.join(map(str, sized.symbols))}: its costs are known of fixed ones"
        raise UsageError(f"objective {objective!r}", found, "plan by bytes or count")
    if target.dynamic is None:
        found = f"symbolic sizes, {', '.join(map(str, sized.symbols))}: its graphs have fixed ones"
        raise UnsupportedError(f"target {target.name}", found, "lower one graph for each size that is needed")
    at = None if cost_at is None else sized.point(cost_at)
    points = sized.specialization_points(at)

    varying = [sized.varying(point) for point in points]
    planned = sized
    if target.capabilities.fixed_resizes:
        planned = sized.rewritten(partial(decompose_dynamic_resize, taken=frozenset().union(*varying)))

    def capture_at(point: Point, slices: Mapping[str, Slices]) -> Captured:
        return capture(planned.at(point), slices=slices)

    captured = clock.step("capture", capture_specializations, points, sized.corners[-1], capture_at)
    ways = _cuts(target, objective), target.capabilities.fast_head_matmuls
    captured = clock.step("capture", rewrite_linears, captured, *ways, varying)
    record_max_shapes([program.module.graph for program in captured], sized.table(points))
    targets = _sized(target, varying, captured)
    fixed = [
        _Fixed.at(point, program, made, asked, objective, clock)
        for point, program, made in zip(points, captured, targets, strict=True)
    ]
    contract = sized.make_contract([each.contract for each in fixed])
    extracted, layout_plan, proof = clock.step(
        "solve",
        plan_ranges,
        [each.extracted for each in fixed],
        [each.point for each in fixed],
        sized,
        costs,
        target.capabilities.max_rank,
        at,
    )
    return NetworkPlan(target.name, contract, layout_plan, extracted, ranges=proof), fixed


def _sized(target: Target, varying: Sequence[frozenset[int]], programs: Sequence[Captured]) -> list[Target]:
    """Return the target at each point of the ranges.

    A fixed size may equal a dynamic one by chance at one point. So an implementation that is missing at one
    point is missing at all of them.
    """
    if target.dynamic is None or target.dynamic.capabilities is None:
        return [target] * len(programs)
    made = [
        target.dynamic.capabilities(sizes, program.module.graph)
        for sizes, program in zip(varying, programs, strict=True)
    ]
    columns = zip(*(capabilities.implementations for capabilities in made), strict=True)
    shared = tuple(frozenset.intersection(*names) for names in columns)
    return [
        replace(target, capabilities=replace(capabilities, implementations=shared)) for capabilities in made
    ]


@dataclass(frozen=True)
class _Fixed:
    """A network with dynamic sizes, at one point of their ranges."""

    point: Point
    program: Captured
    contract: Contract
    extracted: Extracted
    target: Target

    @staticmethod
    def at(
        point: Point,
        captured: Captured,
        target: Target,
        asked: _Asked,
        objective: str,
        clock: Clock,
    ) -> _Fixed:
        if is_quantised(captured.module):
            found = "integers, with symbolic sizes"
            raise UnsupportedError("a quantised network", found, "lower one program for each size")
        if has_branches(captured.module.graph):
            found = "symbolic sizes, with branches that data choose"
            raise UnsupportedError("torch.cond", found, "lower one program for each size")
        if captured.state:
            found = "symbolic sizes, with state"
            raise UnsupportedError(
                f"buffer {captured.state[0].name}", found, "lower one program for each size"
            )
        program, contract, _ = _promised(captured, target, *asked)
        extracted = _extract(program, contract, target, objective, clock)
        return _Fixed(point, program, contract, extracted, target)


def _emit_ranges(
    planned: NetworkPlan,
    fixed: Sequence[_Fixed],
    sized: SymbolicProgram,
    model: Any,
    chosen: Target,
    run_artifact: bool | None,
    clock: Clock,
) -> Lowered:
    """Lower a plan for ranges of sizes, and verify the program at the corners of the ranges and between."""
    sizes, contract = sized.table([each.point for each in fixed]), planned.contract
    programs = [_rewrite(each.extracted, planned, each.contract, each.target, clock) for each in fixed]
    physical = clock.step("rewrite", merge_programs, programs, sizes)
    trials = [
        (
            format_point(point),
            clock.step("verify", Trial, model, _captured_at(sized, point, fixed[0].program), contract),
        )
        for point in sized.verification_points
    ]
    error = max(
        clock.step(
            "verify", trial.compare_program, physical, f"the physical program for {chosen.name} at {at}"
        )
        for at, trial in trials
    )
    assert chosen.dynamic is not None
    with installed(chosen.name, chosen.install):
        artifact = clock.step("emit", chosen.dynamic.emit, programs, sizes, contract)
        runs = not chosen.runtime.is_slow if run_artifact is None else run_artifact
        for at, trial in trials if runs else []:
            what = f"the {chosen.suffix} that was emitted, at {at}"
            error = max(error, clock.step("run", trial.compare, artifact.run, what))
    program = replace(fixed[0].program, exported=sized.exported, examples=sized.examples)
    added = max(0, constant_bytes(physical) - program.constant_bytes)
    eager = max((trial.eager_error for _, trial in trials if trial.eager_error is not None), default=None)
    verified = Verified(error, eager, runs, all(trial.input_matters for _, trial in trials))
    parts = planned, physical, artifact, program, verified, added, chosen, clock.seconds
    return Lowered(*parts, specializations=(programs, sizes))


def _captured_at(sized: SymbolicProgram, point: Point, like: Captured) -> Captured:
    """Return what a trial needs of a program at a point: the exported program and its example inputs."""
    exported = sized.at(point)
    assert exported.example_inputs is not None
    return replace(like, exported=exported, examples=tuple(arguments(exported, *exported.example_inputs)))


def _emit(
    planned: NetworkPlan,
    program: Captured,
    trial: Trial,
    chosen: Target,
    run_artifact: bool | None,
    clock: Clock,
) -> Lowered:
    """Lower a plan of fixed sizes, and verify the result."""
    contract = planned.contract
    physical = _rewrite(planned.extracted, planned, contract, chosen, clock)
    error = clock.step("verify", trial.compare_program, physical, f"the physical program for {chosen.name}")
    with installed(chosen.name, chosen.install):
        artifact = clock.step("emit", chosen.emit, physical, contract)
        planned = replace(planned, float_islands=tuple(artifact.float_islands))
        runs = not chosen.runtime.is_slow if run_artifact is None else run_artifact
        run = _run_of(artifact, program) if runs else artifact.exactly
        if run is not None:
            what = f"the {chosen.suffix} that was emitted"
            emitted = clock.step("run", trial.compare, run, what, artifact.exactly if runs else None)
            error = max(error, emitted)
    added = max(0, constant_bytes(physical) - program.constant_bytes)
    verified = Verified(error, trial.eager_error, runs, trial.input_matters)
    return Lowered(planned, physical, artifact, program, verified, added, chosen, clock.seconds)


def _rewrite(
    extracted: Extracted, planned: NetworkPlan, contract: Contract, chosen: Target, clock: Clock
) -> ExportedProgram:
    """Return the physical program of a plan, after checking what it must ensure."""
    physical = clock.step("rewrite", rewrite, extracted, planned.layout_plan, contract)
    check_calls.require_capabilities(physical, extracted, chosen.capabilities, chosen.name)
    faults = check_program.physical_faults(
        physical, extracted, planned.layout_plan, contract, chosen.capabilities
    )
    check_program.require("the physical program", faults)
    return physical


def _captured(
    model: torch.nn.Module | ExportedProgram | str | Path,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    target: Target,
    objective: str,
) -> Captured:
    """Return a network in normal form, with everything folded into its weights that can be folded."""
    captured = [capture(model, args, kwargs)]
    (program,) = rewrite_linears(captured, _cuts(target, objective), target.capabilities.fast_head_matmuls)
    return program


def _cuts(target: Target, objective: str) -> bool:
    """Return whether a packed linear is split into several.

    By count it is not split, because one conversion of the packed result is fewer.
    """
    return target.capabilities.slices_copy and objective != "count"


def _called(
    model: _Network, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[torch.nn.Module | ExportedProgram | str | Path, Sequence[Any], Mapping[str, Any] | None]:
    """Return a network and example inputs for it; a quantised network brings its own inputs."""
    if not isinstance(model, QuantizedNetwork):
        return model, args, kwargs
    own = model.examples[0]
    return (model.module, args, kwargs) if args or kwargs else (model.module, own.args, own.kwargs)


def _run_of(artifact: Artifact, program: Captured) -> Run:
    """Return the artifact as a function, with a state of its own if the program has state."""
    return artifact.started() if program.state else artifact.run


def _require_state(program: Captured, target: Target) -> None:
    """Check that the target can keep the buffers that a program writes from call to call.

    A quantised network with state is refused on every target.
    """
    if not program.state:
        return
    name, left = program.state[0].name, program.carried[0][1]
    place = f"buffer {name} ({where(left)})"
    if not target.runtime.has_state:
        fix = "make it an input and an output, or choose a target that has state, such as xnnpack or torch"
        raise UnsupportedError(
            place, f"the network writes to it, and programs for {target.name} have no state", fix
        )
    if is_quantised(program.module):
        fix = "make it an input and an output, or lower the float network"
        raise UnsupportedError(place, "a quantised network writes to it, which is not there yet", fix)


def _for(program: Captured, target: Target, types: tuple[Types, Types]) -> tuple[Target, tuple[Types, Types]]:
    """Return the target that a network needs, and the integer types at its inputs and outputs.

    The types are the network's own integers if the caller chose no others and the target takes no floats.
    """
    if target.quantized is None or not is_quantised(program.module):
        return target, types
    own = own_types(program)
    return target.quantized, (
        own[0] if types[0] is None else types[0],
        own[1] if types[1] is None else types[1],
    )


def _promised(
    program: Captured, target: Target, orders: tuple[Orders, Orders], types: tuple[Types, Types]
) -> tuple[Captured, Contract, Target]:
    """Return the program, its contract, and the target that it needs."""
    chosen, own = _for(program, target, types)
    program = with_types(program, *own)
    return program, make_contract(program, *orders, chosen.files.channels_last), chosen


def _plan(program: Captured, contract: Contract, target: Target, objective: str, clock: Clock) -> NetworkPlan:
    extracted = _extract(program, contract, target, objective, clock)
    solved = clock.step("solve", choose, extracted, target.capabilities.max_rank)
    contract = replace(contract, state=state_specs(extracted, solved))
    return NetworkPlan(target.name, contract, solved, extracted)


def _extract(
    program: Captured, contract: Contract, target: Target, objective: str, clock: Clock
) -> Extracted:
    costs = _costs(target, objective)
    check_program.require("the captured form", check_program.captured_faults(program))
    annotated = clock.step("annotate", annotate, program)
    check_program.require("the axes of values", check_program.annotated_faults(annotated))
    extracted = clock.step(
        "extract",
        extract,
        annotated,
        [spec.dim_order for spec in contract.inputs],
        [spec.dim_order for spec in contract.outputs],
        costs,
        target.capabilities,
    )
    check_program.require(
        "the layout problem", check_program.problem_faults(extracted, contract, target.capabilities)
    )
    return extracted


def _costs(target: Target, objective: str) -> Costs:
    if objective in target.contenders:
        found = f"{objective!r}, which is known of what is lowered, and not of a plan"
        raise UsageError("objective", found, f"lower the network, or plan by {' or '.join(target.costs)}")
    if objective not in target.costs:
        known = (*target.costs, *target.contenders)
        raise UsageError("objective", f"{objective!r}", f"choose one of {', '.join(known)}")
    return target.costs[objective]


def load(
    path: str | os.PathLike[str],
    on_mismatch: OnMismatch = "adapt",
    *,
    target: str | Target | None = None,
    threads: int | None = None,
) -> Program:
    """Load a saved program with its guard, ready to be called.

    All programs of a process with the same runtime share its threads. Programs share no state, and each
    program's `reset` restores its initial state.

    Args:
        path: any `.pte`, or a `.tosa` or `.pt2` that dimorder wrote.
        on_mismatch: what happens to an input in another order than promised: "adapt" copies it, "warn" copies
            it with a warning, and "error" refuses it.
        target: the target that reads the file; the default is the target that writes such files.
        threads: the number of threads; the default is what the runtime chooses.

    Returns:
        The program, called like the network that it was lowered from.

    Raises:
        UsageError: if there is no such file, or if the number of threads cannot be chosen.
        ContractError: if the file is damaged or cut off.
        UnsupportedError: if the runtime is not installed, or lacks an operator of the program.

    >>> load("missing.tosa")
    Traceback (most recent call last):
    dimorder.errors.UsageError: loading missing.tosa
      found: missing.tosa: No such file or directory
      fix: give the path of a .tosa file
    """
    file = Path(path)
    found = target_for_file(file) if target is None else find(target)
    if found.files.load is None:
        fix = "run it with what it was lowered for"
        raise UnsupportedError(f"loading {file}", f"target {found.name} reads no file back", fix)
    require_choice(on_mismatch)
    with installed(found.name, found.install):
        if threads is not None:
            _set_threads(found, threads)
        contract, run = found.files.load(file)
    return Program(file, contract, run, on_mismatch, found.runtime.name or f"target {found.name}")


def _set_threads(target: Target, count: int) -> None:
    if count < 1:
        raise UsageError(f"{count} threads", "no threads to run with", "say 1 or more")
    if target.runtime.set_threads is None:
        raise UsageError(f"{count} threads", f"target {target.name} has no choice of them", "leave it out")
    target.runtime.set_threads(count)
