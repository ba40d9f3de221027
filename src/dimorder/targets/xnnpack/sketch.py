"""Write XNNPACK graphs without data, to see which kernels would run, and if XNNPACK derives all sizes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.contract import Contract
from dimorder.errors import StageError
from dimorder.graph.dynamic_sizes import DynamicCall, DynamicSize, DynamicSizeError, is_dynamic, is_fixed
from dimorder.graph.nodes import operator_name, origin_of, results
from dimorder.graph.passes import FIX
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from dimorder.graph.tracing import is_half
from dimorder.sizes.size_table import SizeTable
from dimorder.sizes.size_writer import SizesError
from dimorder.sizes.specialization import specialize
from dimorder.targets.integer_kernels import integers_of
from dimorder.targets.table import Table, is_transposed, whole
from dimorder.targets.xnnpack.all_sizes import derive_sizes
from dimorder.targets.xnnpack.builder import XnnBuilder
from dimorder.targets.xnnpack.delegates import build_delegate
from dimorder.targets.xnnpack.graph import XnnBytes, XnnConstant, XnnValue
from dimorder.targets.xnnpack.kernels import KernelRun
from dimorder.targets.xnnpack.partition import Partition, divide, partition

aten = torch.ops.aten

ON_EITHER_SIDE = (aten.slice.Tensor, aten.sum.dim_IntList, aten.mean.dim)


class Sketch(XnnBuilder):
    """A graph whose constants have a shape but no data."""

    def constant(self, tensor: Tensor) -> XnnValue:
        shape = tuple(tensor.shape) or (1,)
        constant = XnnConstant(tensor, self._stored(tensor), integers_of(tensor))
        return self.graph.add(shape, constant=constant)

    def _stored(self, data: Tensor) -> XnnBytes:
        return XnnBytes("", b"")


def kernels(calls: Iterable[Node], operators: Table) -> list[KernelRun]:
    """Return the kernels of a sequence of calls. Calls that XNNPACK does not compute have none.

    `get_attr` nodes are constants, and so is every value computed from these alone.
    """
    sketch = Sketch()
    known: dict[Node, Any] = {}

    def resolve(node: Node) -> Any:
        if node not in known:
            values = results(node)
            constant = node.op == "get_attr"
            known[node] = values[0] if constant else whole(sketch.input(values[0].shape))
        return known[node]

    constants = set[Node]()
    for call in calls:
        constants.update(node for node in call.all_input_nodes if node.op == "get_attr")
        if call.all_input_nodes and constants.issuperset(call.all_input_nodes):
            constants.add(call)
            known[call] = results(call)[0]
        elif operators.supports(call, constants) is None:
            known[call] = operators.build(sketch, call, resolve)
    return sketch.graph.kernels()


def unfit_sizes(
    call: Node, operators: Table, constants: Collection[Node], numbers: Mapping[Node, DynamicCall]
) -> str | None:
    """Return why XNNPACK cannot compute a call at all sizes, or None.

    A view is never refused here, since it may run outside. Neither is a constant of a dynamic size that
    another value of the delegate may have. The values of a delegate are known when the program is divided.
    """
    if operators.is_relabel(call) or call.target in (QUANTIZE, DEQUANTIZE):
        return None
    sketch = Sketch()
    sketch.origin = call

    def resolve(node: Node) -> Any:
        (shape,) = numbers[node].shapes
        value = results(node)[0]
        if node in constants:
            if is_fixed(shape):
                return value
            return whole(sketch.ones(shape))
        if is_transposed(node):
            return resolve(node.all_input_nodes[0]).permute(numbers[node].args[1])
        return whole(sketch.input(shape, value.dtype))

    shapes = (numbers[node].shapes for node in (call, *call.all_input_nodes))
    for size in dict.fromkeys(itertools.chain(*itertools.chain(*shapes))):
        if isinstance(size, DynamicSize):
            sketch.input((size,))
            if is_half(call):
                sketch.input((size,), results(call)[0].dtype)
    try:
        result = operators.build(sketch, call, resolve, numbers[call])
        for view in result if isinstance(result, list) else [result]:
            sketch.output(view.value)
        derive_sizes(sketch.graph)
    except DynamicSizeError as error:
        return f"{error}, which depends on a dynamic size"
    except SizesError as error:
        return error.found
    return None


def partition_for_ranges(
    program: ExportedProgram, operators: Table, contract: Contract
) -> tuple[Partition, SizeTable]:
    """Divide a program with dynamic sizes, and return its sizes. `contract` names them.

    Raises `UnsupportedError` for an operator that XNNPACK cannot compute at all of them.
    """
    specialization = specialize(program, contract.symbols)
    plan = partition(specialization.program, operators, specialization.calls)
    _keep_unfit_sizes_outside(plan)
    return plan, specialization.table


def _keep_unfit_sizes_outside(plan: Partition) -> None:
    """Divide a program with dynamic sizes again until XNNPACK derives all sizes in its delegates.

    Operators that XNNPACK cannot compute at all sizes run outside, as planned. So do views, if no reader of
    the view can read its operand instead. So do operators with a constant of a dynamic size that no other
    value of the delegate has.

    Raises `StageError` for an operator that the plan has inside.
    """
    dynamic = [n for n in plan.called if n not in plan.refused and is_dynamic(n, plan.dynamic)]
    plan.refused |= {
        node
        for node in dynamic
        if _is_planned_outside(node, plan)
        or unfit_sizes(node, plan.operators, plan.constants, plan.dynamic) is not None
    }
    for node in plan.refused:
        _require_planned_outside(node, plan)
    divide(plan)
    while (found := _node_of_unfit_sizes(plan)) is not None:
        plan.refused.add(found)
        divide(plan)


def _is_planned_outside(node: Node, plan: Partition) -> bool:
    """Return whether a call belongs to an operator that the plan has outside."""
    return origin_of(node).get("outside", False) and not _runs_on_either_side(node, plan)


def _runs_on_either_side(node: Node, plan: Partition) -> bool:
    """Return whether the plan does not decide if a call runs in the delegate or outside.

    It does not for views. Nor does it for slices and sums: it asks for them with merged dimensions, and a
    neighbour may keep these apart.
    """
    return plan.operators.is_relabel(node) or node.target in ON_EITHER_SIDE


def _require_planned_outside(node: Node, plan: Partition) -> None:
    origin = origin_of(node)
    if "site" in origin and not origin.get("outside") and not _runs_on_either_side(node, plan):
        reason = reason_outside(node, plan)
        if reason is None:  # it moves integers of 8 bits, of which the plan does not say what they stand for
            return
        place = f"{node} ({operator_name(node)}) of the physical program for xnnpack"
        raise StageError(place, f"outside, where the plan has it inside: {reason}", FIX)


def reason_outside(node: Node, plan: Partition) -> str | None:
    """Return why XNNPACK does not compute a call, or not at all sizes, or None."""
    reason = plan.operators.supports(node, plan.constants)
    if reason is None and plan.dynamic:
        return unfit_sizes(node, plan.operators, plan.constants, plan.dynamic)
    return reason


def _node_of_unfit_sizes(plan: Partition) -> Node | None:
    """Return the first view, or reader of a constant of a dynamic size, whose sizes XNNPACK does not derive.

    Raises `SizesError` for any other operator.
    """
    computed = [node for node in plan.called if plan.is_computed(node)]
    constants = {node for node in plan.constants if not all(map(is_fixed, plan.shapes(node)))}
    readers = {
        node
        for node in computed
        if node.target is aten.expand.default or not constants.isdisjoint(node.all_input_nodes)
    }
    views = (node for node in computed if plan.operators.is_relabel(node))
    if not readers and all(_dynamic_sizes(node, plan) < 2 for node in views):
        return None
    fused = plan.fused()
    for _, group in plan.delegates():
        try:
            derive_sizes(build_delegate(plan, group, fused, Sketch()).graph)
        except SizesError as error:
            may_leave = error.node in readers or plan.operators.is_relabel(error.node)
            if error.node in plan.refused or not may_leave:
                raise
            return error.node
    return None


def _dynamic_sizes(node: Node, plan: Partition) -> int:
    return sum(isinstance(size, DynamicSize) for size in plan.shapes(node)[0])
