"""Capture a network in normal form, at one point of its sizes or at several, each with its contract.

A network of fixed sizes has one variant. A network with dynamic sizes has one for each of a few points, from
which one program for all sizes is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dimorder.capture.captured import Captured, Slices, capture
from dimorder.capture.decompose_dynamic_pool import decompose_dynamic_pool
from dimorder.capture.decompose_dynamic_resize import decompose_dynamic_resize
from dimorder.capture.functionalize import functionalize
from dimorder.capture.integer_boundary import Types, boundary_types, set_boundary_types
from dimorder.capture.rewrite_linears import rewrite_linears
from dimorder.capture.slice_by_range import slice_by_range
from dimorder.capture.tabulate_numbers import tabulate_numbers
from dimorder.clock import Progress
from dimorder.contract import Contract
from dimorder.errors import UnsupportedError
from dimorder.graph.nodes import where
from dimorder.layout.capabilities import Capabilities
from dimorder.layout.costs import Costs
from dimorder.ops.attention import ATTENTION, FUSED_ATTENTION
from dimorder.ops.masks import CAST
from dimorder.ops.quantization import is_quantized
from dimorder.ops.table import OPERATORS
from dimorder.pipeline.source import Request, Source, layout_costs, require_costs_of_sizes
from dimorder.plans.make_contract import make_contract
from dimorder.sizes.choose_points import specialization_points
from dimorder.sizes.constants_by_size import capture_specializations
from dimorder.sizes.point_errors import explained_at
from dimorder.sizes.size_notes import record_dynamic_dims, record_max_shapes, record_uneven_cuts
from dimorder.sizes.slice_lengths import require_slice_lengths
from dimorder.sizes.symbolic_program import Point, SymbolicProgram
from dimorder.targets.base import Target


@dataclass(frozen=True)
class Variant:
    """A network with fixed sizes, in normal form.

    Attributes:
        point: The value of each dynamic size; empty if the network has none.
        program: The network.
        contract: The promised inputs and outputs of its program.
        target: The target, with its capabilities at these sizes.
    """

    point: Point
    program: Captured
    contract: Contract
    target: Target


def specialize(source: Source, request: Request) -> list[Point]:
    """Return the points at which a network is captured: one without sizes, if all its sizes are fixed.

    Raises:
        UsageError: if the objective's costs are known of fixed sizes only.
        UnsupportedError: if the target has no dynamic sizes, or if a range has too few sizes.
    """
    sizes, target = source.sizes, request.target
    if sizes is None:
        return [{}]
    require_costs_of_sizes(request, sizes)
    if target.dynamic is None:
        found = f"dynamic sizes, {sizes.ranges}: its graphs have fixed ones"
        raise UnsupportedError(
            f"target {target.name}", found, "lower one graph for each size: dimorder.lower_sizes"
        )
    return specialization_points(sizes, None if request.cost_at is None else sizes.point(request.cost_at))


def capture_points(
    source: Source, points: Sequence[Point], request: Request, progress: Progress
) -> list[Captured]:
    """Return a network in normal form at each point, with its linears as the network has them."""
    sizes, target = source.sizes, request.target
    if sizes is not None:
        varying = [sizes.varying(point) for point in points]
        return _capture_specializations(sizes, points, varying, target, progress)
    program = capture(
        source.model,
        source.args,
        source.kwargs,
        **_forms(target.capabilities),
    )
    return [program]


def make_variants(
    captured: Sequence[Captured],
    source: Source,
    points: Sequence[Point],
    request: Request,
    splits: bool = True,
) -> list[Variant]:
    """Return a network with its contract at each point, with everything folded into weights that can be.

    Args:
        captured: the network in normal form at each point. One of integers gets its boundary types in place.
        source: the network.
        points: the value of each dynamic size, at every point.
        request: the target, orders and types.
        splits: whether a packed linear whose result is only cut becomes one per piece, if slices take the
            target time.

    Raises:
        UnsupportedError: if the target cannot keep what the network has: state, integers, or dynamic sizes
            beside them.
    """
    sizes, target = source.sizes, request.target
    linears = target.capabilities.linears
    linears = linears if splits else replace(linears, split_channels=None)
    varying = None if sizes is None else [sizes.varying(point) for point in points]
    if sizes is not None:
        record_dynamic_dims([program.module.graph for program in captured])
    programs, targets = rewrite_linears(captured, linears, varying), [target]
    if sizes is not None and varying is not None:
        graphs = [program.module.graph for program in programs]
        table = sizes.table(points)
        record_max_shapes(graphs, table)
        record_dynamic_dims(graphs)
        record_uneven_cuts(graphs, table)
        targets = _sized_targets(target, programs)
    variants = []
    for point, program, own in zip(points, programs, targets, strict=True):
        _require_state(program, own)
        if sizes is not None:
            _require_integers(program, own)
        chosen, types = _quantized_target(program, own, request.types)
        program = set_boundary_types(program, *types)
        contract = make_contract(program, *request.orders, chosen.files.channels_last)
        variants.append(Variant(point, program, contract, chosen))
    return variants


def capture_at(sizes: SymbolicProgram, point: Point, request: Request) -> Captured:
    """Return a network in normal form at one more point, with the integers that the request has at its ends.

    It is what a quantised program is compared with there.

    Raises:
        UnsupportedError: if the network does not accept these sizes.
    """
    program = _capture_point(sizes, request.target, point, {})
    return set_boundary_types(program, *_quantized_target(program, request.target, request.types)[1])


def contenders(request: Request, variants: Sequence[Variant]) -> Iterator[tuple[Costs, list[Variant]]]:
    """Yield the costs and variants of each plan that is lowered.

    There is one, except for an objective that only a compiler can measure: then several are compared.
    """
    own = variants[0].target
    if request.objective not in own.contenders:
        yield layout_costs(own, request.objective), list(variants)
        return
    for objective, target in own.contenders[request.objective]:
        yield layout_costs(target, objective), [replace(variant, target=target) for variant in variants]


def _capture_specializations(
    sizes: SymbolicProgram,
    points: Sequence[Point],
    varying: Sequence[frozenset[int]],
    target: Target,
    progress: Progress,
) -> list[Captured]:
    limits = target.capabilities.fixed_resizes
    if limits is not None:
        taken = frozenset[int]().union(*varying)
        sizes = sizes.rewritten(partial(decompose_dynamic_resize, limits=limits, taken=taken))
    sizes = sizes.rewritten(partial(functionalize, operators=OPERATORS, decompose=False))  # once for all
    sizes = sizes.rewritten(slice_by_range).rewritten(decompose_dynamic_pool)
    sizes = sizes.rewritten(partial(tabulate_numbers, limits=sizes.limits))
    require_slice_lengths(sizes)
    largest = {name: max(point[name] for point in (*points, sizes.corners[-1])) for name in points[0]}
    return capture_specializations(points, largest, partial(_capture_point, sizes, target), progress)


def _capture_point(
    sizes: SymbolicProgram, target: Target, point: Point, slices: Mapping[str, Slices]
) -> Captured:
    with explained_at(point, sizes):
        return capture(sizes.at(point), slices=slices, **_forms(target.capabilities))


def _forms(capabilities: Capabilities) -> dict[str, Any]:
    """Return the arguments of `capture` that say in which operators a target has its networks."""
    fused = [ATTENTION] if FUSED_ATTENTION in capabilities.implementations[0] else []
    fused += [CAST] if capabilities.casts_truths else []
    return {"in_parts": capabilities.in_parts, "in_pairs": capabilities.in_pairs, "fused": fused}


def _sized_targets(target: Target, programs: Sequence[Captured]) -> list[Target]:
    """Return the target at each point of the ranges. An implementation must not be missing at any of them."""
    if target.dynamic is None or target.dynamic.capabilities is None:
        return [target] * len(programs)
    sized = [target.dynamic.capabilities(program.module.graph) for program in programs]
    columns = zip(*(capabilities.implementations for capabilities in sized), strict=True)
    shared = tuple(frozenset.intersection(*names) for names in columns)
    own = min((each.own_implementations for each in sized), key=len)
    changes: dict[str, Any] = {"implementations": shared, "own_implementations": own}
    return [replace(target, capabilities=replace(each, **changes)) for each in sized]


def _require_integers(program: Captured, target: Target) -> None:
    """Refuse integers in a program with dynamic sizes if the target has such programs of floats alone."""
    if is_quantized(program.module) and (target.dynamic is None or not target.dynamic.integers):
        found = f"dynamic sizes, which target {target.name} has for networks of floats"
        fix = "lower one program for each size, or choose target torch, xnnpack or litert"
        raise UnsupportedError("a quantised network", found, fix)


def _require_state(program: Captured, target: Target) -> None:
    """Check that the target can keep the buffers that a program writes from call to call."""
    if not program.state:
        return
    name, left = program.state[0].name, program.carried[0][1]
    place = f"buffer {name} ({where(left)})"
    if not target.runtime.has_state:
        fix = "make it an input and an output, or choose a target that has state, such as xnnpack or torch"
        raise UnsupportedError(
            place, f"the network writes to it, and programs for {target.name} have no state", fix
        )


def _quantized_target(
    program: Captured, target: Target, types: tuple[Types, Types]
) -> tuple[Target, tuple[Types, Types]]:
    """Return the target that a network needs, and the integer types at its inputs and outputs.

    The types are the network's own integers if the caller chose no others and the target takes no floats.
    """
    if target.quantized is None or not is_quantized(program.module):
        return target, types
    own = boundary_types(program)
    return target.quantized, (
        own[0] if types[0] is None else types[0],
        own[1] if types[1] is None else types[1],
    )
