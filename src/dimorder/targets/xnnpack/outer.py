"""Write the program around the delegates: calls of delegates and of portable kernels."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from dimorder.executorch.xnn_blob import BACKEND_ID
from dimorder.graph.branches import Branches
from dimorder.graph.dynamic_sizes import DynamicSize, is_fixed
from dimorder.graph.nodes import is_getitem, set_value
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.physical.annotations import FusedProgram
from dimorder.sizes.size_table import SizeTable
from dimorder.sizes.size_writer import SizeWriter
from dimorder.targets.delegate import make_delegate
from dimorder.targets.xnnpack import passes
from dimorder.targets.xnnpack.builder import XnnBuilder
from dimorder.targets.xnnpack.delegates import Delegate, build_delegate, row_of
from dimorder.targets.xnnpack.exact import Computed
from dimorder.targets.xnnpack.graph_model import model_of
from dimorder.targets.xnnpack.kernels import KernelRun
from dimorder.targets.xnnpack.outer_sizes import result_shapes
from dimorder.targets.xnnpack.partition import Partition
from dimorder.targets.xnnpack.serialize import serialize

aten = torch.ops.aten

# Portable kernels that read only 64-bit positions, and the operand that holds these.
_POSITIONS: Mapping[Any, int] = MappingProxyType(
    {
        aten.gather.default: 2,
        aten.scatter.src: 2,
        aten.scatter.value: 2,
        aten.scatter_add.default: 2,
    }
)

# The overload with a tensor, of an operator whose number ExecuTorch makes one.
_BY_TENSOR: Mapping[Any, Any] = MappingProxyType({aten.rsub.Scalar: aten.rsub.Tensor})
_INTEGERS = (torch.int32, torch.int16, torch.int8, torch.uint8)


def dense_operator(target: Any) -> Any:
    """Return the operator that writes into dense memory what `target` returns as a view of its operand.

    >>> dense_operator(torch.ops.aten.slice.Tensor)
    <OpOverload(op='aten.slice_copy', overload='Tensor')>
    >>> dense_operator(torch.ops.aten.add.Tensor)
    <OpOverload(op='aten.add', overload='Tensor')>
    """
    if target is SLICE_CONSTANT:
        return aten.slice_copy.Tensor
    copy = getattr(aten, f"{target._opname}_copy", None) if getattr(target, "is_view", False) else None
    return target if copy is None else getattr(copy, target._overloadname)


def build_outer(plan: Partition, table: SizeTable | None = None) -> OuterBuilder:
    """Return the program as calls of delegates and portable operators, and the facts about its delegates.

    `table` has the sizes of a program with dynamic ones.
    """
    root, graph = torch.nn.Module(), Graph()
    sizes = None if table is None else SizeWriter(graph, table)
    build = OuterBuilder(plan, plan.fused(), root, graph, sizes)
    for node in plan.inputs:
        build.keep(node, graph.placeholder(node.name))
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

    Edge dialect has copies instead of views, so a clone that makes a view dense has nothing left to do.
    """

    plan: Partition
    fused: FusedProgram
    root: torch.nn.Module
    graph: Graph
    sizes: SizeWriter | None  # for dynamic sizes
    values: dict[Node, Node] = field(default_factory=dict)
    transposes: int = 0
    kernels: list[KernelRun] = field(default_factory=list)
    computed: dict[str, Computed] = field(default_factory=dict)
    count: int = 0  # of the delegates so far
    long: dict[Node, Node] = field(default_factory=dict)

    def delegate(self, group: Sequence[Node]) -> None:
        delegate = build_delegate(self.plan, group, self.fused, XnnBuilder())
        graph = delegate.graph
        passes.require_planned(graph, self.fused)
        passes.finish(graph)
        self.transposes += graph.transposes
        name = f"delegate_{self.count}"
        self.count += 1
        if self.sizes is None:
            self.kernels += graph.kernels() if graph.is_of_float32 else []
        self._attach(name, delegate)
        call = self.graph.call_module(name, tuple(self.values[node] for node in delegate.reads))
        for position, node in enumerate(delegate.results):
            self.keep(node, self.graph.call_function(operator.getitem, (call, position)))

    def keep(self, node: Node, value: Node) -> None:
        """Keep the value of a node of the physical program."""
        self.values[node] = value
        of_one = isinstance(node.meta["val"], Tensor)
        tensors = self.plan.results(node, None if self.sizes is None else self.sizes.table)
        set_value(value, tensors[0] if of_one else tensors)
        if self.sizes is not None and of_one:
            self.sizes.add(value, self.plan.shapes(node)[0])

    def _attach(self, name: str, delegate: Delegate) -> None:
        """Put the delegate of that name into the program."""
        model, outputs = model_of(delegate.graph), delegate.graph.outputs
        more = [index for index in model.rounded if index not in outputs]
        self.root.add_module(name, self._lowered(name, delegate, []))
        nhwc = [*map(self.plan.is_nhwc, delegate.reads)], [*map(self.plan.is_nhwc, delegate.results)]
        rounded = [(outputs + more).index(index) for index in model.rounded]
        with_roundings = partial(self._lowered, name, delegate, more)
        self.computed[name] = Computed(model, nhwc, with_roundings, rounded, delegate.integers)

    def _lowered(self, name: str, delegate: Delegate, more: Sequence[int]) -> LoweredBackendModule:
        """Return a delegate with more values of its graph as further outputs."""
        graph, added = delegate.graph, [delegate.graph.values[index] for index in more]
        roundings = (torch.empty([*map(int, value.shape)], dtype=value.dtype) for value in added)
        gives, blob = [*self.plan.tensors(delegate.results), *roundings], serialize(graph, more)
        if self.sizes is None:
            return make_delegate(BACKEND_ID, self.plan.tensors(delegate.reads), gives, *blob)
        table = self.sizes.table
        reads, results = (
            [self.plan.shapes(node)[0] for node in nodes] for nodes in (delegate.reads, delegate.results)
        )
        shapes = result_shapes(name, reads, [*results, *(value.shape for value in added)], table)
        return make_delegate(
            BACKEND_ID, self.plan.tensors(delegate.reads, table), gives, *blob, shapes=shapes
        )

    def outside(self, group: Sequence[Node]) -> None:
        for node in group:
            arguments, keywords = self._arguments(node)
            # A value that a call writes back at its end needs its own memory. So does the value that it
            # overwrites.
            is_own = bool(self.plan.state) and node in self.plan.outputs
            if node.target is aten.clone.default and not is_own:
                self.keep(node, self.value(node.all_input_nodes[0]))
                continue
            target, arguments = self._typed(node, arguments)
            at = _POSITIONS.get(node.target)
            if at is not None:
                arguments = (*arguments[:at], self._long(node.args[at]), *arguments[at + 1 :])
            value = self.graph.call_function(dense_operator(target), arguments, keywords)
            if is_getitem(node) and isinstance(node.all_input_nodes[0].target, Branches):
                # The results of the next branches would overwrite the results of these branches.
                value = self.graph.call_function(aten.clone.default, (value,))
            self.keep(node, value)

    def _arguments(self, node: Node) -> Any:
        """Return the arguments of a call outside the delegates."""
        if self.sizes is None:
            return torch.fx.map_arg((node.args, node.kwargs), self.value)
        call, writer = self.plan.dynamic[node], self.sizes
        mapped = torch.fx.map_arg((call.args, call.kwargs), self.value)
        operands = [self.values[read] for read in node.all_input_nodes]
        return pytree.tree_map_only(DynamicSize, lambda n: writer.number(n, node, operands), mapped)

    def _typed(self, node: Node, arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Return the operator and arguments of a call, with numbers as tensors if it reads one integer alone.

        ExecuTorch makes a number a tensor of int64. The result would be one too, for the integer has no
        dimension, with which its type would count for more.
        """
        read = [operand.meta["val"] for operand in node.all_input_nodes]
        if [isinstance(x, Tensor) and (x.dim(), x.dtype in _INTEGERS) for x in read] != [(0, True)]:
            return node.target, arguments
        target = _BY_TENSOR.get(node.target, node.target)
        typed = (
            self._constant(torch.tensor(value, dtype=read[0].dtype))
            if type(value) is int and isinstance(expected.type, torch.TensorType)
            else value
            for value, expected in zip(arguments, target._schema.arguments, strict=False)
        )
        return target, tuple(typed)

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
            self.keep(node, self._sized_constant(node))
        return self.values[node]

    def _sized_constant(self, node: Node) -> Node:
        """Return a constant. One with dynamic sizes is expanded from a size of 1."""
        tensor, (shape,) = self.plan.constants[node], self.plan.shapes(node)
        if self.sizes is None or is_fixed(shape):
            return self._constant(tensor)
        row = self._constant(row_of(node, tensor, self.plan))
        sizes = [self.sizes.number(n, node, []) if isinstance(n, DynamicSize) else n for n in shape]
        return self.graph.call_function(dense_operator(aten.expand.default), (row, sizes))

    def _constant(self, value: Tensor) -> Node:
        name = f"constant_{len(list(self.root.buffers()))}"
        self.root.register_buffer(name, value.clone(memory_format=torch.contiguous_format))
        return self.graph.get_attr(name)
