"""Write a plan as a program: every tensor dense in its physical shape, each conversion a permute and a copy.

The result is an `ExportedProgram` that runs in torch. No later step changes a layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, TensorSpec
from dimorder.graph.exported import export_graph, state_of, turn_inputs_into_buffers
from dimorder.graph.nodes import RESIZES, graph_module, source_of, with_origin
from dimorder.graph.tracing import shape_of
from dimorder.layout.problem import Extracted
from dimorder.ops.builder import AxisGroup, Builder
from dimorder.ops.call import Call
from dimorder.ops.problem_map import Arrangement, BufferView, Site, dimension_axes, layout_of
from dimorder.ops.relation import AxedTensor, AxisOrder
from dimorder.physical.fuse_pad_into_conv import fuse_pad_into_conv
from dimorder.physical.quantize_before_join import quantize_before_join
from dimorder.planning.plan import LayoutPlan

aten = torch.ops.aten


def rewrite(extracted: Extracted, plan: LayoutPlan, contract: Contract) -> ExportedProgram:
    """Return the physical program of a plan.

    Its signature is that of the contract's boundary: logical shapes in the promised dim orders, or dense
    physical shapes.
    """
    program = extracted.annotated.program
    module = build(extracted, plan, contract)
    examples = [
        at_boundary(example, spec)
        for example, spec in zip(program.example_inputs, contract.inputs, strict=True)
    ]
    held = {
        buffer.name: carried.lay(buffer.initial)
        for buffer, carried in zip(program.state, carried_by(extracted, plan), strict=True)
    }
    return turn_inputs_into_buffers(export_graph(module, [*held.values(), *examples]), held)


def build(extracted: Extracted, plan: LayoutPlan, contract: Contract) -> torch.fx.GraphModule:
    """Return the physical program of a plan as a module, before export."""
    program = extracted.annotated.program
    b = Builder(program.constant, extracted.buffers, extracted.max_rank)
    inputs, carried = iter(contract.inputs), carried_by(extracted, plan)
    computed: list[_At] = []
    for index, site in enumerate(extracted.sites):
        arrangement = extracted.arrangements[index][plan.choice[index]]
        outside = {"outside": True} if site.node in extracted.outside else {}
        b.source = with_origin(source_of(site.node, RESIZES), site=index, **outside)
        if site.kind == "input":
            _input(b, _At(site, arrangement), next(inputs))
        elif site.kind == "output":
            computed.append(_At(site, arrangement))
        elif site.kind == "state":
            _found(b, carried[index])
        else:
            site.implementations[arrangement.implementation].lower(Call(b, site, arrangement))
    results: list[torch.fx.Node] = []
    kept = b.graph.find_nodes(op="placeholder")[: len(carried)]

    def give(result: torch.fx.Node) -> None:
        """Add one more result, in memory that no other result has, nor the state that a call finds."""
        source = result
        while source.target in (aten.view.default, aten.permute.default):
            source = source.args[0]  # type: ignore[assignment]
        fresh = result.op == "call_function" and result not in results and source not in kept
        results.append(result if fresh else b.call(aten.clone.default, result))

    for (_, node), each in zip(program.carried, carried, strict=True):
        b.source = with_origin(source_of(node))
        give(_left(b, node, each))
    left = iter(computed)
    for node, spec in zip(program.outputs, contract.outputs, strict=True):
        b.source = with_origin(source_of(node))
        give(_constant_output(b, node, spec) if node.op == "get_attr" else _output(b, next(left), spec))
    b.graph.output(tuple(results))
    fuse_pad_into_conv(b.graph)
    quantize_before_join(b.graph)
    return graph_module(b.root, b.graph)


def at_boundary(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return a dense copy of a logical tensor in the form of the signature, with canonical strides."""
    return spec.to_boundary(spec.dense_copy(tensor))


def constant_bytes(program: ExportedProgram) -> int:
    """Return the bytes of a physical program's weights and other constants, without its state."""
    written = state_of(program).values()
    held = (tensor for name, tensor in program.state_dict.items() if name not in written)
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


