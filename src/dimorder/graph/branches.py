"""Decides how `torch.cond` stands in a graph: as one call, of the graph that data choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

COND = torch.ops.higher_order.cond


class Branches:
    """What a call of `torch.cond` runs: one of two graphs over the same operands, with results alike.

    >>> yes = torch.fx.symbolic_trace(lambda x: (x + 1,))
    >>> Branches(yes, torch.fx.symbolic_trace(lambda x: (x * 2,)))(torch.tensor(False), torch.ones(2))
    (tensor([2., 2.]),)
    """

    __module__ = "dimorder.graph.branches"

    def __init__(self, yes: GraphModule, no: GraphModule) -> None:
        self.yes, self.no = yes, no
        self.__name__ = f"cond_{id(self)}"  # in the code that torch writes of a graph

    def __call__(self, choice: Tensor, *operands: Tensor) -> Any:
        if choice.is_meta:
            return self.yes(*operands)
        return COND(choice, self.yes, self.no, operands)

    def __str__(self) -> str:
        return "cond"

    def written(self, root: torch.nn.Module, graph: Graph, args: Sequence[Any]) -> Node:
        """The call as torch has it, at the end of a graph; the branches become modules of its `root`."""
        count = len(list(root.children())) // 2
        read = []
        for name, each in ((f"true_graph_{count}", self.yes), (f"false_graph_{count}", self.no)):
            root.add_module(name, each)
            read.append(graph.get_attr(name))
        choice, *operands = args
        return graph.call_function(COND, (choice, *read, tuple(operands)))


def branches(node: Node) -> tuple[Branches, tuple[Any, ...]]:
    """Those of a call of `torch.cond` in an exported program, and what they are called with."""
    choice, *_, operands = node.args
    return Branches(*_graphs(node)), (choice, *operands)  # type: ignore[misc]


def has_branches(graph: Graph) -> bool:
    """Whether a graph calls branches."""
    return any(isinstance(node.target, Branches) for node in graph.nodes)


def is_static(node: Node) -> bool:
    """Whether a call is one of `torch.cond` whose branches hold no control flow again, chosen by a tensor."""
    if node.target is not COND or not isinstance(node.args[0], Node):
        return False
    return not any(
        isinstance(each.target, torch._ops.HigherOrderOperator)
        for graph in _graphs(node)
        for each in graph.graph.nodes
    )


def _graphs(node: Node) -> Iterator[GraphModule]:
    root: Any = node.graph.owning_module
    return (getattr(root, str(each.target)) for each in node.args[1:3])  # type: ignore[union-attr]
