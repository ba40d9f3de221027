"""Copy an exported program, insert conversions into it, and trace its values anew."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from dimorder.algebra.dim_order import DimOrder
from dimorder.executorch.layout import NHWC
from dimorder.executorch.passes import (
    DIM_ORDER_OPERATORS,
    TO_DIM_ORDER,
    copy_graph_module,
    format_of,
    label,
    mode_of,
    restride,
)
from dimorder.executorch.rules import CONVERSIONS, compute, overload_of
from dimorder.graph.construct import replace_parts
from dimorder.graph.nodes import copy_meta, replace_node, set_value, tensors_in

_COPY_STRIDED = torch.ops.prims.copy_strided.default


def copy_program(program: ExportedProgram) -> ExportedProgram:
    graph = copy_graph_module(program)
    return replace_parts(
        program,
        root=graph,
        graph=graph.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=dict(program.state_dict),
        module_call_graph=copy.deepcopy(program.module_call_graph),
        constants=dict(program.constants),
    )


def retrace(program: ExportedProgram, replaced: Mapping[str, torch.Tensor]) -> ExportedProgram:
    """Return the program with its new constants, and with the strides that every value has now."""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            set_value(node, node.args[0].meta["val"][node.args[1]])
            continue
        if not tensors_in(node.meta.get("val")):
            continue
        read = lambda a: a.meta.get("val")  # noqa: E731
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), read)
        fakes = [v for a in node.all_input_nodes for v in tensors_in(a.meta.get("val"))]
        if fakes:
            with mode_of(fakes[0]):
                set_value(node, compute(node.target, args, kwargs))
    results = program.graph.output_node().args[0]
    for spec, result in zip(program.graph_signature.output_specs, results, strict=True):
        if isinstance(result, Node) and hasattr(spec.arg, "name"):
            spec.arg.name = result.name
    return replace_parts(
        program,
        state_dict={name: replaced.get(name, tensor) for name, tensor in program.state_dict.items()},
        constants={name: replaced.get(name, value) for name, value in program.constants.items()},
    )


def replace_strided_copies(program: ExportedProgram) -> ExportedProgram:
    """Return the program with conversions instead of `prims.copy_strided`, which has no kernel."""
    if not any(overload_of(node.target) == _COPY_STRIDED for node in program.graph.nodes):
        return program
    program = copy_program(program)
    for node in [node for node in program.graph.nodes if overload_of(node.target) == _COPY_STRIDED]:
        order = label(node.meta["val"])
        order = order if order == NHWC else DimOrder.contiguous(len(order))
        with program.graph.inserting_before(node):
            fresh = insert_conversion(program, node.args[0], order)
        replace_node(node, fresh)
    return retrace(program, {})


def relabel_copies(program: ExportedProgram) -> ExportedProgram:
    """Return the program whose dim-order operators write contiguous where sizes of 1 make it the same."""

    def is_odd(node: Node) -> bool:
        return node.target in DIM_ORDER_OPERATORS and _is_mislabelled(node)

    if not any(map(is_odd, program.graph.nodes)):
        return program
    program = copy_program(program)
    for node in filter(is_odd, program.graph.nodes):
        node.kwargs = {**node.kwargs, "dim_order": list(DimOrder.contiguous(4))}
    return retrace(program, {})


def keep_buffer_orders(program: ExportedProgram) -> ExportedProgram:
    """Return the program whose new values of buffers lie as the buffers themselves.

    ExecuTorch writes them back by `copy_`, whose kernel refuses two orders.
    """
    buffers = written_buffers(program)

    def is_odd(place: int) -> bool:
        value = program.graph.output_node().args[0][place]
        return isinstance(value, Node) and label(value.meta["val"]) != label(buffers[place].meta["val"])

    odd = [place for place in buffers if is_odd(place)]
    if not odd:
        return program
    program = copy_program(program)
    buffers, output = written_buffers(program), program.graph.output_node()
    results = list(output.args[0])
    for place in odd:
        order = label(buffers[place].meta["val"])
        with program.graph.inserting_before(output):
            results[place] = insert_conversion(program, results[place], order)
    output.args = (tuple(results),)
    return retrace(program, {})


def written_buffers(program: ExportedProgram) -> dict[int, Node]:
    """Return the buffer that each result replaces after a call, by the result's place."""
    signature = program.graph_signature
    names = {spec.target: spec.arg.name for spec in signature.input_specs if spec.kind == InputKind.BUFFER}
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    return {
        place: nodes[names[spec.target]]
        for place, spec in enumerate(signature.output_specs)
        if spec.kind == OutputKind.BUFFER_MUTATION and spec.target in names
    }


def contiguous_results(program: ExportedProgram) -> ExportedProgram:
    """Return the program with contiguous results where sizes of 1 gave the same memory a label of its own.

    ExecuTorch labels a channels-last image of one channel (0, 2, 1, 3), which its runtime refuses. It labels
    one of one pixel NHWC, which XNNPACK's delegate refuses. Values that are copied next are made contiguous
    too: the copy may be outside of the delegate.
    """
    odd = {
        node.name for node in program.graph.nodes if _is_mislabelled(node) and any(map(_leaves, node.users))
    }
    if not odd:
        return program
    program = copy_program(program)
    for node in [node for node in program.graph.nodes if node.name in odd]:
        readers = [user for user in node.users if _leaves(user)]
        with program.graph.inserting_after(node):
            fresh = insert_conversion(program, node, DimOrder.contiguous(4))
        for reader in readers:
            reader.replace_input_with(node, fresh)
    return retrace(program, {})


def _leaves(user: Node) -> bool:
    return user.op == "output" or user.target in CONVERSIONS


def _is_mislabelled(node: Node) -> bool:
    value = node.meta.get("val")
    if node.op == "placeholder" or not isinstance(value, torch.Tensor) or value.dim() != 4:
        return False
    plain, found = DimOrder.contiguous(4), label(value)
    return found != plain and found.equivalent(plain, tuple(value.shape))


def insert_conversion(program: ExportedProgram, source: Node, order: DimOrder) -> Node:
    """Insert a node that copies `source` into an order, at the graph's current insertion point."""
    node: Node
    if any(isinstance(node.target, EdgeOpOverload) for node in program.graph.nodes):
        node = program.graph.call_function(TO_DIM_ORDER, (source,), {"dim_order": list(order)})
    else:
        target = torch.ops.aten._to_copy.default
        node = program.graph.call_function(target, (source,), {"memory_format": format_of(order)})
    return copy_meta(node, source, restride(source.meta["val"], order))


def last_placeholder(program: ExportedProgram, source: Node) -> Node:
    """Return the node after which a conversion of `source` may stand: `source`, or the last placeholder."""
    if source.op != "placeholder":
        return source
    last: Node = [node for node in program.graph.nodes if node.op == "placeholder"][-1]
    return last
