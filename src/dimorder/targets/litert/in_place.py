"""Keep LiteRT's own kernels from overwriting a value that is still to be read.

LiteRT 2.3.0 (`arena_planner.cc`) lets a RESHAPE share the memory of its operand, and arithmetic write its
result over an operand. It does so if that operand has one reader, and so has the first tensor in that memory.
It ignores the readers of the other tensors that share the memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from dimorder.graph.dynamic_sizes import is_fixed
from dimorder.targets.litert.flatbuffer import TfLiteNode, TfLiteTensor

# The operands that a result may be written over; only a RESHAPE leaves the memory as it is.
_SHARED: Mapping[str, int] = {"ADD": 2, "SUB": 2, "MUL": 2, "DIV": 2, "SOFTMAX": 1, "RESHAPE": 1}
_SCALAR_BYTES = 4  # what has no more is not shared


def copy_before_overwriting(
    tensors: Mapping[str, TfLiteTensor],
    nodes: Sequence[TfLiteNode],
    inputs: Collection[str],
    outputs: Collection[str],
) -> tuple[dict[str, TfLiteTensor], list[TfLiteNode]]:
    """Return a graph in which an operand is copied if LiteRT would overwrite it, or what shares its memory.

    A copy is a MAXIMUM of a tensor and itself: XNNPACK's delegate has it too, and no kernel limits its rank.
    """
    known, written = dict(tensors), list[TfLiteNode]()
    readers = Counter(name for node in nodes for name in node.inputs if name)
    readers.update([*inputs, *outputs])
    last_read = {name: place for place, node in enumerate(nodes) for name in node.inputs if name}
    first = dict[str, str]()  # by tensor: the first one in its memory
    sharing: dict[str, list[str]] = defaultdict(list)  # by first tensor: the others in its memory
    for place, node in enumerate(nodes):
        operand = _shared_operand(node, tensors, readers, inputs, outputs)
        memory = None if operand is None else first.get(operand, operand)
        if operand is None or memory is None or (node.kind != "RESHAPE" and readers[memory] > 1):
            written.append(node)
            continue
        to_be_read = (name for name in sharing[memory] if name != operand and last_read.get(name, -1) > place)
        if node.kind != "RESHAPE" and any(to_be_read):
            memory = f"{operand}.copy"
            known[memory] = tensors[operand]
            written.append(TfLiteNode("MAXIMUM", (operand, operand), (memory,), {}))
            node = replace(node, inputs=tuple(memory if name == operand else name for name in node.inputs))
        first[node.outputs[0]] = memory
        sharing[memory].append(node.outputs[0])
        written.append(node)
    return known, written


def _shared_operand(
    node: TfLiteNode,
    tensors: Mapping[str, TfLiteTensor],
    readers: Mapping[str, int],
    inputs: Collection[str],
    outputs: Collection[str],
) -> str | None:
    """Return the operand whose memory LiteRT tries to give to the result."""
    operands = node.inputs[: _SHARED.get(node.kind, 0)]
    if not operands or node.outputs[0] in outputs:
        return None
    result = node.outputs[0]
    for name in operands:
        if name is None or name in inputs or tensors[name].data is not None:
            continue
        if node.kind == "RESHAPE" or (readers[name] == 1 and _may_share(tensors[name], tensors[result])):
            return name
    return None


def _may_share(operand: TfLiteTensor, result: TfLiteTensor) -> bool:
    """Return whether a result has as many bytes as an operand; if a size is dynamic, at some sizes."""
    if not is_fixed((*operand.shape, *result.shape)):
        return True
    own, other = (prod(tensor.shape) * tensor.dtype.itemsize for tensor in (operand, result))
    return own == other and own > _SCALAR_BYTES
