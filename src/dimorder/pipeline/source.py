"""Read the network that a caller gives, and the request: the target, the objective, orders and types."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from dimorder.capture.captured import Captured
from dimorder.capture.export import read_exported
from dimorder.capture.integer_boundary import Types
from dimorder.errors import UnsupportedError, UsageError
from dimorder.layout.costs import Costs
from dimorder.plans.make_contract import Orders
from dimorder.quantization.quantize import QuantizedNetwork
from dimorder.sizes.export_symbolic import export_symbolic
from dimorder.sizes.point_errors import explained_at
from dimorder.sizes.symbolic_program import Point, SymbolicProgram
from dimorder.targets import require_objective
from dimorder.targets.base import Target

Network = torch.nn.Module | ExportedProgram | QuantizedNetwork | str | Path


@dataclass(frozen=True)
class Request:
    """A caller's request: the target, the objective, orders and types.

    Attributes:
        target: The target.
        objective: The name of the cost that the plan minimises, such as "bytes".
        orders: The orders of inputs, and of outputs.
        types: The integer types of inputs, and of outputs.
        cost_at: The sizes at which a plan for ranges is solved, if not in the middle of each range.
    """

    target: Target
    objective: str
    orders: tuple[Orders, Orders]
    types: tuple[Types, Types]
    cost_at: Point | None = None


@dataclass(frozen=True)
class Source:
    """A network as it was given, with the example inputs of a call.

    `sizes` is the network with dynamic sizes, or None if all its sizes are fixed.
    """

    model: torch.nn.Module | ExportedProgram
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    sizes: SymbolicProgram | None

    def as_called(self, program: Captured) -> Captured:
        """Return a captured network with the exported program and the examples of the caller's own sizes."""
        if self.sizes is None:
            return program
        return replace(program, exported=self.sizes.exported, examples=self.sizes.examples)

    def compared_with(self, model: Network) -> Source:
        """Return the network whose results are compared with those of the module that was given, if any."""
        return replace(self, model=model) if isinstance(model, torch.nn.Module) else self


def read_source(
    model: Network, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> Source:
    """Return a network with example inputs; a quantized network brings its own inputs and dynamic sizes.

    Raises:
        UsageError: if a file cannot be read, a size has no upper bound, or it is not a multiple of a symbol.
        UnsupportedError: if a network with dynamic sizes cannot be exported.
    """
    if isinstance(model, QuantizedNetwork):
        if not args and not kwargs:
            args, kwargs = model.examples[0].args, model.examples[0].kwargs
        if dynamic_shapes is None:
            dynamic_shapes = model.dynamic_shapes
        elif model.dynamic_shapes is None:
            return _resized(model.module, args, kwargs, dynamic_shapes)
        model = model.module
    if isinstance(model, (str, Path)):
        model = read_exported(model)
    return Source(model, args, kwargs, export_symbolic(model, args, kwargs, dynamic_shapes))


def _resized(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> Source:
    """Return a network that was quantised at fixed sizes, with dynamic ones if it reads none of them."""
    try:
        return Source(module, args, kwargs, export_symbolic(module, args, kwargs, dynamic_shapes))
    except UnsupportedError as error:
        fix = "give dynamic_shapes to quantize, which fixes the sizes that the network reads"
        raise UnsupportedError(error.where, error.found, fix) from error


MOST_GRAPHS = 64  # that are lowered together, one for each size


@dataclass(frozen=True)
class SourcesBySize:
    """A network with fixed sizes, at each point of its ranges.

    Attributes:
        points: The points.
        by_size: The network at each, by its dynamic sizes.
        wanted: The point that the plan is made for.
    """

    points: Sequence[Point]
    by_size: Mapping[tuple[int, ...], Source]
    wanted: Point


def sources_by_size(source: Source, request: Request) -> SourcesBySize:
    """Return a network at all points of its ranges.

    Raises:
        UsageError: if no size is dynamic, if the ranges have too many sizes, or if the costs of the objective
            are not known of several sizes.
        UnsupportedError: if the network does not accept one of the sizes.
    """
    sizes = source.sizes
    if sizes is None:
        raise UsageError("lower_sizes", "no dynamic sizes", "name them in dynamic_shapes, or call lower")
    require_costs_of_sizes(request, sizes)
    points = list(itertools.islice(sizes.points(), MOST_GRAPHS + 1))
    if len(points) > MOST_GRAPHS:
        found = f"more than {MOST_GRAPHS} sizes in {sizes.ranges}"
        raise UsageError("lower_sizes", found, "narrow the ranges, or take multiples of a larger step")
    by_size = {}
    for point in points:
        with explained_at(point, sizes):
            by_size[tuple(point.values())] = Source(sizes.at(point), (), None, None)
    return SourcesBySize(points, by_size, sizes.point(request.cost_at or {}))


def require_costs_of_sizes(request: Request, sizes: SymbolicProgram) -> None:
    """Refuse an objective whose costs are known of networks of fixed sizes only.

    Raises:
        UsageError: for such an objective.
    """
    target = request.target
    if layout_costs(target, request.objective).configuration is None:
        found = f"dynamic sizes, {sizes.ranges}: its costs are known of fixed ones"
        others = [name for name, costs in target.costs.items() if costs.configuration is not None]
        raise UsageError(f"objective {request.objective!r}", found, f"plan by {' or '.join(others)}")


def layout_costs(target: Target, objective: str) -> Costs:
    """Return the costs by which a plan is made.

    Raises:
        UsageError: if the target has no such objective, or knows it only of lowered programs.
    """
    if objective in target.contenders:
        found = "only lower can compare its plans"
        raise UsageError(
            f"objective {objective!r}", found, f"lower the network, or plan by {' or '.join(target.costs)}"
        )
    require_objective(target.name, target.costs, objective)
    return target.costs[objective]
