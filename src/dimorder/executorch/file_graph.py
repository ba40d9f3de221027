"""Read a .pte of any tool as a graph: the kernels that it calls, and what its XNNPACK delegates compute."""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dimorder.algebra.dim_order import DimOrder, describe
from dimorder.executorch.file_conversions import converted_bytes
from dimorder.executorch.pte import consistent_tables, forward_plan, read_tables_of
from dimorder.executorch.xnn_blob import BACKEND_ID, delegate_blob, flatbuffer_of, moved_bytes
from dimorder.runtime.kernels import instructions, kernel_of, seen_through, tensors_of
from dimorder.text import shape_text


class EdgeOperator(NamedTuple):
    """The operator of the network that one of a file was made of: its line, and its result's shape."""

    source: str = ""
    shape: tuple[int, ...] = ()


# The operator of an instruction, or of a node in its delegate by that node's debug handle.
EdgeOperators = Callable[[int, int | None], EdgeOperator]

_HIDDEN = ("flags", "num_dims")  # fields of XNNPACK's nodes that tell a reader nothing


@dataclass
class FileNode:
    """One operator of a file.

    Attributes:
        name: A name that no other node has.
        operator: The kernel, or the kind of XNNPACK's node.
        group: The delegate that it is in, or nothing.
        reads: The names of the nodes that it reads.
        facts: The shapes, orders and types of its operands and results, and its parameters, by title.
        converted_bytes: The bytes that it moves into another order; None if it is no conversion.
        source: The line that it comes from. It is empty for what the lowering inserted, and for all nodes if
            no lines are known.
        shape: The shape of its result, as the network has it; empty if it is not known.
        order: The order in which its result lies in memory, or None if it is not known.
    """

    name: str
    operator: str
    group: str = ""
    reads: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    converted_bytes: int | None = None
    source: str = ""
    shape: tuple[int, ...] = ()
    order: DimOrder | None = None


def graph_of_file(path: str, operators: EdgeOperators | None = None) -> list[FileNode]:
    """Return the operators of a .pte in program order.

    Args:
        path: a .pte of any tool.
        operators: the operators of the network that its own were made of, of which the file itself says
            nothing.

    Returns:
        The nodes. A delegate of another backend than XNNPACK is one node.

    Raises:
        OSError: if the file cannot be read.
        ContractError: if it is damaged, or no .pte.
        UnsupportedError: if it has no method `forward`.
    """
    where = f"reading {path}"
    file = Path(path)
    tables = read_tables_of(file, file.read_bytes(), where)
    plan = forward_plan(tables, where)
    with consistent_tables(where):
        return list(_nodes(tables, plan, operators or (lambda instruction, handle: EdgeOperator())))


def _nodes(tables: Any, plan: Any, operators: EdgeOperators) -> Iterator[FileNode]:
    written: dict[int, str] = {}  # the nodes of tensors, the latest last: memory is reused

    def writer(index: int) -> str | None:
        """Return the node of a tensor, or of the tensor of which it is a view that has no call."""
        viewed = seen_through(plan, index, written)
        return written.get(index if viewed is None else viewed)

    for place, index in enumerate(plan.inputs):
        written[index] = f"input {place}"
        yield _boundary_node(f"input {place}", plan.values[index].val)
    for number, call in enumerate(instructions(plan)):
        kernel = kernel_of(plan, call)
        tensors = [index for arg in call.args for index in tensors_of(plan, arg)]
        if kernel:
            results = tensors_of(plan, call.args[-1])
            operands = [index for index in tensors if index not in results and writer(index)]
            node = FileNode(f"{number} {kernel}", kernel, source=operators(number, None).source)
            nodes, results_from = [node], dict.fromkeys(results, node.name)
            node.reads = [name for index in operands if (name := writer(index))]
            node.converted_bytes = converted_bytes(plan, call)
            node.facts = _facts([plan.values[i].val for i in operands], [plan.values[i].val for i in results])
            node.shape, node.order = _shape_and_order(plan.values[results[0]].val) if results else ((), None)
        else:
            delegate = plan.delegates[call.delegate_index]
            group = f"{delegate.id} {call.delegate_index}"
            if delegate.id == BACKEND_ID:
                blob = delegate_blob(tables, delegate)
                of_handle = functools.partial(operators, number)
                nodes, results_from = _xnn_nodes(blob, group, tensors, writer, of_handle)
            else:
                reads = [written[index] for index in tensors if index in written]
                node = FileNode(f"{number} {group}", delegate.id, reads=reads)
                nodes, results_from = [node], {i: node.name for i in tensors if i not in written}
        yield from nodes
        for index, name in results_from.items():
            written.pop(index, None)
            written[index] = name
    for place, index in enumerate(plan.outputs):
        if name := writer(index):
            node = _boundary_node(f"output {place}", plan.values[index].val)
            node.reads = [name]
            yield node


def _boundary_node(name: str, value: Any) -> FileNode:
    """Return the node of an input or output of the file."""
    shape, order = _shape_and_order(value)
    facts = {"value": _tensor_text(value)}
    return FileNode(name, name.split()[0], facts=facts, shape=shape, order=order)


