"""List the XNNPACK nodes that compute in int8, with their conditions.

A node with dequantised operands and a quantised result reads and writes the integers themselves. A linear or
convolution whose operand is quantised dynamically reads integers and writes floats. XNNPACK checks some of
these conditions when it makes a runtime. Under the others its kernels are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from torch import Tensor

from dimorder.graph.quantized import IntegerType

# Takes the types of the operands that are no weights, the type of the result, and the scales of the weights.
# Returns None if the node computes them in int8, else why not.
_Condition: TypeAlias = Callable[[Sequence[IntegerType], IntegerType, "Tensor | None"], "str | None"]


def _any(reads: Sequence[IntegerType], result: IntegerType, weights: Tensor | None) -> str | None:
    return None


def _same(reads: Sequence[IntegerType], result: IntegerType, weights: Tensor | None) -> str | None:
    return None if all(each == result for each in reads) else "operands and a result of different scales"


def _ratio(low: float, high: float) -> _Condition:
    """Require that every ratio of an operand's scale to the result's is in [low, high).

    With weights, the ratio is multiplied by their scales.
    """

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

# By the kind of node. Other kinds compute only in float, or in int8 with other arithmetic than the model's.
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
# Kinds whose int8 kernel does not compute the integers that are quantised next.
IN_FLOAT: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("LeakyReLU", "StaticResizeBilinear2D", "Div", "PReLU", "Log", "SquareRoot", "ReciprocalSquareRoot"),
        "XNNPACK's int8 kernel rounds otherwise than what is quantised next",
    )
)
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
