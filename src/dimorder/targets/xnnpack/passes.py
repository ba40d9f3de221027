"""List the passes over an XNNPACK graph, in sequence."""

from __future__ import annotations

from torch.fx import Node

from dimorder.sizes.specialization import is_fixed
from dimorder.targets.xnnpack.all_sizes import derive_sizes
from dimorder.targets.xnnpack.fusion import fuse
from dimorder.targets.xnnpack.graph import XnnGraph
from dimorder.targets.xnnpack.serialize import separate_constants


def finish(graph: XnnGraph) -> dict[Node, str]:
    """Run the passes over a graph as it was built, and return its float islands (see `fuse`)."""
    islands = fuse(graph)
    if not all(is_fixed(value.shape) for value in graph.values):
        derive_sizes(graph)
    separate_constants(graph)
    return islands
