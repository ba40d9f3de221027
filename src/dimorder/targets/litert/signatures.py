"""Join several graphs into one `.tflite`, as its signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dimorder.contract import Contract
from dimorder.contract_file import SEAL_METHOD, constant_methods, seal
from dimorder.targets.litert.file import contract_entry
from dimorder.targets.litert.flatbuffer import TfLiteGraph, TfLiteNode, serialize


def join_graphs(graphs: Mapping[str, TfLiteGraph], contracts: Sequence[Contract], share_state: bool) -> bytes:
    """Return a sealed file with a signature for each graph.

    Equal constants are stored once. Variables of equal names are one variable if the state is shared.
    """
    entries = {
        contract_entry(place, name): contract.to_json().encode()
        for place, (name, contract) in enumerate(zip(graphs, contracts, strict=True))
    }
    entries[SEAL_METHOD] = constant_methods(contracts[0])[SEAL_METHOD].encode()
    if not share_state:
        graphs = {name: _with_own_variables(graph, name) for name, graph in graphs.items()}
    return seal(serialize(graphs, entries))


def _with_own_variables(graph: TfLiteGraph, prefix: str) -> TfLiteGraph:
    def own(node: TfLiteNode) -> TfLiteNode:
        if node.kind != "VAR_HANDLE":
            return node
        return replace(node, options={"sharedName": f"{prefix}/{node.options['sharedName']}"})

    first = None if graph.first is None else _with_own_variables(graph.first, prefix)
    return replace(graph, nodes=[own(node) for node in graph.nodes], first=first)
