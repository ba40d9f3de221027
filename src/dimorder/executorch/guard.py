"""Wrap any ExecuTorch partitioner in one that checks and converts orders by a `DelegateLayout`.

Orders are fixed before decomposition. Then partitions are reduced to what the delegate can take, and checked.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from dimorder.algebra.dim_order import DimOrder, describe
from dimorder.errors import UnsupportedError
from dimorder.executorch.layout import QUANTIZERS, DelegateLayout
from dimorder.executorch.legalization import legalize_program
from dimorder.executorch.passes import DIM_ORDER_OPERATORS, label
from dimorder.executorch.rewriting import contiguous_results, copy_program
from dimorder.executorch.rules import faults, has_orders, name_of, rank_of, source_line
from dimorder.graph.construct import replace_parts
from dimorder.graph.nodes import drop_meta, set_meta, tensors_in

TAG = "delegation_tag"
_DEQUANTIZERS = f"{QUANTIZERS}dequantize"  # the beginning of their names
_IMPLICIT = (
    "IS_IMPLICIT_Q_DQ_TAG"  # of XNNPACK's partitioner: its neighbour in the delegate computes in integers
)
_MARK = "dimorder_node"  # in node.meta: the name before the edge dialect
# The advice for a tensor that crosses a delegate's boundary in an order that the delegate does not take.
_FIXES = {
    "weight": "program = canonicalize(program) before lowering",
    "input": "program = canonicalize(program) before lowering, or export with an input in that order",
    "value": "lower with to_edge_transform_and_lower(partitioner=[guarded(...)]), which converts it",
    "output": "list the order in the layout's boundary, or keep the operator out of its operators",
}


def guarded(partitioner: Partitioner, layout: DelegateLayout) -> Partitioner:
    """Return a partitioner that converts and checks orders for `partitioner` against `layout`.

    Use it in `to_edge_transform_and_lower(partitioner=[guarded(...)])`, preferably after
    `canonicalize(program)`. A graph in which everything is contiguous stays unchanged, if the delegate takes
    contiguous tensors.

    Args:
        partitioner: the delegate's own partitioner.
        layout: the orders that the delegate accepts.

    Returns:
        A partitioner that raises `UnsupportedError` for a boundary or a weight in an order that the delegate
            does not take. The error has the operator, its source line, the order found and the accepted ones.

    >>> from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    >>> from executorch.exir import to_edge_transform_and_lower
    >>> from dimorder.executorch import XNNPACK, canonicalize
    >>> x = torch.randn(1, 3, 5, 7).to(memory_format=torch.channels_last)
    >>> program = canonicalize(torch.export.export(torch.nn.Conv2d(3, 8, 3), (x,)))
    >>> edge = to_edge_transform_and_lower(program, partitioner=[guarded(XnnpackPartitioner(), XNNPACK)])
    >>> [n.target.__name__ for n in edge.exported_program().graph.nodes if n.op == "call_function"]
    ['executorch_call_delegate', 'getitem']
    """
    return GuardedPartitioner(partitioner, layout)


class GuardedPartitioner(Partitioner):  # type: ignore[misc]
    """The partitioner that `guarded` returns."""

    def __init__(self, partitioner: Partitioner, layout: DelegateLayout) -> None:
        super().__init__()
        self.partitioner = partitioner
        self.layout = layout

    @property
    def spec(self) -> Any:
        return self.partitioner.spec

    def ops_to_not_decompose(self, ep: ExportedProgram) -> Any:
        kept, keeps = self.partitioner.ops_to_not_decompose(ep)
        calls = [node for node in ep.graph.nodes if node.target in kept]
        if all(map(self._takes, calls)):
            return kept, keeps
        return kept, lambda node: self._takes(node) and (keeps is None or keeps(node))

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """Return the program with the conversions that the delegate or a portable kernel needs."""
        program: ExportedProgram = self.partitioner.transform_for_pre_decomposition(exported_program)
        asked = (self.layout.default, *self.layout.operators.values())
        if not has_orders(program) and all(DimOrder.contiguous(4) in orders for orders in asked):
            return program
        # The orders that an operator gets are known only after decomposition, so decompose as exir does next.
        program = self._decomposed(program)
        # The delegate takes the operators that the layout lists. If it lists none, it takes what the
        # partitioner takes.
        listed = {node.name for node in program.graph.nodes if name_of(node) in self.layout.operators}
        own = listed if self.layout.operators else self._taken(program)
        planned = legalize_program(program, self.layout, lambda node: node.name in own)
        # If a listed operator would be wrong on its portable kernel, it matters whether the partitioner takes
        # it.
        alone = {fault.node for fault in faults(planned, self.layout, lambda node: False)}
        if listed & alone and not listed & alone <= (own := listed & self._taken(planned)):
            planned = legalize_program(program, self.layout, lambda node: node.name in own)
        return replace_parts(contiguous_results(planned), _Decomposed)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Return the partitions, checked, without nodes that the delegate cannot take."""
        result = self.partitioner.partition(exported_program)
        program = result.tagged_exported_program
        own = {node for node in program.graph.nodes if node.meta.get(TAG) in result.partition_tags}
        refused = {fault.node for fault in faults(program, self.layout, own.__contains__)}
        # A conversion has the delegate's order on one side only, so at a partition's edge it stays outside.
        at_edge = {node for node, _ in self._boundary_errors(program, own)}
        outside = own if self.layout.dim_order_operators == "outside" else at_edge
        out = {
            node
            for node in own
            if node.name in refused
            or not self._takes(node)
            or self._is_blind(node, own)
            or self._is_of_dynamic_size(node)
            or (node.target in DIM_ORDER_OPERATORS and (node in outside or _is_next_to_quantizer(node)))
        }
        tags = _keep_out(program, out, result.partition_tags) if out else result.partition_tags
        own = {node for node in program.graph.nodes if node.meta.get(TAG) in tags}
        for fault in faults(program, self.layout, own.__contains__):
            raise fault.error()
        for _, error in self._boundary_errors(program, own):
            raise error
        return PartitionResult(tagged_exported_program=program, partition_tags=tags)

    def _takes(self, node: Node) -> bool:
        return node.op != "call_function" or self.layout.takes(name_of(node), rank_of(node))

    def _is_blind(self, node: Node, own: set[Node]) -> bool:
        """Return whether the delegate may read the node's input in an order in which it computes it wrong."""
        if name_of(node) not in self.layout.order_blind:
            return False
        open_, seen = list(node.all_input_nodes), set()
        while open_:
            source = open_.pop()
            values = [value for value in tensors_in(source.meta.get("val")) if value.dim() == 4]
            if source in seen or not values:
                continue
            seen.add(source)
            is_inside = source in own and source.meta.get(TAG) == node.meta[TAG]
            if is_inside and name_of(source) in self.layout.reorders:
                return True
            if not all(label(value).is_contiguous for value in values):
                return True
            open_ += source.all_input_nodes if is_inside else []
        return False

    def _is_of_dynamic_size(self, node: Node) -> bool:
        """Return whether the result must have fixed sizes in the delegate, and has others."""
        if name_of(node) not in self.layout.fixed_results:
            return False
        result = node.meta["val"]
        is_quantized = any(name_of(source).startswith(QUANTIZERS) for source in node.all_input_nodes)
        is_fixed = all(type(size) is int for size in result.shape)
        return not is_fixed and (is_quantized or result.dtype != torch.float32)

    def _taken(self, program: ExportedProgram) -> set[str]:
        """Return the names of the nodes that end up in partitions, decomposed or not."""
        from executorch.exir import EdgeCompileConfig
        from executorch.exir.program._program import _generate_edge_program

        trial = copy_program(program)
        for node, twin in zip(program.graph.nodes, trial.graph.nodes, strict=True):
            set_meta(twin, _MARK, node.name)
        edge = _generate_edge_program(EdgeCompileConfig(_check_ir_validity=False), trial)
        result = self.partitioner.partition(edge)
        nodes = result.tagged_exported_program.graph.nodes
        return {str(n.meta.get(_MARK)) for n in nodes if n.meta.get(TAG) in result.partition_tags}

    def _decomposed(self, program: ExportedProgram) -> ExportedProgram:
        """Return the program as exir decomposes it; calls that the partitioner keeps are kept."""
        from executorch.exir.program import _program as exir

        program = program.run_decompositions({})
        kept, keeps = self.ops_to_not_decompose(program)
        kept = set(kept if keeps is None else exir._remove_invalid_ops_for_not_decompose(kept))
        table = exir._default_decomposition_table()
        for target in kept:
            table.pop(target, None)
        decomposed: ExportedProgram = program.run_decompositions(table)
        if keeps is None or all(keeps(node) for node in decomposed.graph.nodes if node.target in kept):
            return decomposed
        # Only some calls of an operator are kept. They get another name, which no decomposition table
        # contains.
        exir._replace_aten_ops_with_transformed_ops("forward", decomposed, {"forward": [self]})
        decomposed = decomposed.run_decompositions(exir._default_decomposition_table())
        exir._restore_transformed_ops_to_aten_ops(decomposed)
        return decomposed

    def _boundary_errors(
        self, program: ExportedProgram, own: set[Node]
    ) -> Iterator[tuple[Node, UnsupportedError]]:
        kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
        for node in program.graph.nodes:
            if node not in own or node.op != "call_function":
                continue
            for source in node.all_input_nodes:
                if source.meta.get(TAG) == node.meta[TAG] and source.op != "placeholder":
                    continue
                constant = kinds.get(source.name, InputKind.USER_INPUT) != InputKind.USER_INPUT
                kind = "weight" if constant else "input" if source.op == "placeholder" else "value"
                yield from self._check(node, source, kind)
            if any(user.meta.get(TAG) != node.meta[TAG] for user in node.users):
                yield from self._check(node, node, "output")

    def _check(self, node: Node, value: Node, kind: str) -> Iterator[tuple[Node, UnsupportedError]]:
        tensor = value.meta.get("val")
        if not isinstance(tensor, torch.Tensor):
            return
        rank = tensor.dim()
        accepted = self.layout.of_weight(rank) if kind == "weight" else self.layout.at_boundary(rank)
        found = label(tensor)
        same = found.is_contiguous and any(found.equivalent(order, tuple(tensor.shape)) for order in accepted)
        if found in accepted or same:
            return
        shape, place = tuple(tensor.shape), source_line(node) or node.name
        error = UnsupportedError(
            f"{kind} {value.name} of {name_of(node)} ({place}), for {self.layout.name}",
            f"{describe(found)}, shape {shape}; accepted: {', '.join(map(describe, accepted))}",
            _FIXES[kind],
        )
        yield node, error


