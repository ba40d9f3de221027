"""Represent `torch.cond` as one call in a graph: a truth value in a tensor chooses one of two graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from dimorder.graph.nodes import add_call, clone_repeated_tensors

COND = torch.ops.higher_order.cond


class Branches:
    """The two graphs of a `torch.cond`, callable as one operator.

    Both graphs take the same operands and return results of the same shapes and types, at all sizes. Two
    calls are equal if they have the same graphs. On meta tensors a call runs `yes`.

    >>> yes = torch.fx.symbolic_trace(lambda x: (x + 1,))
    >>> Branches(yes, torch.fx.symbolic_trace(lambda x: (x * 2,)))(torch.tensor(False), torch.ones(2))
    (tensor([2., 2.]),)
    """

    __module__ = "dimorder.graph.branches"

    def __init__(self, yes: GraphModule, no: GraphModule) -> None:
        self.yes, self.no = yes, no
        self.__name__ = f"cond_{id(yes)}_{id(no)}"  # the name in the code that torch writes from a graph

    def __call__(self, choice: Tensor, *operands: Tensor) -> Any:
        if choice.is_meta:
            return _without_data(self.yes, operands)
        # torch names what a branch takes by its operands, and refuses one name twice.
        return COND(*self.call_args((choice, *clone_repeated_tensors(*operands))))

    def call_args(self, args: Sequence[Any]) -> tuple[Any, GraphModule, GraphModule, tuple[Any, ...]]:
        """Return the arguments of a call as torch's own `cond` takes them."""
        choice, *operands = args
        return choice, self.yes, self.no, tuple(operands)

    def __str__(self) -> str:
        return "cond"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Branches) and (self.yes, self.no) == (other.yes, other.no)

    def __hash__(self) -> int:
        return hash((self.yes, self.no))

    def write_call(self, root: torch.nn.Module, graph: Graph, args: Sequence[Any]) -> Node:
        """Append the call to `graph` as torch's own `cond`, with the branches as submodules of `root`.

        An operand that is there twice is cloned: torch names what a branch takes by its operands.
        """
        count = len(list(root.children())) // 2
        names = f"true_graph_{count}", f"false_graph_{count}"
        for name, branch in zip(names, (self.yes, self.no), strict=True):
            root.add_module(name, branch)
        choice, *operands = args
        own = tuple(
            add_call(graph, torch.ops.aten.clone.default, (each,), like=each)
            if each in operands[:i]
            else each
            for i, each in enumerate(operands)
        )
        return graph.call_function(COND, (choice, *map(graph.get_attr, names), own))


def branches(node: Node) -> tuple[Branches, tuple[Any, ...]]:
    """Return the branches of a `torch.cond` in an exported program, and the arguments to call them with."""
    choice, *_, operands = node.args
    return Branches(*graphs_of(node)), (choice, *operands)  # type: ignore[misc]


def has_branches(graph: Graph) -> bool:
    """Return whether a graph calls `Branches`."""
    return any(isinstance(node.target, Branches) for node in graph.nodes)


def is_static(node: Node) -> bool:
    """Return whether a call is a `torch.cond` that a tensor chooses, without control flow in its branches."""
    if node.target is not COND or not isinstance(node.args[0], Node):
        return False
    return not any(
        isinstance(each.target, torch._ops.HigherOrderOperator)
        for graph in graphs_of(node)
        for each in graph.graph.nodes
    )


def graphs_of(node: Node) -> Iterator[GraphModule]:
    """Yield the two graphs of a `torch.cond` in an exported program."""
    root: Any = node.graph.owning_module
    return (getattr(root, str(each.target)) for each in node.args[1:3])  # type: ignore[union-attr]


def _without_data(branch: GraphModule, operands: Sequence[Any]) -> Any:
    """Return the results of a branch on meta tensors. A branch may write tensors on the CPU of its own."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = pytree.tree_map_only(Tensor, lambda x: torch.empty_like(x, device="cpu"), operands)
        results = branch(*given)
    return pytree.tree_map_only(
        Tensor, lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), results
    )
