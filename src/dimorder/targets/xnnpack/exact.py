"""Compute the exact outputs of a file that computes in integers, to check the runtime bit for bit.

A model computes the delegates anew, and torch the operators outside of them. Both may round floats
differently in some places. So a second file has more outputs: the roundings of floats, and the results of
portable kernels. The model is compared with each of these that is a float, and continues from the runtime's
value.

The model comes from the graph that was written, so it cannot show that the wrong graph was written. It is
therefore also compared with the physical program, value by value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.nn import Module

from dimorder.graph.interpreter import GraphRun, GraphWithTensors
from dimorder.sizes.specialize_shapes import shapes_at
from dimorder.targets.delegate import TO_NCHW, TO_NHWC
from dimorder.targets.table import View
from dimorder.targets.xnnpack.graph import XnnValue
from dimorder.targets.xnnpack.model import XnnModel
from dimorder.verification.network_calls import Run
from dimorder.verification.verify_integers import require_meant, require_near

aten = torch.ops.aten


@dataclass(frozen=True)
class Computed:
    """The model of one delegate in torch, and the same delegate with more outputs.

    `nhwc` says which of its operands and results are NHWC to it. `rounded` are the values that floats were
    rounded to, as positions among the outputs of `with_roundings`. `integers` maps quantize nodes of the
    physical program to their values in the model.
    """

    model: XnnModel
    nhwc: tuple[Sequence[bool], Sequence[bool]]
    with_roundings: Callable[[], LoweredBackendModule]
    rounded: Sequence[int]
    integers: Mapping[Node, View[XnnValue]]


def exact_run(
    physical: ExportedProgram,
    graph: Graph,
    root: Module,
    delegates: Mapping[str, Computed],
    load: Callable[[GraphModule], Run],
) -> Run:
    """Return a function for the outputs of program `graph` over `root`, with these delegates.

    `load` loads a program into the runtime. Raises `VerificationError` if the outputs differ from the
    physical program's.
    """
    module = GraphWithTensors(graph, dict(root.named_buffers()))
    outputs = len(graph.output_node().args[0])  # type: ignore[arg-type]  # a tuple
    nodes = {node.name: node for node in physical.graph.nodes}  # delegates are written at fixed sizes
    rounds = any(each.rounded for each in delegates.values()) or any(map(_is_portable, graph.nodes))

    @cache
    def with_roundings() -> Run:
        parts = {name: computed.with_roundings() for name, computed in delegates.items()}
        everything = {**dict(root.named_buffers()), **parts}
        return load(GraphModule(everything, _with_roundings(graph, delegates)))

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        more = with_roundings()(inputs)[outputs:] if rounds else ()
        shape_of = shapes_at(physical, inputs)
        model = _ModelRun(module, delegates, more, lambda node: shape_of(nodes[node.name]))
        results = list(model.run(*inputs))
        require_meant(physical, inputs, results, model.integers, "XNNPACK")
        return results

    return run


class _ModelRun(GraphRun):
    """The outer graph with the models of its delegates.

    `more` are the extra outputs of `_with_roundings`, which replace what is computed here. `shape_of` tells
    the shapes of the physical program's values in this call.
    """

    def __init__(
        self,
        module: Module,
        delegates: Mapping[str, Computed],
        more: Sequence[Tensor],
        shape_of: Callable[[Node], tuple[int, ...]],
    ) -> None:
        super().__init__(module)
        self.delegates, self.more, self.shape_of = delegates, iter(more), shape_of
        self.integers: dict[Node, Tensor] = {}

    def call(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, str):
            return self._delegate(self.delegates[target], args)
        if target is aten.view.default:  # in the runtime all its operands are dense
            target = aten.reshape.default
        return super().call(target, args, kwargs)

    def _delegate(self, computed: Computed, args: Sequence[Tensor]) -> list[Tensor]:
        model, (reads, gives) = computed.model, computed.nhwc
        inputs = [x.permute(TO_NHWC) if nhwc else x for x, nhwc in zip(args, reads, strict=True)]
        rounded = [
            x.permute(TO_NHWC) if i < len(gives) and gives[i] else x
            for i, x in zip(computed.rounded, self.more, strict=False)
        ]
        kept = {*model.outputs, *(view.value.id for view in computed.integers.values())}
        values = model.run(inputs, rounded, kept)
        for node, view in computed.integers.items():
            if view.value.id in values:  # else nothing reads it
                self.integers[node] = view.of(values[view.value.id], self.shape_of(node))
        results = [values[index] for index in model.outputs]
        return [y.permute(TO_NCHW) if nhwc else y for y, nhwc in zip(results, gives, strict=True)]

    def result(self, node: Node, operands: Mapping[Node, Any], result: Any) -> Any:
        if not _is_portable(node):
            return result
        runtimes = next(self.more)
        if not result.is_floating_point():
            return result
        require_near(runtimes, result, "a portable kernel")
        return runtimes


def _with_roundings(graph: Graph, delegates: Mapping[str, Computed]) -> Graph:
    """Return the graph with more outputs: delegates' roundings, and results of portable kernels."""
    copy, more = Graph(), list[Node]()
    copy.output(copy.graph_copy(graph, {}))
    for node in list(copy.nodes):
        if _is_portable(node):
            more.append(node)
        elif node.op == "call_module":
            with copy.inserting_after(node):
                rounded = delegates[str(node.target)].rounded
                more += [copy.call_function(operator.getitem, (node, i)) for i in rounded]
    output = copy.output_node()
    output.args = ((*output.args[0], *more),)  # type: ignore[misc]  # a tuple
    return copy


def _is_portable(node: Node) -> bool:
    """Return whether this tensor is the result of a portable kernel."""
    if node.op != "call_function" or any(user.target is operator.getitem for user in node.users):
        return False
    if node.target is operator.getitem:
        return node.all_input_nodes[0].op != "call_module"
    computes_a_size = not isinstance(node.target, OpOverload) or node.target is aten.sym_size.int
    return not computes_a_size