class _Decomposed(ExportedProgram):
    """A decomposed program, which skips three further decompositions, each a retrace."""

    def run_decompositions(self, decomp_table: Any = None, *options: Any, **named: Any) -> ExportedProgram:
        """Return the program itself if it calls nothing that would be decomposed or made functional."""
        calls = {node.target for node in self.graph.nodes if node.op == "call_function"} - {operator.getitem}
        is_final = decomp_table is not None and all(
            isinstance(target, torch._ops.OpOverload)
            and not target._schema.is_mutable
            and target not in decomp_table
            for target in calls
        )
        if is_final:
            return self
        decomposed: ExportedProgram = super().run_decompositions(decomp_table, *options, **named)
        return decomposed


def _is_next_to_quantizer(node: Node) -> bool:
    """Return whether a node reads or gives a value of a quantize or a dequantize.

    XNNPACK's preprocess gives a copy into another order the wrong shape there (ExecuTorch 1.5.1).
    """
    return any(name_of(each).startswith(QUANTIZERS) for each in (*node.all_input_nodes, *node.users))


def _keep_out(program: ExportedProgram, out: set[Node], tags: dict[str, Any]) -> dict[str, Any]:
    """Untag nodes, and split the partitions that they leave, so that none depends on itself."""
    split = {node.meta[TAG] for node in out}
    for node in out:
        drop_meta(node, TAG)
        for each in (*node.all_input_nodes, *node.users):
            drop_meta(each, _IMPLICIT)
    kept = {tag: spec for tag, spec in tags.items() if tag not in split}
    constants = _constants(program)
    for tag in split:
        members = {
            node for node in program.graph.nodes if node.meta.get(TAG) == tag and node.op != "placeholder"
        }
        depth: dict[Node, int] = {}
        for node in program.graph.nodes:
            inside = node in members
            steps = [
                depth[source] + (inside and source not in members and depth[source] > -1)
                for source in node.all_input_nodes
            ]
            depth[node] = max([*steps, 0 if inside else -1])
        # Integers go from one partition to another, not floats of them: its calls would read no integers.
        for node in reversed(program.graph.nodes):
            is_late = node in constants or name_of(node).startswith(_DEQUANTIZERS)
            if is_late and node in members and members.issuperset(node.users):
                depth[node] = min(depth[user] for user in node.users)
        for node in members:
            set_meta(node, TAG, f"{tag}_{depth[node]}")
            kept[node.meta[TAG]] = tags[tag]
        for node in program.graph.nodes:
            if node.op == "placeholder" and node.meta.get(TAG) == tag:
                users = {user.meta.get(TAG) for user in node.users}
                drop_meta(node, TAG)
                if len(users) == 1 and None not in users:
                    set_meta(node, TAG, users.pop())
    used = {node.meta.get(TAG) for node in program.graph.nodes}
    return {tag: spec for tag, spec in kept.items() if tag in used}


def _constants(program: ExportedProgram) -> set[Node]:
    """Return the parameters and buffers of a program, and what is computed of these alone."""
    inputs, constants = set(program.graph_signature.user_inputs), set[Node]()
    for node in program.graph.nodes:
        is_constant = node.op == "placeholder" and node.name not in inputs
        if is_constant or (node.all_input_nodes and constants.issuperset(node.all_input_nodes)):
            constants.add(node)
    return constants
