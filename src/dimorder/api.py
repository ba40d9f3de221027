"""Run the pipeline: capture, annotate, extract, solve, rewrite, verify, emit, run.

This is the page to read first: `lower` and `_write` are the whole pipeline, and `load` reads a saved program.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dimorder.capture.integer_boundary import Types
from dimorder.clock import Clock, Progress
from dimorder.cpu import require_threads
from dimorder.errors import UnsupportedError, UsageError, installed, require_type
from dimorder.files import as_path
from dimorder.lowered import Lowered
from dimorder.modules import one_at_a_time
from dimorder.pipeline.checking import Checks
from dimorder.pipeline.planning import (
    Problems,
    annotate_variants,
    capture_cheapest,
    capture_sizes,
    extract_problems,
    group_alike,
    has_integers,
    plan_float_islands,
    solve_layout,
    solve_sizes,
    write_physical,
)
from dimorder.pipeline.source import Network, Request, Source, layout_costs, read_source, sources_by_size
from dimorder.pipeline.variants import Variant, contenders, specialize
from dimorder.plans.make_contract import Orders
from dimorder.plans.network_plan import NetworkPlan
from dimorder.runtime.guard import OnMismatch, require_choice
from dimorder.runtime.program import Program
from dimorder.sizes.point_errors import at_point, explained_by_points
from dimorder.sizes.symbolic_program import Point
from dimorder.targets import DEFAULT, find, require_objective, target_for_file
from dimorder.targets.base import Target, UnpredictableError

__all__ = ["Lowered", "load", "lower", "lower_sizes", "plan"]


@one_at_a_time
def plan(
    model: Network,
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
        args: example positional inputs. All options are as for `lower`, except the objective "cycles", which
            only `lower` can compare.

    Returns:
        The plan. `print(plan)` shows it, and `plan.explain(i)` gives the reason for conversion `i`.

    Raises:
        DimorderError: if the network cannot be planned; the error says what to do.

    >>> import torch
    >>> conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> found = plan(conv, (torch.randn(2, 3, 5, 7),), output_orders="NHWC")
    >>> found.cost, found.conversions[0].to_order
    ((840, 1), 'NHWC (0, 2, 3, 1)')
    """
    clock = Clock(progress)
    orders, types = (input_orders, output_orders), (input_types, output_types)
    request = _request(target, objective, orders, types, cost_at)
    source = clock.step("capture", read_source, model, args, kwargs, dynamic_shapes)
    points = specialize(source, request)
    variants = clock.step("capture", capture_cheapest, source, points, request, progress)
    costs = layout_costs(variants[0].target, request.objective)
    annotated = clock.step("annotate", annotate_variants, variants)
    problems = clock.step("extract", extract_problems, annotated, variants, costs)
    planned = clock.step("solve", solve_layout, problems, variants, costs, source, request, progress)
    if not has_integers(variants):
        return planned
    physical = clock.step("rewrite", write_physical, planned, problems, variants, source)
    return plan_float_islands(planned, physical, variants)


