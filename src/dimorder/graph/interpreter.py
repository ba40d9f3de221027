"""Walk a graph, of torch or of a target, and compute its values: the only interpreter of this package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.nn import Module

from dimorder.graph.branches import COND, Branches
from dimorder.graph.nodes import tensors_in


@dataclass(frozen=True)
class GraphNode:
    """One node of a graph in any format; values have keys."""

    kind: Any  # the name by which a table knows the operator
    inputs: tuple[Any, ...]
    output: Any
    attributes: Any  # what else the format says about the node


GraphNodeT = TypeVar("GraphNodeT", bound=GraphNode)


def interpret(
    nodes: Sequence[GraphNodeT],
    values: Mapping[Any, Any],
    kept: Collection[Any],
    compute: Callable[[GraphNodeT, Sequence[Any]], Any],
) -> dict[Any, Any]:
    """Return the values of a graph with these inputs and constants, by their keys.

    `compute` takes a node and the values that it reads. Values that are not `kept` are released after their
    last reader.

    >>> nodes = [GraphNode("double", ("x",), "y", None), GraphNode("double", ("y",), "z", None)]
    >>> interpret(nodes, {"x": 3}, {"z"}, lambda node, read: 2 * read[0])
    {'z': 12}
    """
    results = dict(values)
    last = {key: node.output for node in nodes for key in node.inputs}
    with torch.no_grad():
        for node in nodes:
            results[node.output] = compute(node, [results[key] for key in node.inputs])
            for key in set(node.inputs):
                if last[key] == node.output and key not in kept:
                    del results[key]
    return results


class GraphRun:
    """A run of a torch graph, operator by operator, as torch computes.

    A subclass computes otherwise, or looks at the results.

    >>> import torch
    >>> class Wide(GraphRun):
    ...     def call(self, target, args, kwargs):
    ...         return super().call(target, [x.double() for x in args], kwargs)
    >>> program = torch.export.export(torch.nn.Sigmoid(), (torch.ones(2),))
    >>> Wide(program.graph_module).run(torch.tensor([0.0, 1.0]))
    (tensor([0.5000, 0.7311], dtype=torch.float64),)
    """

    def __init__(self, module: Module) -> None:
        self.module = module

    def run(self, *inputs: Any) -> Any:
        """Return the graph's outputs for its inputs, one for each placeholder of a tensor."""
        graph: torch.fx.Graph = self.module.graph  # type: ignore[assignment]
        placeholders = [node for node in graph.find_nodes(op="placeholder") if not _is_fixed(node)]
        nodes = [
            GraphNode(node.target, tuple(node.all_input_nodes), node, node.meta)
            for node in graph.nodes
            if node.op not in ("placeholder", "output")
        ]
        output = graph.output_node()
        values = dict(zip(placeholders, inputs, strict=True))
        results = interpret(nodes, values, set(output.all_input_nodes), self._compute)
        return map_arg(output.args[0], results.__getitem__)

    def tensors(self, *inputs: Any) -> list[torch.Tensor]:
        """Return the tensors among the graph's outputs."""
        return tensors_in(self.run(*inputs))

    def _compute(self, node: GraphNode, read: Sequence[Any]) -> Any:
        if node.output.op == "get_attr":
            value, readers = attrgetter(node.kind)(self.module), [each.target for each in node.output.users]
            return self.result(node.output, {}, self.constant(value, readers))
        operands = dict(zip(node.inputs, read, strict=True))
        return self.result(node.output, operands, self.call(node.kind, *arguments(node.output, operands)))

    def constant(self, value: Any, readers: Iterable[Any] = ()) -> Any:
        """Return a constant of the graph as its readers, which are these operators, get it."""
        return value

    def call(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of an operator, of a submodule by its name, or of one branch of `torch.cond`."""
        if isinstance(target, Branches):
            target, args = COND, target.call_args(args)
        if target is COND:
            choice, yes, no, operands = args
            return self.branch_run(yes if choice else no).run(*operands)
        called = self.module.get_submodule(target) if isinstance(target, str) else target
        return called(*args, **kwargs)

    def branch_run(self, branch: Module) -> GraphRun:
        """Return the run of a branch."""
        return GraphRun(branch)

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        """Return the result of a node as its readers get it; `operands` are the values that it read."""
        return result


class GraphWithTensors(Module):
    """A graph with the tensors and the branches that it reads, for a `GraphRun`."""

    def __init__(
        self,
        graph: Graph,
        tensors: Mapping[str, torch.Tensor],
        branches: Mapping[str, Module] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.graph = graph
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
        for name, branch in branches.items():
            self.add_module(name, branch)


def arguments(node: Node, operands: Mapping[Node, Any]) -> tuple[Any, Any]:
    """Return the positional and the keyword arguments of a call, with these values."""
    args, kwargs = map_arg((node.args, node.kwargs), operands.__getitem__)
    return args, kwargs


def _is_fixed(placeholder: Node) -> bool:
    """Return whether a placeholder is for a number, which export has made a part of the graph."""
    return not placeholder.users and not isinstance(placeholder.meta.get("val", torch.empty(0)), torch.Tensor)
