"""Read a `.tflite`: the contract in it, and its operators. Needs ai-edge-litert."""

from __future__ import annotations

from collections import Counter
from functools import cache

from dimorder.contract import Contract
from dimorder.contract_file import CONTRACT_METHOD, is_intact


def read_contract(data: bytes) -> Contract:
    """Return the contract in a file. Raises `ValueError` for one that is damaged, or has none."""
    if data[4:8] != b"TFL3":
        raise ValueError(f"{len(data)} bytes that do not begin as a .tflite does (TFL3 at byte 4)")
    intact = is_intact(data)
    if intact is None:
        raise ValueError("no contract: it is damaged, or another tool wrote it")
    if not intact:
        raise ValueError("bytes other than those that were written (their SHA-256 differs)")
    from ai_edge_litert.schema_py_generated import Model

    model = Model.GetRootAs(data)
    for entry in map(model.Metadata, range(model.MetadataLength())):
        if entry.Name() == CONTRACT_METHOD.encode():
            return Contract.from_json(model.Buffers(entry.Buffer()).DataAsNumpy().tobytes().decode())
    raise ValueError("no contract: it is damaged, or another tool wrote it")


def operators(data: bytes) -> Counter[str]:
    """Return how many operators of each kind the first subgraph of a file has."""
    from ai_edge_litert.schema_py_generated import Model

    model = Model.GetRootAs(data)
    graph = model.Subgraphs(0)
    codes = (graph.Operators(i).OpcodeIndex() for i in range(graph.OperatorsLength()))
    return Counter(_names()[model.OperatorCodes(code).BuiltinCode()] for code in codes)


@cache
def _names() -> dict[int, str]:
    from ai_edge_litert.schema_py_generated import BuiltinOperator

    return {number: name for name, number in vars(BuiltinOperator).items() if isinstance(number, int)}
