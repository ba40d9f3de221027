"""List the passes over an XNNPACK graph, in sequence."""

from __future__ import annotations

from dimorder.graph.dynamic_sizes import is_fixed
from dimorder.physical.annotations import FusedProgram, How
from dimorder.targets.xnnpack.all_sizes import derive_sizes
from dimorder.targets.xnnpack.fusion import fuse
from dimorder.targets.xnnpack.graph import XnnGraph, passes_on
from dimorder.targets.xnnpack.serialize import separate_constants


def finish(graph: XnnGraph) -> None:
    """Run the passes over a graph as it was built."""
    fuse(graph)
    if not all(is_fixed(value.shape) for value in graph.values):
        derive_sizes(graph)
    separate_constants(graph)


def require_planned(graph: XnnGraph, fused: FusedProgram) -> None:
    """Check that each node in float32 of a graph with integers belongs to a float island of the plan."""
    has_integers = any(value.integer_type for value in graph.values)
    for node in graph.nodes:
        result = graph.values[node.xnode_union.output_id]
        if result.integer_type or passes_on(node) or graph.is_dynamic(node):
            continue
        how = fused.how(result.origin)
        planned = how in (How.ISLAND, How.IN_ISLAND) or (how is None and not has_integers)
        assert planned, f"{result.origin} is in float32, but in the plan it is {how}"
