"""Decides how a plan becomes a program: every tensor dense in its physical shape, each conversion a permute.

The result is an `ExportedProgram` that runs in torch as it stands; nothing downstream decides about layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, TensorSpec
from dimorder.lowering.borders import absorb_borders
from dimorder.lowering.building import ORIGIN, AxisGroup, Builder, Call
from dimorder.lowering.capture.exported import exported
from dimorder.lowering.capture.tracing import SOURCE, shape_of
from dimorder.lowering.extract import Extracted
from dimorder.lowering.sites import Arrangement, AxisOrder, Site, layout_of
from dimorder.planning.plan import LayoutPlan

aten = torch.ops.aten


def rewrite(extracted: Extracted, plan: LayoutPlan, contract: Contract) -> ExportedProgram:
    """The physical program of a plan. Its signature is that of the contract's boundary: logical shapes in the
    promised dim orders, or dense physical shapes."""
    module = build(extracted, plan, contract)
    examples = tuple(
        at_boundary(example, spec)
        for example, spec in zip(extracted.annotated.program.example_inputs, contract.inputs, strict=True)
    )
    return exported(module, examples)


def build(extracted: Extracted, plan: LayoutPlan, contract: Contract) -> torch.fx.GraphModule:
    """The physical program of a plan as a module, before it is exported."""
    b = Builder(extracted.annotated.program, extracted.buffers)
    inputs = iter(contract.inputs)
    computed: list[_At] = []
    for index, site in enumerate(extracted.sites):
        arrangement = extracted.arrangements[index][plan.choice[index]]
        b.source = {**_source(site.node), "custom": {ORIGIN: {"site": index}}}
        if site.kind == "input":
            _input(b, _At(site, arrangement), next(inputs))
        elif site.kind == "output":
            computed.append(_At(site, arrangement))
        else:
            site.implementations[arrangement.implementation].lower(Call(b, site, arrangement))
    results: list[torch.fx.Node] = []
    left = iter(computed)
    for node, spec in zip(b.program.outputs, contract.outputs, strict=True):
        b.source = {**_source(node), "custom": {ORIGIN: {}}}
        result = _constant_output(b, node, spec) if node.op == "get_attr" else _output(b, next(left), spec)
        fresh = result.op == "call_function" and result not in results
        results.append(result if fresh else b.call(aten.clone.default, result))
    b.graph.output(tuple(results))
    absorb_borders(b.graph)
    return torch.fx.GraphModule(b.root, b.graph)


def _source(node: torch.fx.Node) -> dict[str, Any]:
    return {key: node.meta[key] for key in SOURCE if key in node.meta}


def at_boundary(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A dense copy of a logical tensor as the program's own signature holds it, with canonical strides."""
    if spec.boundary == "physical":
        return tensor.permute(tuple(spec.dim_order)).contiguous()
    strides = spec.boundary_order.strides(tuple(tensor.shape))
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def from_boundary(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The way back: what the program returns as its own signature holds it, as a logical tensor.

    >>> from_boundary(torch.zeros(2, 5, 3), TensorSpec("y", (2, 3, 5), "float32", DimOrder(0, 2, 1))).shape
    torch.Size([2, 3, 5])
    """
    return tensor.permute(spec.dim_order.inverse.dims) if spec.boundary == "physical" else tensor


def constant_bytes(program: ExportedProgram) -> int:
    """What a physical program's weights, buffers and other constants take."""
    return sum(t.numel() * t.element_size() for t in program.state_dict.values())


@dataclass(frozen=True)
class _At:
    """An input or output of the program, and how the plan arranges it."""

    site: Site
    arrangement: Arrangement

    @property
    def buffer(self) -> int:
        return self.site.views[0].buffer

    @property
    def layout(self) -> AxisOrder:
        return layout_of(0, self.site, self.arrangement)

    def runs(self, b: Builder, order: DimOrder) -> list[AxisGroup]:
        """The buffer axes of each dimension, in an order of the dimensions."""
        held = b.dimensions(self.site.views[0], shape_of(self.site.node))
        return [held[d] for d in order]


def _input(b: Builder, at: _At, spec: TensorSpec) -> None:
    node, order = b.graph.placeholder(at.site.node.name), spec.held_order
    if spec.boundary == "logical" and not order.is_contiguous:
        node = b.call(aten.permute.default, node, list(order))
    b.store(at.buffer, at.layout, node, tuple(at.runs(b, order)))


def _output(b: Builder, at: _At, spec: TensorSpec) -> torch.fx.Node:
    dense = b.fetch(at.buffer, at.layout)
    return _as_signed(b, b.shaped(at.buffer, dense, at.runs(b, spec.held_order)), spec)


def _constant_output(b: Builder, node: torch.fx.Node, spec: TensorSpec) -> torch.fx.Node:
    value = b.program.constant(node).permute(tuple(spec.held_order))
    return _as_signed(b, b.constant(f"output_{node.name}", value), spec)


def _as_signed(b: Builder, dense: torch.fx.Node, spec: TensorSpec) -> torch.fx.Node:
    """A dense result as the signature shows it."""
    if spec.boundary == "physical" or spec.held_order.is_contiguous:
        return dense
    return b.call(aten.permute.default, dense, list(spec.held_order.inverse))