@one_at_a_time
def lower(
    model: Network,
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
        model: a module, an exported program, a `.pt2` file, or the result of `quantize`. A module is lowered
            in eval mode, whatever its mode is.
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
        dynamic_shapes: the dynamic sizes, as in torch.export, on targets torch, inductor, xnnpack and litert.
            One program then serves their ranges, and its plan is proven for the ranges if that is possible.
            A quantized network may have them on torch, xnnpack and litert. It brings those that `quantize`
            was given.
        cost_at: a size for each dynamic size. The plan is proven for these sizes if it cannot be proven for
            the ranges. The default is the middle of each range.
        run_artifact: whether the artifact is run and compared. The default is to run it unless that takes
            long: on tosa, Arm's reference model runs networks of up to 10⁹ operations.
        progress: called with the name of each step as the step begins. A step of several parts reports each.

    Returns:
        The lowered network, with its plan, its contract and the artifact.

    Raises:
        DimorderError: if the network cannot be lowered or verified; the error says what to do. A wrong
            program is never returned.

    >>> import torch
    >>> conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    >>> lowered = lower(conv, (torch.randn(2, 3, 5, 7),), input_orders="NHWC", output_orders="NHWC")
    >>> len(lowered.plan.conversions), lowered.max_rel_error < 1e-5
    (0, True)
    """
    fix = "give True or False, or leave it out"
    require_type(run_artifact, (bool, type(None)), "run_artifact", fix)
    clock, lowered = Clock(progress), dict[object, Lowered]()
    orders, types = (input_orders, output_orders), (input_types, output_types)
    request = _request(target, objective, orders, types, cost_at)
    source = clock.step("capture", read_source, model, args, kwargs, dynamic_shapes)
    points = specialize(source, request)
    captured = clock.step("capture", capture_cheapest, source, points, request, progress)
    checks = Checks(source, captured, request, progress)
    with explained_by_points(source.sizes, points):
        for costs, variants in contenders(request, captured):
            chosen = variants[0].target
            annotated = clock.step("annotate", annotate_variants, variants)
            problems = clock.step("extract", extract_problems, annotated, variants, costs)
            planned = clock.step("solve", solve_layout, problems, variants, costs, source, request, progress)
            key = (chosen.capabilities.implementations, planned.layout_plan.choice)
            if key in lowered:  # another contender has the same plan
                continue
            lowered[key] = _write(clock, planned, problems, variants, source, checks, run_artifact)
    return min(lowered.values(), key=lambda one: 0 if one.artifact.npu is None else one.artifact.npu.cycles)


@one_at_a_time
def lower_sizes(
    model: Network,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    target: str | Target = DEFAULT,
    input_orders: Orders = None,
    output_orders: Orders = None,
    input_types: Types = None,
    output_types: Types = None,
    objective: str | None = None,
    cost_at: Point | None = None,
    run_artifact: bool | None = None,
    progress: Progress = lambda step: None,
) -> dict[tuple[int, ...], Lowered]:
    """Lower a network to one artifact for each size, with one plan for all of them.

    This is for targets whose graphs have fixed sizes, such as tosa. Each artifact is verified, and its plan
    is proven at its size. A dimension of size 1 has no order. So graphs with other dimensions of size 1 have
    a plan of their own, such as those for a batch of 1.

    Args:
        model: the network, as for `lower`.
        args: example positional inputs. All options are as for `lower`, except the objectives "time" and
            "cycles", which are known of one size only.
        dynamic_shapes: the dynamic sizes, as in torch.export. Their ranges have 64 sizes at most, such as
            `32 * Dim("rows", min=2, max=8)`. An exported program has its own.

    Returns:
        The lowered networks by their dynamic sizes, in the order in which the inputs have them.

    Raises:
        DimorderError: if the network cannot be lowered at one of the sizes; the error says what to do.

    >>> import torch
    >>> sizes = ({2: 4 * torch.export.Dim("H", min=2, max=4)},)
    >>> conv = torch.nn.Conv2d(3, 8, 3).eval()
    >>> found = lower_sizes(conv, (torch.randn(1, 3, 8, 9),), dynamic_shapes=sizes, target="torch")
    >>> [(size, lowered.contract.inputs[0].shape) for size, lowered in found.items()]
    [((8,), (1, 3, 8, 9)), ((12,), (1, 3, 12, 9)), ((16,), (1, 3, 16, 9))]
    """
    clock = Clock(progress)
    orders, types = (input_orders, output_orders), (input_types, output_types)
    request = _request(target, objective, orders, types, cost_at)
    ranges = clock.step("capture", read_source, model, args, kwargs, dynamic_shapes)
    sources = clock.step("capture", sources_by_size, ranges, request)
    variants = clock.step("capture", capture_sizes, sources, request, progress)
    costs = layout_costs(variants[0].target, request.objective)
    lowered = {}
    for alike in group_alike(variants):
        annotated = clock.step("annotate", annotate_variants, alike)
        problems = clock.step("extract", extract_problems, annotated, alike, costs)
        plans = clock.step("solve", solve_sizes, problems, alike, sources.wanted, progress)
        for problem, variant, planned in zip(problems, alike, plans, strict=True):
            sizes = tuple(variant.point.values())
            source = sources.by_size[sizes].compared_with(ranges.model)
            checks = Checks(source, [variant], request, progress, len(variants))
            with at_point(variant.point):
                own = Clock(progress)
                lowered[sizes] = _write(own, planned, [problem], [variant], source, checks, run_artifact)
    return {sizes: lowered[sizes] for sizes in sources.by_size}


def _request(
    target: str | Target,
    objective: str | None,
    orders: tuple[Orders, Orders],
    types: tuple[Types, Types],
    cost_at: Point | None,
) -> Request:
    asked = find(target)
    require_type(cost_at, (Mapping, type(None)), "cost_at", "give a size for each dynamic size, as {'N': 4}")
    if objective is not None:
        require_objective(asked.name, asked.objectives, objective)
    return Request(asked, objective or asked.objectives[0], orders, types, cost_at)


def _write(
    clock: Clock,
    planned: NetworkPlan,
    problems: Problems,
    variants: Sequence[Variant],
    source: Source,
    checks: Checks,
    run_artifact: bool | None,
) -> Lowered:
    """Write the physical program and the artifact of a plan, and compare both with the network."""
    chosen = variants[0].target
    physical = clock.step("rewrite", write_physical, planned, problems, variants, source)
    planned = plan_float_islands(planned, physical, variants)
    error = clock.step("verify", checks.compare_program, physical, planned)
    with installed(f"target {chosen.name}", chosen.install):
        artifact = clock.step("emit", chosen.emit, physical.program, planned.contract)
        runs = checks.runs_by_default(chosen) if run_artifact is None else run_artifact
        made = artifact, physical, planned, chosen
        try:
            ran = clock.step("run", checks.compare_artifact, *made, runs)
        except UnpredictableError:
            if run_artifact:
                raise
            runs, ran = False, clock.step("run", checks.compare_artifact, *made, False)
    return Lowered(
        plan=planned,
        physical=physical.program,
        artifact=artifact,
        program=source.as_called(variants[0].program),
        verified=checks.verified(max(error, ran), artifact, runs),
        constant_bytes_added=physical.constant_bytes_added(variants),
        target=chosen,
        seconds=clock.seconds,
        specializations=physical.specializations,
    )


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
        path: any `.pte`, or a `.tflite`, `.tosa` or `.pt2` that dimorder wrote.
        on_mismatch: what happens to an input in another order than promised: "adapt" copies it, "warn" copies
            it with a warning, and "error" refuses it.
        target: the target that reads the file; the default is the target that writes such files.
        threads: the number of threads; the default is what the runtime chooses.

    Returns:
        The program, called with the tensors of its contract.

    Raises:
        UsageError: if there is no such file, for what is no path, or if the number of threads cannot be
            chosen.
        ContractError: if the file is damaged or cut off.
        UnsupportedError: if the runtime is not installed, or lacks an operator of the program.

    >>> load("missing.tosa")
    Traceback (most recent call last):
    dimorder.errors.UsageError: loading missing.tosa
      found: missing.tosa: No such file or directory
      fix: give the path of a .tosa file
    """
    file = as_path(path, "loading")
    found = target_for_file(file) if target is None else find(target)
    if found.files.load is None:
        fix = "run it with what it was lowered for"
        raise UnsupportedError(f"loading {file}", f"target {found.name} reads no file back", fix)
    require_choice(on_mismatch)
    with installed(f"target {found.name}", found.install):
        if threads is not None:
            _set_threads(found, threads)
        contract, run = found.files.read(file)
    return Program(file, contract, run, on_mismatch, found.runtime.name or f"target {found.name}")


def _set_threads(target: Target, count: int) -> None:
    require_threads(count)
    if target.runtime.set_threads is None:
        raise UsageError(f"{count} threads", f"target {target.name} has no choice of them", "leave it out")
    target.runtime.set_threads(int(count))
