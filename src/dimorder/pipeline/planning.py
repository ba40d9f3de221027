"""Plan the variants of a network together, and write the plan as one physical program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from torch.export import ExportedProgram

from dimorder.capture import check_captured
from dimorder.clock import Progress, StepPart, report_each
from dimorder.errors import UsageError
from dimorder.graph.nodes import tensors_in
from dimorder.graph.passes import require
from dimorder.graph.quantized import equal_ones
from dimorder.layout import check_program
from dimorder.layout.annotate import Annotated, annotate_points
from dimorder.layout.costs import Costs
from dimorder.layout.problem import Extracted, choose, extract
from dimorder.layout.rewrite import constant_bytes, rewrite
from dimorder.ops.quantization import is_quantized
from dimorder.physical.keep_unit_dims import keep_unit_dims
from dimorder.pipeline.source import Request, Source, SourcesBySize
from dimorder.pipeline.variants import Variant, capture_points, make_variants
from dimorder.planning.problem import Cost, evaluate
from dimorder.planning.solve import LIMIT_S
from dimorder.plans.explanation import Place
from dimorder.plans.network_plan import NetworkPlan
from dimorder.plans.state_plan import state_specs
from dimorder.sizes.merge_specializations import merge_programs
from dimorder.sizes.point_errors import at_point
from dimorder.sizes.ranges import plan_ranges
from dimorder.sizes.size_table import SizeTable
from dimorder.sizes.symbolic_program import Point, format_point

Problems: TypeAlias = Sequence[Extracted]  # one at each point


@dataclass(frozen=True)
class PhysicalProgram:
    """The physical program of a plan.

    Attributes:
        program: The program, for all sizes.
        specializations: For a network with dynamic sizes, the programs that it was merged from, and the table
            of sizes at their points.
    """

    program: ExportedProgram
    specializations: tuple[Sequence[ExportedProgram], SizeTable] | None = None

    def constant_bytes_added(self, variants: Sequence[Variant]) -> int:
        """Return the bytes by which constants grew, because one is kept in two orders."""
        return max(0, constant_bytes(self.program) - variants[0].program.constant_bytes)


def capture_cheapest(
    source: Source, points: Sequence[Point], request: Request, progress: Progress
) -> list[Variant]:
    """Return the network at each point, with packed linears split, or whole if that takes fewer conversions.

    Pieces have the same bytes as the whole, so only a plan by count has to try both.
    """
    captured = capture_points(source, points, request, progress)
    split = make_variants(captured, source, points, request)
    costs = split[0].target.costs.get(request.objective)
    linears = request.target.capabilities.linears
    splits = linears.split_channels is not None and not is_quantized(captured[0].module)
    if costs is None or costs.units[0] != "conversions" or not splits:
        return split
    whole = make_variants(captured, source, points, request, splits=False)
    if _called(whole) == _called(split):
        return split

    def cost(variants: list[Variant]) -> Cost:
        problems = extract_problems(annotate_variants(variants), variants, costs)
        return solve_layout(problems, variants, costs, source, request, progress).cost

    return min(split, whole, key=cost)


def capture_sizes(sources: SourcesBySize, request: Request, progress: Progress) -> list[Variant]:
    """Return a network at several sizes, each captured like a network of fixed sizes."""
    found = []
    points = report_each(sources.points, "capture", progress)
    for point, source in zip(points, sources.by_size.values(), strict=True):
        with at_point(point):
            (variant,) = capture_cheapest(source, [{}], request, lambda step: None)
        capabilities = replace(variant.target.capabilities, at_all_sizes=None)
        target = replace(variant.target, capabilities=capabilities)
        found.append(replace(variant, point=point, target=target))
    return found


def _called(variants: Sequence[Variant]) -> list[object]:
    return [node.target for node in variants[0].program.nodes]


def annotate_variants(variants: Sequence[Variant]) -> list[Annotated]:
    """Return each variant with axes for every value."""
    programs = [variant.program for variant in variants]
    for program in programs:
        require("the captured form", check_captured.captured_faults(program))
    found = annotate_points(programs)
    for annotated in found:
        require("the axes of values", check_program.annotated_faults(annotated))
    return found


def extract_problems(
    annotated: Sequence[Annotated], variants: Sequence[Variant], costs: Costs
) -> list[Extracted]:
    """Return the layout problem of each variant; they differ only in sizes and costs."""
    contract, capabilities = variants[0].contract, variants[0].target.capabilities
    inputs, outputs = ([spec.dim_order for spec in specs] for specs in (contract.inputs, contract.outputs))
    points = [format_point(variant.point) for variant in variants]
    first, *others = extract(annotated, inputs, outputs, costs, capabilities, points)
    require("the layout problem", check_program.problem_faults(first, contract, capabilities, others))
    return [first, *others]


def solve_layout(
    problems: Sequence[Extracted],
    variants: Sequence[Variant],
    costs: Costs,
    source: Source,
    request: Request,
    progress: Progress,
) -> NetworkPlan:
    """Return the cheapest plan; with dynamic sizes it is one for all sizes, with what is proven of it.

    Raises:
        UsageError: if costs are asked for at sizes, and none is dynamic.
        UnsupportedError: if every plan needs a transpose of a rank that the target lacks, or if an operator
            may run in other ways at one point than at another.
    """
    contract, target = variants[0].contract, variants[0].target
    sizes = source.sizes
    progress(StepPart("solve", limit_s=LIMIT_S))
    if sizes is None and request.cost_at:
        fix = "leave it out, or give the network dynamic sizes"
        raise UsageError("cost_at", "a network without dynamic sizes", fix)
    if sizes is None:
        problem, proof = problems[0], None
        layout = choose(problem)
    else:
        at = None if request.cost_at is None else sizes.point(request.cost_at)
        points = [variant.point for variant in variants]
        problem, layout, proof = plan_ranges(problems, points, sizes, costs, at, progress)
        contract = sizes.make_contract([variant.contract for variant in variants])
    contract = replace(contract, state=state_specs(problem, layout))
    return NetworkPlan(target.name, contract, layout, problem, ranges=proof)


def group_alike(variants: Sequence[Variant]) -> list[list[Variant]]:
    """Group a network's variants at several sizes by their dimensions of size 1, which have no order."""
    found: dict[object, list[Variant]] = {}
    for variant in variants:
        values = (each for node in variant.program.nodes for each in tensors_in(node.meta.get("val")))
        units = tuple(tuple(size == 1 for size in value.shape) for value in values)
        found.setdefault(units, []).append(variant)
    return list(found.values())


