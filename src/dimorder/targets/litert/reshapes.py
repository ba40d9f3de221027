"""Remove RESHAPEs after linears if a RESHAPE before them can have the same effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from dimorder.targets.litert.flatbuffer import TfLiteNode, TfLiteTensor

# Operators whose result has the rows of their first operand, if the others are constant and of one row.
_ROW_BY_ROW = frozenset(
    ("FULLY_CONNECTED", "ADD", "SUB", "MUL", "DIV", "GELU", "LOGISTIC", "TANH", "RELU", "RELU6", "HARD_SWISH")
)
_WHOLE_WEIGHTS = "FULLY_CONNECTED"  # its constants have other shapes than a row


def merge_reshapes(
    tensors: Mapping[str, TfLiteTensor], nodes: Sequence[TfLiteNode], outputs: Collection[str]
) -> tuple[dict[str, TfLiteTensor], list[TfLiteNode]]:
    """Return a graph in which RESHAPE, operators on rows, RESHAPE are one RESHAPE and these operators.

    So it is where nothing else reads what lies between, and the last RESHAPE keeps the last dimension.
    """
    known, kept = dict(tensors), list[TfLiteNode | None](nodes)
    readers = Counter(name for node in nodes for name in node.inputs if name)
    readers.update(outputs)
    places = {name: place for place, node in enumerate(nodes) for name in node.outputs}
    for place, last in enumerate(nodes):
        chain = _chain_before(known, kept, places, readers, last) if last.kind == "RESHAPE" else []
        if not chain:
            continue
        result = last.outputs[0]
        rows = known[result].shape[:-1]
        for at in chain:
            node = kept[at]
            assert node is not None
            name = node.outputs[0]
            known[name] = replace(known[name], shape=(*rows, known[name].shape[-1]))
            if node.kind == "RESHAPE":
                shape = known[name].shape
                known[f"{name}.shape"] = TfLiteTensor((len(shape),), torch.int32, np.array(shape, np.int32))
                inputs = (node.inputs[0], f"{name}.shape")
                kept[at] = replace(node, inputs=inputs, options={"newShape": list(shape)})
        node = kept[chain[0]]
        assert node is not None
        kept[chain[0]] = replace(node, outputs=(result,))
        kept[place], places[result] = None, chain[0]
    return known, [node for node in kept if node is not None]


def _chain_before(
    tensors: Mapping[str, TfLiteTensor],
    nodes: Sequence[TfLiteNode | None],
    places: Mapping[str, int],
    readers: Mapping[str, int],
    last: TfLiteNode,
) -> list[int]:
    """Return the places of the operators before a RESHAPE, the nearest first, up to another RESHAPE."""
    name, chain = last.inputs[0], list[int]()
    if name is None or tensors[name].shape[-1:] != tensors[last.outputs[0]].shape[-1:]:
        return []
    while name is not None and name in places and readers[name] == 1:
        node = nodes[places[name]]
        assert node is not None, "a RESHAPE that is gone writes nothing"
        chain.append(places[name])
        if node.kind == "RESHAPE":
            return chain if len(chain) > 1 else []
        if node.kind not in _ROW_BY_ROW or not _is_row_by_row(tensors, node):
            return []
        name = node.inputs[0]
    return []


def _is_row_by_row(tensors: Mapping[str, TfLiteTensor], node: TfLiteNode) -> bool:
    row = tensors[node.outputs[0]].shape[-1:]
    for name in node.inputs[1:]:
        data = None if name is None else tensors[name].data
        if data is None or (node.kind != _WHOLE_WEIGHTS and data.ndim > 1):
            return False
    return bool(row)
