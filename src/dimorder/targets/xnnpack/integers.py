"""List which XNNPACK nodes move integers, choose among them, pack weights, or quantise dynamically."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Kinds that quantise dynamically, and how many dimensions of their operand share a scale: the channels of a
# row, or a whole image.
DYNAMIC: Mapping[str, int] = MappingProxyType({"FullyConnected": 1, "Conv2d": 3, "ConvTranspose2d": 3})
WEIGHTS = ("filter_id", "bias_id")  # the fields of a node that name its weights
OPERANDS = ("input_id", *(f"input{i}_id" for i in range(1, 6)))  # the fields that name its other operands
READS = (*OPERANDS, *WEIGHTS)
# The kinds whose weights XNNPACK copies into its own order when it makes the runtime.
PACKING = frozenset(("FullyConnected", "Conv2d", "DepthwiseConv2d", "ConvTranspose2d"))
# Kinds that move elements and have the type of their operand.
MOVES = frozenset(
    (
        *("StaticTranspose", "StaticReshape", "StaticSlice", "Copy"),
        *(f"Concatenate{i}" for i in range(2, 6)),
    )
)
# Kinds that return one of their elements. They do so for integers of one scale as well.
CHOOSES = frozenset(("Maximum", "Minimum"))
