"""Make modules of fx graphs that write and compile their Python code only if they are called.

Most graphs are only read, rewritten and interpreted. Their code would take as long as a pass over them.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule


def graph_module(root: torch.nn.Module, graph: Graph) -> GraphModule:
    """Return a module of a graph; like `GraphModule`, it has those attributes of `root` that the graph reads.

    >>> graph = Graph()
    >>> _ = graph.output(graph.call_function(torch.relu, (graph.placeholder("x"),)))
    >>> graph_module(torch.nn.Module(), graph)(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    return _LazyGraphModule(root, graph)
