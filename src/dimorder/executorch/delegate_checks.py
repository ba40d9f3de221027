"""Check an XNNPACK delegate for what its backend takes on trust: constants, arguments, the flow of values.

The backend reads as many bytes of a constant as its tensor has, and lets two nodes write one value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dimorder.executorch.argument_checks import missing_constant_error
from dimorder.executorch.delegate_orders import delegate_nodes
from dimorder.executorch.xnn_blob import (
    BACKEND_ID,
    EXTERNAL_INPUT,
    TENSOR_CONSTANT,
    TENSOR_DIMS,
    TENSOR_FLAGS,
    FlatRecord,
    constants_of_graph,
    delegate_blob,
    external_ids,
    readable,
    root_of,
    tensors_of_graph,
)
from dimorder.runtime.kernels import instructions, kernel_of

_CONVOLUTIONS = ("Conv2d", "DepthwiseConv2d", "ConvTranspose2d")
# Positions in _XNNNodeConv: height, width, input and output channels of a group, groups; the filter.
_FILTER_SIZES, _FILTER = (4, 5, 10, 11, 12), 16


def require_delegates(tables: Any, plan: Any, where: str) -> None:
    """Raise `ContractError` if an XNNPACK delegate lacks something, or has nodes that contradict each other.

    Args:
        tables: a program, as `program_tables.read_program` returns it.
        plan: one of its methods.
        where: the name of the file in errors.
    """
    sizes = {each.key: each.size for each in tables.named_data}
    for number, delegate in enumerate(plan.delegates):
        if delegate.id != BACKEND_ID:
            continue
        place = f"{where}, delegate {number} ({delegate.id})"
        blob = delegate_blob(tables, delegate)
        with readable(blob, place):
            graph = root_of(blob)
            missing = _missing_constant(graph, sizes)
            _require_flow(graph)
            for arguments in _arguments_of(plan, number):
                _require_tensors(graph, arguments)
        if missing:
            raise missing_constant_error(place, missing)


def _missing_constant(graph: FlatRecord, sizes: dict[str, int]) -> str | None:
    """Return the name of a constant that the file lacks. Raises `ValueError` for one that is too small."""
    missing = None
    for name, size, needed in constants_of_graph(graph):
        given = sizes.get(name, needed) if name else size
        if given < needed:
            raise ValueError(f"a constant of {given} bytes for a tensor of {needed}")
        missing = name if name and name not in sizes else missing
    return missing


def _require_flow(graph: FlatRecord) -> None:
    """Raise `ValueError` if a node reads what is not written yet, writes what is, or lacks its filter."""
    tensors = tensors_of_graph(graph)
    known = {
        key
        for key, tensor in tensors.items()
        if tensor.number(TENSOR_CONSTANT) or tensor.number(TENSOR_FLAGS) & EXTERNAL_INPUT
    }
    for number, node in enumerate(delegate_nodes(graph)):
        if not known.issuperset(node.reads):
            raise ValueError(f"node {number}, {node.kind}: it reads a value before that is written")
        if node.gives in known:
            raise ValueError(f"node {number}, {node.kind}: it writes a value that is written already")
        known.add(node.gives)
        if node.kind in _CONVOLUTIONS:
            dims = tensors[node.table.number(_FILTER)].numbers(TENSOR_DIMS)
            if math.prod(dims) != math.prod(map(node.table.number, _FILTER_SIZES)):
                raise ValueError(f"node {number}, {node.kind}: a filter of {dims}")


def _arguments_of(plan: Any, delegate: int) -> Iterator[list[Any]]:
    """Yield the arguments of each call of a delegate."""
    for call in instructions(plan):
        if not kernel_of(plan, call) and call.delegate_index == delegate:
            yield [plan.values[index].val for index in call.args]


def _require_tensors(graph: FlatRecord, arguments: Sequence[Any]) -> None:
    for place in external_ids(graph):
        if type(arguments[place]).__name__ != "Tensor":
            raise ValueError(f"argument {place} is of kind {type(arguments[place]).__name__}")