def solve_sizes(
    problems: Problems, variants: Sequence[Variant], wanted: Point, progress: Progress
) -> list[NetworkPlan]:
    """Return one plan at each of several sizes, with what is proven there.

    Args:
        problems: The layout problem at each size.
        variants: The network at each size.
        wanted: The plan is the cheapest at the size that is nearest to this one.
        progress: Is told of each size.
    """

    def distance(variant: Variant) -> int:
        return sum(abs(size - wanted[name]) for name, size in variant.point.items())

    target = variants[0].target
    nearest = min(range(len(variants)), key=lambda i: distance(variants[i]))
    best = [choose(each) for each in report_each(problems, "solve", progress)]
    choice, plans = best[nearest].choice, []
    for problem, variant, alone in zip(problems, variants, best, strict=True):
        found, proven = evaluate(problem.problem, choice), alone.certificate
        certificate = replace(proven, cost=found.cost, optimal=proven.lower_bound == found.cost[0])
        own = replace(alone, choice=choice, conversions=found.conversions, cost=found.cost)
        own = replace(own, certificate=certificate)
        contract = replace(variant.contract, state=state_specs(problem, own))
        plans.append(NetworkPlan(target.name, contract, own, problem))
    return plans


def write_physical(
    planned: NetworkPlan, problems: Sequence[Extracted], variants: Sequence[Variant], source: Source
) -> PhysicalProgram:
    """Return the physical program of a plan, after checking what it must ensure.

    Raises:
        UnsupportedError: for the first operator that cannot be written for all sizes.
    """
    programs = list[ExportedProgram]()
    for extracted, variant in zip(problems, variants, strict=True):
        contract = planned.contract if source.sizes is None else variant.contract
        capabilities = variant.target.capabilities
        program = rewrite(extracted, planned.layout_plan, contract)
        check_program.require_capabilities(program, extracted, capabilities, variant.target.name)
        require(
            "the physical program",
            check_program.physical_faults(program, extracted, planned.layout_plan, contract, capabilities),
        )
        if programs:  # memory holds the constants of all sizes once
            program.state_dict.update(equal_ones(program.state_dict, programs[0].state_dict))
        programs.append(program)
    if source.sizes is None:
        return PhysicalProgram(programs[0])
    programs = keep_unit_dims(
        programs, partial(check_program.refused_at_all_sizes, capabilities=capabilities)
    )
    table = source.sizes.table([variant.point for variant in variants])
    return PhysicalProgram(merge_programs(programs, table), (programs, table))


def has_integers(variants: Sequence[Variant]) -> bool:
    """Return whether the target computes the network, or a part of it, in integers."""
    return variants[0].target.fused is not None and is_quantized(variants[0].program.module)


def plan_float_islands(
    planned: NetworkPlan, physical: PhysicalProgram, variants: Sequence[Variant]
) -> NetworkPlan:
    """Return the plan with the operators of a quantized network that the target computes in float32.

    Raises:
        UnsupportedError: for the first of these operators, if the target computes nothing in float32.
    """
    fused = variants[0].target.fused
    if fused is None or not has_integers(variants):
        return planned
    islands = fused(physical.program, planned.contract).float_islands
    return replace(
        planned,
        float_islands=tuple({Place.of(node): reason for node, reason in islands.items()}.items()),
    )
