"""Write a physical program as a `.tflite`, with dense inputs and outputs in the contract's orders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.capture.integer_boundary import integer_type
from dimorder.contract import Contract, TensorSpec
from dimorder.contract_file import CONTRACT_METHOD, SEAL_METHOD, constant_methods, seal
from dimorder.errors import UnsupportedError
from dimorder.graph import dynamic_sizes
from dimorder.graph.nodes import is_getitem, tensors_in
from dimorder.graph.quantized import QUANTIZE
from dimorder.ops.quantization import is_quantized
from dimorder.physical.annotations import FusedProgram, How
from dimorder.physical.fuse_quantized import fuse_quantized
from dimorder.physical.wasted_levels import clamp_range
from dimorder.sizes.specialization import specialize_each
from dimorder.targets.integer_kernels import operand_type
from dimorder.targets.litert.all_sizes import NotForAllSizesError, merge_graphs, varying_sizes
from dimorder.targets.litert.flatbuffer import SIGNATURE, TfLiteGraph, serialize
from dimorder.targets.litert.in_place import copy_before_overwriting
from dimorder.targets.litert.integer_writer import LiteRtValue
from dimorder.targets.litert.ops import FLIP, QUANTIZED, SLICE, unfit_input, unsupported_value, with_moves
from dimorder.targets.litert.passes import store_in_half
from dimorder.targets.litert.writer import LiteRtWriter
from dimorder.targets.program_io import (
    BOUNDARY_FIX,
    FIX,
    as_called,
    as_promised,
    blamed,
    call_place,
    read_signature,
)
from dimorder.targets.table import Table, View, whole


@dataclass(frozen=True)
class WrittenGraph:
    """A physical program as a graph of LiteRT, its file, and the integers of its quantize nodes."""

    graph: TfLiteGraph
    metadata: Mapping[str, bytes]
    integers: Mapping[Node, View[LiteRtValue]]

    @cached_property
    def data(self) -> bytes:
        """The bytes of the file, sealed."""
        return seal(serialize({SIGNATURE: self.graph}, self.metadata))


def calls_of_dynamic_size(program: ExportedProgram) -> set[str]:
    """Return the names of the calls whose results have dynamic sizes."""
    return {
        node.name
        for node in program.graph.nodes
        if not all(type(n) is int for value in tensors_in(node.meta.get("val")) for n in value.shape)
    }


def fused_program(program: ExportedProgram, operators: Table, dynamic: Collection[str] = ()) -> FusedProgram:
    """Return what the file of a program of fixed sizes computes in integers.

    `dynamic` names the calls whose results have dynamic sizes in what it is merged into.
    """
    if not is_quantized(program.graph_module):
        return FusedProgram()
    constants = read_signature(program).constants
    calls = [node for node in program.graph.nodes if node.op == "call_function" and node not in constants]
    sized = {node for node in calls if node.name in dynamic}
    parts = dict.fromkeys(calls, 0)
    return fuse_quantized(program.graph, constants, parts, operators.kernel_rules, operand_type, sized)


def write(program: ExportedProgram, contract: Contract, operators: Table) -> WrittenGraph:
    """Return the graph of a physical program, with its contract inside.

    The file's inputs and outputs are those of the contract, in sequence and by name. Each is the dense tensor
    of shape `spec.dim_order.physical_shape(spec.shape)`. Each buffer that the program writes is a variable.

    Raises `UnsupportedError` for an operator that LiteRT lacks, or cannot compute at all sizes, with its name
    and source line.
    """
    graph_of = _graph_for_ranges if program.range_constraints else _graph
    graph, integers = graph_of(program, contract, operators)
    tensors, nodes = copy_before_overwriting(
        graph.tensors, graph.nodes, graph.inputs.values(), graph.outputs.values()
    )
    if any(
        value.dtype == torch.float16 for value in (*program.state_dict.values(), *program.constants.values())
    ):
        tensors, nodes = store_in_half(tensors, nodes)
    texts = constant_methods(contract)
    metadata = {name: texts[name].encode() for name in (CONTRACT_METHOD, SEAL_METHOD)}
    return WrittenGraph(replace(graph, tensors=tensors, nodes=nodes), metadata, integers)


def _graph_for_ranges(
    program: ExportedProgram, contract: Contract, operators: Table
) -> tuple[TfLiteGraph, Mapping[Node, View[LiteRtValue]]]:
    """Return one graph for all sizes, from those at a few points, and the integers of its quantize nodes."""
    operators = with_moves(operators, SLICE, FLIP)
    programs, table = specialize_each(program, contract.symbols)
    pairs, dynamic = zip(programs, _dynamic_sizes(programs), strict=True), calls_of_dynamic_size(program)
    written = [_graph(each, contract, operators, dynamic, sizes) for each, sizes in pairs]
    nodes = {node.name: node for node in program.graph.nodes}
    try:
        merged = merge_graphs([graph for graph, _ in written], table)
    except NotForAllSizesError as error:
        node = nodes.get(error.origin)
        place = f"output {error.origin!r}" if node is None else call_place(node)
        raise UnsupportedError(place, error.found, dynamic_sizes.FIX) from error
    return merged, {nodes[node.name]: view for node, view in written[0][1].items()}


def _dynamic_sizes(programs: Sequence[ExportedProgram]) -> list[dict[Node, set[int]]]:
    """Return for each program, of one point, the dynamic sizes that each node reads or gives there."""
    found: list[dict[Node, set[int]]] = [{} for _ in programs]
    for nodes in zip(*(program.graph.nodes for program in programs), strict=True):
        sizes = list(zip(*map(_sizes, nodes), strict=True))
        for known, node, varying in zip(found, nodes, varying_sizes(sizes, len(nodes)), strict=True):
            known[node] = varying
    return found


def _sizes(node: Node) -> list[int]:
    """Return the sizes of the values that a node reads and gives."""
    values = (value for each in (node, *node.all_input_nodes) for value in tensors_in(each.meta.get("val")))
    return [int(size) for value in values for size in value.shape]


def _graph(
    program: ExportedProgram,
    contract: Contract,
    operators: Table,
    dynamic: Collection[str] = (),
    varying: Mapping[Node, Collection[int]] = MappingProxyType({}),
) -> tuple[TfLiteGraph, Mapping[Node, View[LiteRtValue]]]:
    """Return the graph of a program with fixed sizes, and the integers of its quantize nodes.

    `dynamic` names the calls whose results have dynamic sizes in what the graph is merged into. `varying` are
    the dynamic sizes of each node there.
    """
    signature, fused = read_signature(program), fused_program(program, operators, dynamic)
    count = len(signature.state)
    inputs, outputs = signature.inputs[count:], signature.outputs[count:]
    for node in inputs:
        if reason := unfit_input(node.meta["val"]):
            raise UnsupportedError(f"input {node.name!r}", reason, BOUNDARY_FIX)
    writer, values = LiteRtWriter(), dict[Node, Any](signature.constants)
    for node, (name, initial) in zip(signature.inputs, signature.state.items(), strict=False):
        with blamed(f"buffer {name!r}", BOUNDARY_FIX):
            values[node] = whole(writer.variable(name, initial))
    for node, spec in zip(inputs, contract.inputs, strict=True):
        with blamed(f"input {spec.name!r}", BOUNDARY_FIX):
            dtype = node.meta["val"].dtype
            of = integer_type(node) if dtype in QUANTIZED else None
            dense = writer.input(spec.name, _dense_shape(node, spec), dtype, of)
            values[node] = as_called(whole(dense), spec)
    for node in program.graph.nodes:
        writer.varying = varying.get(node, ())
        if node.op == "call_function" and node not in values:
            values[node] = _written(writer, node, values, signature.constants, operators, fused)
    for node, name in zip(signature.outputs, signature.state, strict=False):
        with blamed(f"buffer {name!r}", BOUNDARY_FIX):
            writer.assign(name, _result(writer, node, _view(writer, values[node])))
    for node, spec in zip(outputs, contract.outputs, strict=True):
        writer.hint = spec.name
        with blamed(f"output {spec.name!r}", BOUNDARY_FIX):
            writer.output(spec.name, _result(writer, node, as_promised(_view(writer, values[node]), spec)))
    _require_planned(writer, fused)
    return writer.finish(), {node: value for node, value in values.items() if node.target is QUANTIZE}


def _result(writer: LiteRtWriter, node: Node, view: View[LiteRtValue]) -> LiteRtValue:
    """Return what the program gives as the result of a node: dense, and in floats if it is one."""
    value = writer.dense(view)
    return writer.floats(value) if node.meta["val"].is_floating_point() else value


def _dense_shape(node: Node, spec: TensorSpec) -> Sequence[int]:
    """Return the shape of the dense tensor that the contract promises for an input."""
    shape = tuple(node.meta["val"].shape)
    return spec.dim_order.physical_shape(shape) if spec.boundary == "logical" else shape


def _view(writer: LiteRtWriter, held: Any) -> View[LiteRtValue]:
    """Return a result of the program, which may be a constant."""
    if isinstance(held, View):
        return held
    if reason := unsupported_value(held):
        raise UnsupportedError("a result", reason, BOUNDARY_FIX)
    return whole(writer.constant(held))


def _written(
    writer: LiteRtWriter,
    node: Node,
    values: Mapping[Node, Any],
    constants: Mapping[Node, Tensor],
    operators: Table,
    fused: FusedProgram,
) -> Any:
    """Write the operators of a call, and return its result."""
    writer.hint, how = node.name, fused.how(node)
    if is_getitem(node):
        return values[node.args[0]][node.args[1]]  # type: ignore[index]  # its source is a list
    if reason := operators.supports(node, constants):
        raise UnsupportedError(call_place(node), reason, FIX)
    if how is How.IN_KERNEL and (node.target is QUANTIZE or clamp_range(node) is not None):
        return values[node.all_input_nodes[0]]
    writer.in_integers = fused.annotations[node] if how in (How.KERNEL, How.DYNAMIC_KERNEL) else None
    with blamed(call_place(node), FIX):
        made = operators.build(writer, node, values.__getitem__)
    assert writer.in_integers is None, f"{node} is not written in integers"
    return made


def _require_planned(writer: LiteRtWriter, fused: FusedProgram) -> None:
    """Check that what computes floats in a program with integers is a float island of the plan."""
    planned = {How.ISLAND, How.IN_ISLAND}
    for node, annotation in fused.annotations.items():
        is_island = annotation.how in planned
        assert is_island or node.name not in writer.computes_floats, f"{node}: {annotation}, but in float32"
