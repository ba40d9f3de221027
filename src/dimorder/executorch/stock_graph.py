"""Lower a network in ExecuTorch's own way, and read the file as a graph with its source lines."""

from __future__ import annotations

import tempfile
from pathlib import Path

from torch.export import ExportedProgram
from torch.fx import Node

from dimorder.errors import UnsupportedError, summary
from dimorder.executorch.file_graph import EdgeOperator, FileNode, graph_of_file
from dimorder.graph.nodes import tensors_in, where


def stock_graph(program: ExportedProgram) -> list[FileNode]:
    """Return the operators of the .pte that ExecuTorch's own lowering to XNNPACK makes of a program.

    Args:
        program: an exported program.

    Returns:
        The nodes, with the lines that they come from. A conversion without a line was inserted.

    Raises:
        UnsupportedError: if ExecuTorch cannot lower the program.

    >>> import torch
    >>> conv = torch.export.export(torch.nn.Conv2d(3, 8, 3), (torch.ones(1, 3, 9, 11),))
    >>> [(node.operator, node.converted_bytes) for node in stock_graph(conv)][1:-1]
    [('StaticTranspose', 1188), ('Conv2d', None), ('StaticTranspose', 2016)]
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    try:
        edge = to_edge_transform_and_lower(
            program, partitioner=[XnnpackPartitioner()], generate_etrecord=True
        )
        lowered = edge.to_executorch()
    except Exception as error:  # it has no class of its own for what it does not support
        raise UnsupportedError("ExecuTorch's own lowering", summary(error), "use dimorder's alone") from error
    record = lowered.get_etrecord()
    operators = {
        node.meta.get("debug_handle"): EdgeOperator(where(node), _shape(node))
        for node in record.edge_dialect_program.graph.nodes
        if node.op == "call_function"
    }
    handles = lowered.debug_handle_map["forward"]

    def operator_of(instruction: int, handle: int | None) -> EdgeOperator:
        return operators.get(handles.get(instruction) if handle is None else handle, EdgeOperator())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stock.pte"
        path.write_bytes(lowered.buffer)
        return graph_of_file(str(path), operator_of)


def _shape(node: Node) -> tuple[int, ...]:
    """Return the shape of an operator's first result."""
    return next((tuple(map(int, each.shape)) for each in tensors_in(node.meta["val"])), ())