def _shape_and_order(value: Any) -> tuple[tuple[int, ...], DimOrder | None]:
    """Return the shape and the order of a tensor of ExecuTorch, nothing of another value."""
    if not hasattr(value, "sizes"):
        return (), None
    return tuple(value.sizes), DimOrder(*value.dim_order)


def order_in_memory(dims: Sequence[int], shape: Sequence[int]) -> DimOrder | None:
    """Return the order in which a value of a shape has these sizes in memory; None if that is not known.

    A cube has the same sizes in every order.

    >>> order_in_memory((1, 5, 7, 3), (1, 3, 5, 7)), order_in_memory((1, 5, 5, 5), (1, 5, 5, 5))
    (DimOrder(0, 2, 3, 1), None)
    """
    rank = len(shape)
    orders = (DimOrder.contiguous(rank), DimOrder.channels_last(rank))
    fits = [order for order in orders if order.physical_shape(shape) == tuple(dims)]
    if not fits or not fits[0].equivalent(fits[-1], shape):
        return None
    return fits[0]


def _facts(operands: Sequence[Any], results: Sequence[Any]) -> dict[str, str]:
    return {
        **{f"reads {place}": _tensor_text(value) for place, value in enumerate(operands)},
        **{f"writes {place}": _tensor_text(value) for place, value in enumerate(results)},
    }


def _tensor_text(value: Any) -> str:
    """Return the shape, type and order of a tensor of ExecuTorch (executorch.exir.schema.Tensor)."""
    if not hasattr(value, "sizes"):
        return type(value).__name__
    shape = shape_text(tuple(value.sizes))
    return f"{shape} {value.scalar_type.name.lower()}, {describe(DimOrder(*value.dim_order))}"


def _xnn_nodes(
    blob: bytes,
    group: str,
    tensors: Sequence[int],
    writer: Callable[[int], str | None],
    operator_of: Callable[[int], EdgeOperator],
) -> tuple[list[FileNode], dict[int, str]]:
    """Return the nodes of an XNNPACK delegate, and the node that writes each of its results.

    `tensors` are its arguments, whose places its inputs and outputs name. `writer` gives the node that wrote
    one, None for a constant.
    """
    moved, graph = moved_bytes(blob, group), _xnn_graph(blob)
    values = {value["id_out"]: value for value in map(_xnn_tensor, graph["xvalues"])}
    boundary = (*graph["input_ids"], *graph["output_ids"])
    arguments = {value: tensors[values[value]["external_id"]] for value in boundary}
    written = {value: name for value in graph["input_ids"] if (name := writer(arguments[value]))}
    nodes = []
    for number, (union, converted) in enumerate(zip(graph["xnodes"], moved, strict=True)):
        kind, fields = union["xnode_union_type"], union["xnode_union"]
        ids = {key: value for key, value in fields.items() if key.endswith("_id") and value in values}
        reads = [value for key, value in ids.items() if not key.startswith("output")]
        node = FileNode(f"{group}/{number} {kind}", kind.removeprefix("XNN"), group)
        made_of = operator_of(union["debug_handle"])
        node.source, node.shape = made_of
        result = next((value for key, value in ids.items() if key.startswith("output")), None)
        if result is not None and made_of.shape:
            node.order = order_in_memory(values[result].get("dims", ()), made_of.shape)
        node.converted_bytes = converted
        node.reads = [written[value] for value in reads if value in written]
        node.facts = {key.removesuffix("_id"): _xnn_text(values[value]) for key, value in ids.items()}
        node.facts |= {key: str(value) for key, value in fields.items() if key not in {*ids, *_HIDDEN}}
        written |= {value: node.name for key, value in ids.items() if key.startswith("output")}
        nodes.append(node)
    return nodes, {arguments[value]: written[value] for value in graph["output_ids"]}


def _xnn_graph(blob: bytes) -> Any:
    """Return XNNPACK's graph as ExecuTorch's own schema and flatc read it."""
    from executorch.backends.xnnpack import serialization
    from executorch.exir._serialize._flatbuffer import _flatc_decompile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "graph.bin").write_bytes(flatbuffer_of(blob))
        schema = folder / "schema.fbs"
        schema.write_text((Path(next(iter(serialization.__path__))) / "schema.fbs").read_text())
        _flatc_decompile(name, str(schema), str(folder / "graph.bin"))
        text = (folder / "graph.json").read_text()
    return json.loads(re.sub(r": (-?)(?:inf|nan)\b", lambda found: f": {found[1]}Infinity", text))


def _xnn_tensor(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value's fields; a quantised one has those of a tensor and its parameters."""
    union = value["xvalue_union"]
    if "tensor_value" not in union:
        return dict(union)
    return {**union["tensor_value"], "quant": union.get("quant_params", {})}


def _xnn_text(value: Mapping[str, Any]) -> str:
    """Return the shape and type of a value, and whether it is a constant."""
    text = f"{shape_text(tuple(value.get('dims', ())))} {value['datatype'].removeprefix('xnn_datatype_')}"
    quant = value.get("quant", {})
    if "zero_point" in quant:
        text += f", scale {quant['scale']:g}, zero point {quant['zero_point']}"
    elif "num_scales" in quant:  # of channels or groups; those that dynamic quantization finds are in no file
        text += f", {quant['num_scales'] or len(quant['scale'])} scales"
    return text + (", constant" if value.get("constant_buffer_idx") else "")
