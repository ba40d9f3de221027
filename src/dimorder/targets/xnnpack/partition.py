"""Divide a physical program into delegates and the operators that run outside, between two delegates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.capture.integer_boundary import integer_type
from dimorder.graph.dynamic_sizes import DynamicCall, is_fixed
from dimorder.graph.nodes import results
from dimorder.ops.quantization import is_quantized
from dimorder.physical.annotations import FusedProgram
from dimorder.physical.fuse_quantized import fuse_quantized
from dimorder.sizes.size_table import SizeTable
from dimorder.targets.integer_kernels import operand_type
from dimorder.targets.program_io import empty, is_channels_last, read_signature
from dimorder.targets.table import Table

aten = torch.ops.aten


@dataclass
class Partition:
    """A physical program, divided into operators in delegates and operators outside."""

    program: ExportedProgram
    operators: Table
    inputs: list[Node]
    outputs: list[Node]
    constants: dict[Node, Tensor]
    state: dict[str, Tensor]  # read by the first inputs, written by the first outputs
    # Even: a delegate; odd: outside. Later stages read earlier ones.
    stage: dict[Node, int] = field(default_factory=dict)
    dynamic: Mapping[Node, DynamicCall] = field(default_factory=dict)  # for a program with dynamic sizes
    refused: set[Node] = field(default_factory=set)  # what XNNPACK does not compute

    @property
    def called(self) -> list[Node]:
        """Return the calls that a run makes."""
        nodes = self.program.graph.nodes
        return [node for node in nodes if node.op == "call_function" and node not in self.constants]

    def shapes(self, node: Node) -> Sequence[tuple[int, ...]]:
        """Return the shapes of a node's results, with dynamic sizes."""
        if node in self.dynamic:
            return self.dynamic[node].shapes
        return [tuple(value.shape) for value in results(node)]

    def tensors(self, nodes: Sequence[Node], table: SizeTable | None = None) -> list[Tensor]:
        """Return tensors like values. With the table of a program's dynamic sizes they have no data."""
        return [tensor for node in nodes for tensor in self.results(node, table)]

    def results(self, node: Node, table: SizeTable | None = None) -> list[Tensor]:
        """Return tensors like the results of a node; see `tensors`."""
        found = [empty(each, self.is_nhwc(node)) for each in results(node)]
        if table is None:
            return found
        sized = [table.tensor(each, shape) for each, shape in zip(found, self.shapes(node), strict=True)]
        known = [each for each in sized if each is not None]
        assert len(known) == len(sized), f"{node} has a size that no size of the network explains"
        return known

    def outside(self) -> list[Node]:
        return [node for node, stage in self.stage.items() if stage % 2]

    def is_nhwc(self, node: Node) -> bool:
        """Return whether `node` is channels-last, as an input or as an output from a delegate."""
        is_result = node in self.outputs and node in self.stage and self.stage[node] % 2 == 0
        return (is_result or node in self.inputs) and is_channels_last(node.meta["val"])

    def is_computed(self, node: Node) -> bool:
        """Return whether `node` is in a delegate."""
        return self.stage.get(node, 1) % 2 == 0

    def fused(self) -> FusedProgram:
        """Return what the delegates compute in integers."""
        if not is_quantized(self.program.graph_module):
            return FusedProgram()
        parts = {node: stage for node, stage in self.stage.items() if self.is_computed(node)}
        sized = {node for node in self.dynamic if not all(map(is_fixed, self.shapes(node)))}
        rules = self.operators.kernel_rules
        return fuse_quantized(self.program.graph, self.constants, parts, rules, operand_type, sized)

    def delegates(self) -> Iterator[tuple[int, list[Node]]]:
        for stage in sorted({s for s in self.stage.values() if s % 2 == 0}):
            yield stage, [node for node, s in self.stage.items() if s == stage]


def partition(
    program: ExportedProgram,
    operators: Table,
    dynamic: Mapping[Node, DynamicCall] = MappingProxyType({}),
) -> Partition:
    """Divide a program. `dynamic` has the numbers of each node, if they depend on dynamic sizes."""
    signature = read_signature(program)
    ends = signature.inputs, signature.outputs, signature.constants, signature.state
    plan = Partition(program, operators, *ends, dynamic=dynamic)
    plan.refused = {node for node in plan.called if operators.supports(node, plan.constants) or _counts(node)}
    divide(plan)
    return plan


def divide(plan: Partition) -> None:
    """Assign each node to a stage; those in `refused` run outside.

    A node's stage is the first of its kind (delegate or outside) that is not before the stages of its
    operands. A delegate without waiting operators outside becomes part of the next one.
    """
    outside, operators = set(plan.refused), plan.operators
    while True:
        plan.stage = _stages(plan.called, outside)
        idle = [
            group
            for _, group in plan.delegates()
            if all(map(operators.is_relabel, group)) and not _at_border(plan, group)
        ]
        if not idle:
            return
        outside.update(node for group in idle for node in group)


def _counts(node: Node) -> bool:
    """Return whether a call moves 8-bit integers that stand for themselves, which XNNPACK lacks."""
    read = (each for each in (node, *node.all_input_nodes) if isinstance(each.meta["val"], Tensor))
    return any(
        each.meta["val"].dtype in (torch.int8, torch.uint8) and integer_type(each) is None for each in read
    )


def _stages(called: Sequence[Node], outside: set[Node]) -> dict[Node, int]:
    stage: dict[Node, int] = {}
    for node in called:
        parity = int(node in outside)
        earliest = max((stage[operand] for operand in node.all_input_nodes if operand in stage), default=0)
        stage[node] = earliest if earliest % 2 == parity else earliest + 1
    for early in range(0, max(stage.values(), default=0) - 1, 2):
        group = [node for node in stage if stage[node] == early]
        if not any(stage.get(user) == early + 1 for node in group for user in node.users):
            stage.update(dict.fromkeys(group, early + 2))
    return stage


def _at_border(plan: Partition, group: Sequence[Node]) -> bool:
    """Return whether the group converts an input or output of the program, or copies one to the other.

    Other views and copies cost less outside.
    """
    nodes = set(group)
    reads = {operand for node in group for operand in node.all_input_nodes}
    touched = bool(reads & set(plan.inputs)), bool(nodes & set(plan.outputs))
    moves = any(node.target is aten.permute.default for node in group)
    return all(touched) or (any(touched) and moves)
