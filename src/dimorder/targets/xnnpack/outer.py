"""Write the program around the delegates: calls of delegates and of portable kernels."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor
from torch.fx import Graph, Node

from dimorder.graph.branches import Branches
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.targets.delegate import empty, lowered
from dimorder.targets.table import is_getitem
from dimorder.targets.xnnpack import passes
from dimorder.targets.xnnpack.delegates import Delegate, build_delegate
from dimorder.targets.xnnpack.exact import Computed
from dimorder.targets.xnnpack.fusion import fuse
from dimorder.targets.xnnpack.graph import XnnGraph
from dimorder.targets.xnnpack.graph_model import model_of
from dimorder.targets.xnnpack.kernels import KernelRun
from dimorder.targets.xnnpack.partition import Partition
from dimorder.targets.xnnpack.serialize import serialize

aten = torch.ops.aten

BACKEND = "XnnpackBackend"  # the name that the stock runtime registers

# For views whose results are not dense.
_COPIES: Mapping[Any, Any] = MappingProxyType(
    {
        aten.permute.default: aten.permute_copy.default,
        aten.expand.default: aten.expand_copy.default,
        SLICE_CONSTANT: aten.slice_copy.Tensor,
    }
)

# Portable kernels that read only 64-bit positions, and the operand that holds these.
_POSITIONS: Mapping[Any, int] = MappingProxyType(
    {
        aten.gather.default: 2,
        aten.scatter.src: 2,
        aten.scatter.value: 2,
        aten.scatter_add.default: 2,
    }
)


def build_outer(plan: Partition, bare: bool = False) -> OuterBuilder:
    """Return the program as calls of delegates and portable operators, and the facts about its delegates."""
    root, graph = torch.nn.Module(), Graph()
    values: dict[Node, Node] = {node: graph.placeholder(node.name) for node in plan.inputs}
    build = OuterBuilder(plan, root, graph, values, bare)
    for stage in sorted(set(plan.stage.values())):
        group = [node for node, s in plan.stage.items() if s == stage]
        build.delegate(group) if stage % 2 == 0 else build.outside(group)
    results = [build.result(node) for node in plan.outputs]
    for i, result in enumerate(results[: len(plan.state)]):
        if result.op == "get_attr":  # ExecuTorch would mistake it for the buffer that is written
            results[i] = graph.call_function(aten.clone.default, (result,))
    graph.output(tuple(results))
    return build


@dataclass
class OuterBuilder:
    """Writes the calls of delegates, and one call for each node that runs outside, on dense tensors.

    Edge dialect has copies instead of views. A permute is a copy there, so a clone that makes a view dense
    has nothing left to do.
    """

    plan: Partition
    root: torch.nn.Module
    graph: Graph
    values: dict[Node, Node]
    bare: bool = False  # without the content of its delegates
    transposes: int = 0
    kernels: list[KernelRun] = field(default_factory=list)
    is_quantised: bool = False
    computed: dict[str, Computed] = field(default_factory=dict)
    delegates: dict[str, tuple[Sequence[Tensor], Sequence[Tensor], XnnGraph]] = field(default_factory=dict)
    float_islands: dict[Node, str] = field(default_factory=dict)
    long: dict[Node, Node] = field(default_factory=dict)

    def delegate(self, group: Sequence[Node]) -> None:
        delegate = build_delegate(self.plan, group)
        graph = delegate.graph
        self.float_islands.update(fuse(graph) if self.bare else passes.finish(graph))
        self.transposes += graph.transposes
        self.kernels += graph.kernels() if graph.is_of_float32 else []
        self.is_quantised |= graph.is_quantised
        name = f"delegate_{len(self.delegates)}"
        reads, results = (
            [empty(node.meta["val"], self.plan.is_nhwc(node)) for node in nodes]
            for nodes in (delegate.reads, delegate.results)
        )
        self.delegates[name] = reads, results, graph
        if not self.bare:
            self._attach(name, delegate)
        call = self.graph.call_module(name, tuple(self.values[node] for node in delegate.reads))
        for position, node in enumerate(delegate.results):
            self.values[node] = self.graph.call_function(operator.getitem, (call, position))

    def _attach(self, name: str, delegate: Delegate) -> None:
        """Put the delegate of that name into the program."""
        reads, results, graph = self.delegates[name]
        self.root.add_module(name, lowered(BACKEND, reads, results, *serialize(graph)))
        model, outputs = model_of(graph), list(graph.outputs)
        more = [index for index in model.rounded if index not in outputs]

        def with_roundings() -> LoweredBackendModule:
            roundings = [torch.empty(model.shapes[index], dtype=model.dtype(index)) for index in more]
            return lowered(BACKEND, reads, [*results, *roundings], *serialize(graph, more))

        nhwc = [*map(self.plan.is_nhwc, delegate.reads)], [*map(self.plan.is_nhwc, delegate.results)]
        rounded = [(outputs + more).index(index) for index in model.rounded]
        self.computed[name] = Computed(model, nhwc, with_roundings, rounded, delegate.integers)

    def outside(self, group: Sequence[Node]) -> None:
        for node in group:
            arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), self.value)
            # A value that a call writes back at its end needs its own memory. So does the value that it
            # overwrites.
            is_own = bool(self.plan.state) and node in self.plan.outputs
            if node.target is aten.clone.default and not is_own:
                self.values[node] = self.value(node.all_input_nodes[0])
                continue
            at = _POSITIONS.get(node.target)
            if at is not None:
                arguments = (*arguments[:at], self._long(node.args[at]), *arguments[at + 1 :])
            target = _COPIES.get(node.target, node.target)
            value = self.graph.call_function(target, arguments, keywords)
            if is_getitem(node) and isinstance(node.all_input_nodes[0].target, Branches):
                # The results of the next branches would overwrite the results of these branches.
                value = self.graph.call_function(aten.clone.default, (value,))
            self.values[node] = value

    def _long(self, positions: Any) -> Node:
        """Return the same positions in 64 bits, converted once for all readers."""
        if positions.meta["val"].dtype == torch.int64:
            return self.value(positions)
        if positions not in self.long:
            cast: Any = aten._to_copy.default
            self.long[positions] = (
                self._constant(self.plan.constants[positions].long())
                if positions in self.plan.constants
                else self.graph.call_function(cast, (self.value(positions),), {"dtype": torch.int64})
            )
        return self.long[positions]

    def value(self, node: Node) -> Node:
        """Return the value of `node` for a portable kernel, which is right only in contiguous order."""
        assert node in self.plan.constants or not self.plan.is_nhwc(node), f"{node} lies channels-last"
        return self.result(node)

    def result(self, node: Node) -> Node:
        if node not in self.values and node in self.plan.constants:
            self.values[node] = self._constant(self.plan.constants[node])
        return self.values[node]

    def _constant(self, value: Tensor) -> Node:
        name = f"constant_{len(list(self.root.buffers()))}"
        self.root.register_buffer(name, value.clone(memory_format=torch.contiguous_format))
        return self.graph.get_attr(name)
