"""Write one delegate of a partition as an XNNPACK graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dimorder.capture.integer_boundary import integer_type
from dimorder.graph.dynamic_sizes import DynamicSizeError, is_fixed
from dimorder.graph.elements import Elements
from dimorder.graph.nodes import is_getitem
from dimorder.graph.quantized import DEQUANTIZE_CHANNELS, QUANTIZE, IntegerType, are_equal
from dimorder.ops.table import elements_of
from dimorder.physical.annotations import FusedProgram, How
from dimorder.physical.wasted_levels import clamp_range
from dimorder.sizes.merge_specializations import first_places
from dimorder.sizes.size_writer import SizesError
from dimorder.targets.delegate import TO_NCHW, TO_NHWC
from dimorder.targets.table import View, is_permute, whole
from dimorder.targets.xnnpack.builder import XnnBuilder
from dimorder.targets.xnnpack.graph import XnnGraph, XnnValue
from dimorder.targets.xnnpack.partition import Partition

aten = torch.ops.aten


@dataclass(frozen=True)
class Delegate:
    """A group of operators as an XNNPACK graph.

    Attributes:
        reads: The nodes that it reads.
        results: The nodes that it returns.
        graph: The graph as it was built, before the passes.
        integers: The values of the quantize nodes.
    """

    reads: list[Node]
    results: list[Node]
    graph: XnnGraph
    integers: dict[Node, View[XnnValue]]


def build_delegate(
    plan: Partition, group: Sequence[Node], fused: FusedProgram, builder: XnnBuilder
) -> Delegate:
    """Write the graph of the delegate that computes a group, with the annotated calls in integers."""
    members, reads = set(group), list[Node]()
    operands: dict[Node, Any] = dict(plan.constants)

    def resolve(node: Node) -> Any:
        if node in plan.dynamic and node in plan.constants and isinstance(operands[node], Tensor):
            (shape,) = plan.shapes(node)
            if not is_fixed(shape):
                operands[node] = whole(builder.repeated(row_of(node, operands[node], plan), shape))
        return operands[node]

    def build(node: Node) -> Any:
        try:
            return plan.operators.build(builder, node, resolve, plan.dynamic.get(node))
        except DynamicSizeError as error:
            raise SizesError(node, f"{error}, which depends on a dynamic size") from error

    def fetch(node: Node) -> None:
        """Fetch an operand from outside the group. A permute is redone here, where it takes no memory."""
        if node in operands or node in members:
            return
        if is_permute(node) and plan.is_computed(node):
            fetch(node.all_input_nodes[0])
            operands[node] = build(node)
        else:
            reads.append(node)
            operands[node] = _read(builder, node, plan)

    for node in group:
        for operand in node.all_input_nodes:
            fetch(operand)
    results = [n for n in group if isinstance(n.meta["val"], Tensor) and _leaves(plan, n, members)]
    for node in group:
        how = fused.how(node)
        is_integer = how in (How.KERNEL, How.DYNAMIC_KERNEL)
        builder.origin, builder.in_integers = node, fused.annotations[node] if is_integer else None
        is_clamp = clamp_range(node) is not None
        if how is How.IN_KERNEL and (is_clamp or node.target is QUANTIZE):
            operands[node] = operands[node.all_input_nodes[0]]
        elif is_getitem(node):
            operands[node] = operands[node.args[0]][node.args[1]]  # type: ignore[index]  # its source is a list
        else:
            operands[node] = build(node)
        assert builder.in_integers is None, f"{node} is not written in integers"
    for node in results:
        view = operands[node]
        value = builder.dense(view.permute(TO_NHWC) if plan.is_nhwc(node) else view)
        if node.meta["val"].is_floating_point():
            value = builder.floats(value)
        else:  # the caller's memory is as large as integers are
            assert value.integer_type is not None, f"{node} is written in floats"
        builder.output(value)
    integers = {node: operands[node] for node in group if node.target is QUANTIZE}
    return Delegate(reads, results, builder.graph, integers)


def _read(builder: XnnBuilder, node: Node, plan: Partition) -> View[XnnValue]:
    value = node.meta["val"]
    of: IntegerType | torch.dtype | None = value.dtype
    rounded = node not in plan.inputs and value.is_floating_point()
    if not value.is_floating_point():
        of = integer_type(node)
        assert of is not None, f"nothing says what the integers of {node} stand for"
    (shape,) = plan.shapes(node)
    if not plan.is_nhwc(node):
        return whole(builder.input(shape, of, is_rounded=rounded))
    return whole(builder.input([shape[d] for d in TO_NHWC], of, is_rounded=rounded)).permute(TO_NCHW)


def _leaves(plan: Partition, node: Node, members: set[Node]) -> bool:
    """Return whether anything outside reads a value as it is. Another delegate redoes a permute itself."""
    for user in node.users:
        if user in members:
            if is_permute(user) and _is_fetched(plan, user, members):
                return True
        elif not (is_permute(node) and plan.is_computed(user)):
            return True
    return False


def _is_fetched(plan: Partition, permute: Node, members: set[Node]) -> bool:
    """Return whether another delegate redoes a permute, and so reads the permute's operand."""
    return any(
        _is_fetched(plan, user, members) if user in members and is_permute(user) else plan.is_computed(user)
        for user in permute.users
        if user not in members or is_permute(user)
    )


def row_of(node: Node, tensor: Tensor, plan: Partition) -> Tensor:
    """Return a constant that repeats along its dynamic dimensions, with a size of 1 there.

    Raises `SizesError` if the values of the constant may depend on a dynamic size.
    """
    if not _repeats(node, plan):
        raise SizesError(node, "a constant that is computed from a constant of a dynamic size")
    row = first_places(tensor, [d for d, size in enumerate(plan.shapes(node)[0]) if not is_fixed([size])])
    if not are_equal(row.expand(tensor.shape), tensor):
        raise SizesError(node, "a constant whose values depend on a dynamic size")
    return row


def _repeats(node: Node, plan: Partition) -> bool:
    """Return whether a constant repeats if the constants that it is computed from do."""
    if node.op != "call_function" or all(map(is_fixed, plan.shapes(node))):
        return True
    elements, by_row = elements_of(node.target), node.target in (aten.expand.default, DEQUANTIZE_CHANNELS)
    if not (by_row or elements is Elements.RELABELS or elements.is_pointwise):
        return False
    return all(_repeats(operand, plan) for operand in node.all_input_nodes)
