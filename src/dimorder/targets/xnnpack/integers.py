"""Decides which XNNPACK nodes compute in int8, and on which conditions: a node whose operands are dequantised
and whose result is quantised reads and writes the integers themselves. A product whose operand is quantised
dynamically reads integers and writes floats.

The conditions are those that XNNPACK checks when it makes a runtime, or on which its kernels are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from torch import Tensor

from dimorder.graph.integer_type import IntegerType

# What the operands that are no weights stand for, what the result does, and the scales of the weights: None
# where the node computes that in int8, else why not.
_Condition: TypeAlias = Callable[[Sequence[IntegerType], IntegerType, "Tensor | None"], "str | None"]


def _any(reads: Sequence[IntegerType], result: IntegerType, weights: Tensor | None) -> str | None:
    return None


def _same(reads: Sequence[IntegerType], result: IntegerType, weights: Tensor | None) -> str | None:
    return None if all(each == result for each in reads) else "operands and a result of different scales"


def _ratio(low: float, high: float) -> _Condition:
    """Every operand's scale, or with weights the product with theirs, over the result's is in [low, high)."""

    def condition(reads: Sequence[IntegerType], result: IntegerType, weights: Tensor | None) -> str | None:
        for read in reads:
            ratio = read.scale / result.scale
            found = [ratio] if weights is None else [float(w) * ratio for w in (weights.min(), weights.max())]
            if not all(low <= each < high for each in found):
                return f"a ratio of scales of {found[0]:g}, outside of {low:g} to {high:g}"
        return None

    return condition


def _matrices(reads: Sequence[IntegerType], result: IntegerType, weights: Tensor | None) -> str | None:
    if reads[1].zero_point:
        return f"a right matrix with the zero point {reads[1].zero_point}"
    return _product(reads, result, weights)


def _product(reads: Sequence[IntegerType], result: IntegerType, weights: Tensor | None) -> str | None:
    ratio = reads[0].scale * reads[1].scale / result.scale
    return None if 2**-16 <= ratio < 2**8 else f"a ratio of scales of {ratio:g}, outside of 2^-16 to 2^8"


_LINEAR = _ratio(2**-32, 256)
_UNARY = (
    "Sigmoid",
    "Tanh",
    "Hardswish",
    "Gelu",
    "ELU",
    "Exp",
    "Abs",
    "Negate",
    "Floor",
    "Ceiling",
    "Square",
    "Sin",
    "Cos",
)

# By the kind of node. Other kinds compute in float alone, or in int8 by other arithmetic than the model's.
IN_INT8: Mapping[str, _Condition] = MappingProxyType(
    {
        **dict.fromkeys(("Conv2d", "DepthwiseConv2d", "ConvTranspose2d", "FullyConnected"), _LINEAR),
        **dict.fromkeys(("Add", "Subtract"), _ratio(2**-10, 2**8)),
        "Multiply": _product,
        "BatchMatrixMultiply": _matrices,
        **dict.fromkeys(("Maximum", "Minimum"), _any),
        "GlobalAvgPooling2d": _ratio(2**-8, 2**8),
        **dict.fromkeys((*_UNARY, "Clamp"), _any),
        **dict.fromkeys(("MaxPooling2d", "StaticConstantPad"), _same),
    }
)
# Kinds whose int8 kernel does not give what is quantised next.
IN_FLOAT: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("LeakyReLU", "StaticResizeBilinear2D", "Div", "PReLU", "Log", "SquareRoot", "ReciprocalSquareRoot"),
        "XNNPACK's int8 kernel rounds otherwise than what is quantised next",
    )
)
# Kinds that quantise dynamically, and how many dimensions of what they read share a scale: the features of a
# row, or a whole image.
DYNAMIC: Mapping[str, int] = MappingProxyType({"FullyConnected": 1, "Conv2d": 3, "ConvTranspose2d": 3})
WEIGHTS = ("filter_id", "bias_id")  # the fields of a node that name its weights
OPERANDS = ("input_id", *(f"input{i}_id" for i in range(1, 6)))  # those that name what else it reads
READS = (*OPERANDS, *WEIGHTS)
# Kinds that move elements and have the type of what they read.
MOVES = frozenset(
    (
        *("StaticTranspose", "StaticReshape", "StaticSlice", "Copy"),
        *(f"Concatenate{i}" for i in range(2, 6)),
    )
)
# Kinds that give one of the elements that they read, and so do of integers of one scale as they are.
CHOOSES = frozenset(("Maximum", "Minimum"))
