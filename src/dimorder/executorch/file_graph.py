"""Read a .pte of any tool as a graph: the kernels that it calls, and what its XNNPACK delegates compute."""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dimorder.algebra.dim_order import DimOrder, describe
from dimorder.executorch.file_conversions import BACKEND_ID, converted_bytes, delegate_blob
from dimorder.executorch.pte import damage_error, forward_plan, read_tables
from dimorder.executorch.xnn_blob import flatbuffer_of, moved_bytes
from dimorder.runtime.kernels import instructions, kernel_of, tensors_of
from dimorder.text import shape_text

# The line of an instruction, or of an operator in its delegate by that operator's debug handle.
SourceLines = Callable[[int, int | None], str]

_DAMAGE = (LookupError, ValueError, TypeError, AttributeError)
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
    """

    name: str
    operator: str
    group: str = ""
    reads: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    converted_bytes: int | None = None
    source: str = ""


def graph_of_file(path: str, sources: SourceLines | None = None) -> list[FileNode]:
    """Return the operators of a .pte in program order.

    Args:
        path: a .pte of any tool.
        sources: the source lines of its operators, which the file itself lacks.

    Returns:
        The nodes. A delegate of another backend than XNNPACK is one node.

    Raises:
        OSError: if the file cannot be read.
        ContractError: if it is damaged, or no .pte.
        UnsupportedError: if it has no method `forward`.
    """
    where = f"reading {path}"
    tables = read_tables(Path(path).read_bytes(), where)
    plan = forward_plan(tables, where)
    try:
        return list(_nodes(tables, plan, sources or (lambda instruction, handle: "")))
    except _DAMAGE as error:
        raise damage_error(where, f"contradictory tables ({type(error).__name__}: {error})") from error


def _nodes(tables: Any, plan: Any, sources: SourceLines) -> Iterator[FileNode]:
    written: dict[int, str] = {}
    for place, index in enumerate(plan.inputs):
        written[index] = f"input {place}"
        yield FileNode(f"input {place}", "input", facts={"value": _tensor_text(plan.values[index].val)})
    for number, call in enumerate(instructions(plan)):
        kernel = kernel_of(plan, call)
        tensors = [index for arg in call.args for index in tensors_of(plan, arg)]
        if kernel:
            results = tensors_of(plan, call.args[-1])
            operands = [index for index in tensors if index not in results and index in written]
            node = FileNode(f"{number} {kernel}", kernel, source=sources(number, None))
            nodes, results_from = [node], dict.fromkeys(results, node.name)
            node.reads = [written[index] for index in operands]
            node.converted_bytes = converted_bytes(plan, call)
            node.facts = _facts([plan.values[i].val for i in operands], [plan.values[i].val for i in results])
        else:
            delegate = plan.delegates[call.delegate_index]
            group = f"{delegate.id} {call.delegate_index}"
            if delegate.id == BACKEND_ID:
                blob = delegate_blob(tables, delegate)
                lines = functools.partial(sources, number)
                nodes, results_from = _xnn_nodes(blob, group, tensors, written, lines)
            else:
                reads = [written[index] for index in tensors if index in written]
                node = FileNode(f"{number} {group}", delegate.id, reads=reads)
                nodes, results_from = [node], {i: node.name for i in tensors if i not in written}
        yield from nodes
        written |= results_from
    for place, index in enumerate(plan.outputs):
        if index in written:
            facts = {"value": _tensor_text(plan.values[index].val)}
            yield FileNode(f"output {place}", "output", reads=[written[index]], facts=facts)


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
    outside: Mapping[int, str],
    sources: Callable[[int], str],
) -> tuple[list[FileNode], dict[int, str]]:
    """Return the nodes of an XNNPACK delegate, and the node that writes each of its results.

    `tensors` are its operands, then its results. `outside` are the nodes that wrote them, none for constants.
    """
    moved, graph = moved_bytes(blob, group), _xnn_graph(blob)
    values = {value["id_out"]: value for value in map(_xnn_tensor, graph["xvalues"])}
    count = len(graph["input_ids"])
    operands = zip(graph["input_ids"], tensors[:count], strict=True)
    written = {value: outside[index] for value, index in operands if index in outside}
    nodes = []
    for number, (union, converted) in enumerate(zip(graph["xnodes"], moved, strict=True)):
        kind, fields = union["xnode_union_type"], union["xnode_union"]
        ids = {key: value for key, value in fields.items() if key.endswith("_id") and value in values}
        reads = [value for key, value in ids.items() if not key.startswith("output")]
        node = FileNode(f"{group}/{number} {kind}", kind.removeprefix("XNN"), group)
        node.source = sources(union["debug_handle"])
        node.converted_bytes = converted
        node.reads = [written[value] for value in reads if value in written]
        node.facts = {key.removesuffix("_id"): _xnn_text(values[value]) for key, value in ids.items()}
        node.facts |= {key: str(value) for key, value in fields.items() if key not in {*ids, *_HIDDEN}}
        written |= {value: node.name for key, value in ids.items() if key.startswith("output")}
        nodes.append(node)
    results = zip(tensors[count:], graph["output_ids"], strict=True)
    return nodes, {index: written[value] for index, value in results}


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
    text += f", scale {quant['scale']:g}, zero point {quant['zero_point']}" if "scale" in quant else ""
    return text + (", constant" if value.get("constant_buffer_idx") else "")