@dataclass(frozen=True)
class Carried:
    """A buffer of the state, and the order in which each call finds it and leaves it for the next.

    `order` has the axes of the value, slowest first. `tensor` says which dimensions these axes belong to.
    """

    site: Site
    tensor: AxedTensor
    shape: tuple[int, ...]
    order: AxisOrder

    @property
    def found(self) -> BufferView:
        return self.site.writes[0]

    @property
    def runs(self) -> list[AxisGroup]:
        """Return the axes of each physical dimension.

        A logical dimension is kept whole if its axes stay together. If the order is not row-major, dimensions
        of size 1 come first.
        """
        runs: list[AxisGroup] = []
        for axis in self.order:
            last = runs[-1][-1] if runs else -2
            if last + 1 == axis and self.tensor.dims[last] == self.tensor.dims[axis]:
                runs[-1] = (*runs[-1], axis)
            else:
                runs.append((axis,))
        if list(self.order) != sorted(self.order):
            ones: list[AxisGroup] = [()] * self.shape.count(1)
            return [*ones, *runs] if len(ones) + len(runs) <= len(self.shape) else runs
        feed = iter(runs)
        return [() if size == 1 else next(feed) for size in self.shape]

    def lay(self, value: torch.Tensor) -> torch.Tensor:
        """Return a logical value as a dense tensor in that order."""
        sizes = self.tensor.sizes
        extents = [math.prod(sizes[axis] for axis in run) for run in self.runs]
        return value.reshape(sizes).permute(self.order).reshape(extents).contiguous()


def carried_by(extracted: Extracted, plan: LayoutPlan) -> list[Carried]:
    """Return the buffers of the state, in the orders of a plan."""
    found = []
    for index, site in enumerate(extracted.sites):
        if site.kind == "state":
            info = extracted.buffers[site.writes[0].buffer]
            tokens = extracted.arrangements[index][plan.choice[index]].tokens
            found.append(Carried(site, info.tensor, info.shape, tuple(axis for _, axis in tokens)))
    return found


@dataclass(frozen=True)
class _At:
    """An input or output of the program, and the plan's arrangement of it."""

    site: Site
    arrangement: Arrangement

    @property
    def buffer(self) -> int:
        return self.site.views[0].buffer

    @property
    def layout(self) -> AxisOrder:
        return layout_of(0, self.site, self.arrangement)

    def runs(self, b: Builder, order: DimOrder) -> list[AxisGroup]:
        """Return the buffer axes of each dimension, in an order of the dimensions."""
        held = dimension_axes(self.site.views[0], shape_of(self.site.node), b.buffers)
        return [held[d] for d in order]


def _input(b: Builder, at: _At, spec: TensorSpec) -> None:
    node, order = b.graph.placeholder(at.site.node.name), spec.memory_order
    if spec.boundary == "logical" and not order.is_contiguous:
        node = b.call(aten.permute.default, node, list(order))
    b.store(at.buffer, at.layout, node, tuple(at.runs(b, order)))


def _found(b: Builder, carried: Carried) -> None:
    node = b.graph.placeholder(carried.site.node.name)
    b.store(carried.found.buffer, carried.order, node, tuple(carried.runs))


def _left(b: Builder, node: torch.fx.Node, carried: Carried) -> torch.fx.Node:
    if not carried.site.reads:
        return b.constant(f"state_{node.name}", carried.lay(b.value_of(node)))
    buffer, axes = carried.site.reads[0].buffer, carried.site.reads[0].axes
    dense = b.fetch(buffer, tuple(axes[axis] for axis in carried.order))
    return b.shaped(buffer, dense, [tuple(axes[axis] for axis in run) for run in carried.runs])


def _output(b: Builder, at: _At, spec: TensorSpec) -> torch.fx.Node:
    dense = b.fetch(at.buffer, at.layout)
    return _as_signed(b, b.shaped(at.buffer, dense, at.runs(b, spec.memory_order)), spec)


def _constant_output(b: Builder, node: torch.fx.Node, spec: TensorSpec) -> torch.fx.Node:
    value = b.value_of(node).permute(tuple(spec.memory_order))
    return _as_signed(b, b.constant(f"output_{node.name}", value), spec)


def _as_signed(b: Builder, dense: torch.fx.Node, spec: TensorSpec) -> torch.fx.Node:
    """Return a dense result as the program's signature shows it."""
    if spec.boundary == "physical" or spec.memory_order.is_contiguous:
        return dense
    return b.call(aten.permute.default, dense, list(spec.memory_order.inverse))
