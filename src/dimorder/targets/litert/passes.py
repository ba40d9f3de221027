"""Fuse clamps of a finished LiteRT graph into operators before them; store constants in fewer bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from dimorder.graph.quantized import Integers
from dimorder.targets.litert.flatbuffer import TfLiteNode, TfLiteScales, TfLiteTensor
from dimorder.targets.litert.integers import CLAMPED, CLAMPS, WEIGHTS

LEAST_ELEMENTS = 256  # of a constant, from which on storing it in fewer bytes is worth an operator
_CLAMPED = CLAMPED | {"DIV", "CONV_3D"}  # the operators that XNNPACK computes in floats with a clamp


def fuse_clamps(nodes: Sequence[TfLiteNode], outputs: Collection[str]) -> list[TfLiteNode]:
    """Return nodes in which a clamp that alone reads an operator's result is part of that operator."""
    readers = Counter(name for node in nodes for name in node.inputs if name)
    readers.update(outputs)
    clamps = {
        node.inputs[0]: node for node in nodes if node.kind in CLAMPS and readers[node.inputs[0] or ""] == 1
    }
    kept, left_out = [], set[str]()
    for node in nodes:
        clamp = clamps.get(node.outputs[0]) if node.kind in _CLAMPED else None
        if clamp is not None:
            options = {**node.options, "fusedActivationFunction": CLAMPS[clamp.kind]}
            node = replace(node, outputs=clamp.outputs, options=options)
            left_out.update(clamp.outputs)
            kept.append(node)
        elif not (node.kind in CLAMPS and left_out.issuperset(node.outputs)):
            kept.append(node)
    return kept


def store_in_half(
    tensors: Mapping[str, TfLiteTensor], nodes: Sequence[TfLiteNode]
) -> tuple[dict[str, TfLiteTensor], list[TfLiteNode]]:
    """Store constants as float16 that lose nothing by it. XNNPACK's delegate widens them ahead of time."""
    made, widening = dict(tensors), []
    for name in dict.fromkeys(name for node in nodes for name in node.inputs if name):
        tensor = tensors[name]
        if tensor.data is None or tensor.dtype != torch.float32 or tensor.data.size < LEAST_ELEMENTS:
            continue
        half = tensor.data.astype(np.float16)
        if np.array_equal(half.astype(np.float32), tensor.data):
            made[f"{name}.half"] = TfLiteTensor(tensor.shape, torch.float16, half)
            made[name] = replace(tensor, data=None)
            widening.append(TfLiteNode("DEQUANTIZE", (f"{name}.half",), (name,), {}))
    return made, [*widening, *nodes]


def store_in_bytes(
    tensors: Mapping[str, TfLiteTensor], nodes: Sequence[TfLiteNode], integers: Mapping[str, Integers]
) -> tuple[dict[str, TfLiteTensor], list[TfLiteNode]]:
    """Store weights as the int8 that they are dequantized from. XNNPACK's delegate widens them ahead of time.

    `integers` are those of constants. A constant that anything else reads stays.
    """
    made, dequantizing, is_weight = dict(tensors), list[TfLiteNode](), dict[str, bool]()
    for node in nodes:
        for place, name in enumerate(node.inputs):
            if name is not None:
                reads_weight = node.kind in WEIGHTS and place == WEIGHTS[node.kind].weight
                is_weight[name] = reads_weight and is_weight.get(name, True)
    for name, held in integers.items():
        channels = held.per_channel()
        if channels is None or held.zero_point or held.values.dtype != torch.int8:
            continue
        if is_weight.get(name) and held.values.numel() >= LEAST_ELEMENTS:
            scales = TfLiteScales(tuple(channels[0].tolist()), 0, channels[1])
            stored = TfLiteTensor(tensors[name].shape, torch.int8, held.values.numpy(), scales)
            made[f"{name}.int8"], made[name] = stored, replace(tensors[name], data=None)
            dequantizing.append(TfLiteNode("DEQUANTIZE", (f"{name}.int8",), (name,), {}))
    return made, [*dequantizing, *nodes]
