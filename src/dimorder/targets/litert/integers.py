"""List how LiteRT's operators treat integers: which move them, which have weights, and which clamp.

Integers of a file are int8, or uint8 at its boundary. LiteRT wants weights without zero point, and biases of
int32 whose scale is that of the input times that of the weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dimorder.graph.quantized import Integers, IntegerType, Scaled, in_float32, level_bounds
from dimorder.targets.integer_kernels import (
    integers_of,
    operand_integers,
    unfit_4_bits,
)
from dimorder.targets.litert.flatbuffer import TfLiteScales, TfLiteTensor

# The operators that move or choose elements: their result has the type of their operands, and XNNPACK and
# LiteRT's own kernels ask for that. A PAD adds what stands for 0.
MOVES = frozenset(
    (
        *("RESHAPE", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "PAD", "CONCATENATION"),
        *("GATHER", "REVERSE_V2", "TILE", "REDUCE_MAX"),
    )
)
# The options of an operator that quantizes its operand dynamically, by a scale and a zero point for each row.
BY_ROWS: Mapping[str, Any] = MappingProxyType({"asymmetricQuantizeInputs": True})
CONVERTS = frozenset(("QUANTIZE", "DEQUANTIZE"))


@dataclass(frozen=True)
class WeightOperands:
    """The places of an operator's operands, and the dimension of its weight that has the output channels."""

    data: int = 0
    weight: int = 1
    bias: int = 2
    outputs: int = 0


WEIGHTS: Mapping[str, WeightOperands] = MappingProxyType(
    {
        "CONV_2D": WeightOperands(),
        "DEPTHWISE_CONV_2D": WeightOperands(outputs=3),
        "FULLY_CONNECTED": WeightOperands(),
        "TRANSPOSE_CONV": WeightOperands(data=2, bias=3),
    }
)
# The operators that XNNPACK computes in integers with a clamp.
CLAMPED = frozenset(("ADD", "SUB", "MUL", "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"))
# The bounds of the clamps that an operator may have, by their numbers in the schema.
ACTIVATIONS: Mapping[int, tuple[float, float]] = MappingProxyType(
    {0: (-math.inf, math.inf), 1: (0.0, math.inf), 3: (0.0, 6.0), 2: (-1.0, 1.0)}
)
# The operators that do nothing but such a clamp of floats.
CLAMPS: Mapping[str, int] = MappingProxyType({"RELU": 1, "RELU6": 3, "RELU_N1_TO_1": 2})


def activation(low: float, high: float, of: IntegerType) -> int | None:
    """Return the activation that clamps integers of a type to these bounds, or None.

    Return None for a bound that lies halfway between two integers of the type. Kernels may round such a bound
    to either side.

    >>> of = IntegerType(torch.int8, 0.0625, -128)
    >>> [activation(*bounds, of) for bounds in ((0.0, 99.0), (0.0, 6.0), (0.0, 5.0))]
    [0, 3, None]
    """
    wanted = level_bounds(low, high, of)
    for number, bounds in ACTIVATIONS.items():
        if level_bounds(*bounds, of) == wanted and not any(_is_between(bound, of) for bound in bounds):
            return number
    return None


def _is_between(bound: float, of: IntegerType) -> bool:
    quanta = bound / in_float32(of.scale)
    return math.isfinite(quanta) and abs(quanta - math.floor(quanta) - 0.5) < 1e-3


def scales_of(of: IntegerType) -> TfLiteScales:
    """Return the scale and zero point of a tensor of these integers."""
    return TfLiteScales((in_float32(of.scale),), of.zero_point)


def type_of_tensor(tensor: TfLiteTensor) -> IntegerType | None:
    """Return what the integers of a tensor with one scale stand for, or None if it has none."""
    if tensor.scales is None or len(tensor.scales.scales) != 1:
        return None
    return IntegerType(tensor.dtype, tensor.scales.scales[0], tensor.scales.zero_point)


# -- constants ---------------------------------------------------------------------------------------------


def constant_operands(
    kind: str, operands: Sequence[IntegerType | Tensor | None], of: IntegerType
) -> dict[int, TfLiteTensor]:
    """Return the constants among an operator's operands as its kernel of integers reads them, by place.

    Other operands are the types of integers, and None for sizes and the like. `of` is the result's type.
    """
    found, places = dict[int, TfLiteTensor](), WEIGHTS.get(kind)
    for place, each in enumerate(operands):
        if not isinstance(each, Tensor):
            continue
        if places is not None and place == places.weight:
            assert isinstance(each, Scaled)
            found[place] = weight(each.integers, places.outputs)
        elif places is not None:
            data, scales = operands[places.data], found[places.weight].scales
            assert isinstance(data, IntegerType) and scales is not None and place == places.bias
            found[place] = bias(each, data, scales)
        elif kind == "PADV2":  # by a number, which is quantized as the result is
            found[place] = quantized(each, of)
        else:
            found[place] = operand(each)
    return found


def operand(numbers: Tensor) -> TfLiteTensor:
    """Return a constant as integers with one scale, which its condition has shown to exist."""
    held = operand_integers(numbers, integers_of(numbers))
    assert held is not None and held.type is not None
    return _tensor(held.values, scales_of(held.type))


def constant(quanta: Tensor, of: IntegerType) -> TfLiteTensor:
    """Return integers of a type."""
    return _tensor(quanta.to(of.dtype), scales_of(of))


def quantized(numbers: Tensor, of: IntegerType) -> TfLiteTensor:
    """Return numbers as integers of a type, each rounded and clamped."""
    quanta = (numbers.double() / in_float32(of.scale)).round() + of.zero_point
    return constant(quanta.clamp(of.low, of.high), of)


def weight(integers: Integers, outputs: int) -> TfLiteTensor:
    """Return a weight with a scale for each of its output channels."""
    scales = integers.along(outputs)
    assert scales is not None and integers.values.dtype == torch.int8
    return _tensor(integers.values, TfLiteScales(tuple(scales.tolist()), 0, outputs))


def matrix(integers: Integers) -> TfLiteTensor:
    """Return the weight of an operator that quantizes rows: two integers in a byte if they are of 4 bits.

    XNNPACK reads the scales of groups as bfloat16.
    """
    if unfit_4_bits(integers) is not None:
        return weight(integers, WEIGHTS["FULLY_CONNECTED"].outputs)
    size, scales = integers.group_size(), group_scales(integers)
    group = None if scales.shape[1] == 1 else size
    made = _tensor(integers.values, TfLiteScales(tuple(scales.flatten().tolist()), group=group))
    return replace(made, in_4_bits=True)


def group_scales(integers: Integers) -> Tensor:
    """Return the scales of a matrix as they are stored: of each row, or of each group of it in bfloat16."""
    scales = integers.scales[:, :: integers.group_size()]
    return scales if scales.shape[1] == 1 else scales.to(torch.bfloat16).float()


def scales_by_element(matrix: TfLiteTensor) -> Tensor:
    """Return the scale of each element of a matrix whose rows, or groups of these, have one."""
    assert matrix.scales is not None
    scales = torch.tensor(matrix.scales.scales).reshape(matrix.shape[0], -1)
    return scales.repeat_interleave(matrix.shape[1] // scales.shape[1], 1)


def extended(kernel: Scaled, change: Callable[[Tensor], Tensor]) -> Scaled:
    """Return a kernel (O, H, W, I) with further taps that `change` gives its integers; they are 0."""
    scales = kernel.integers.along(0)
    assert scales is not None
    return Scaled.of(change(kernel.integers.values), scales.reshape(-1, 1, 1, 1))


def bias(numbers: Tensor, data: IntegerType, scales: TfLiteScales) -> TfLiteTensor:
    """Return a bias in the scale of the data times that of each channel's weight."""
    products = torch.tensor(scales.scales, dtype=torch.float32) * in_float32(data.scale)
    integers = integers_of(numbers)
    if integers is None:
        assert not bool(numbers.any())
        values = torch.zeros(numbers.shape, dtype=torch.int32)
    else:
        values = integers.values
        assert torch.allclose(integers.scales, products, rtol=1e-5, atol=0), "a bias of another scale"
    return _tensor(values, TfLiteScales(tuple(products.tolist())))


def _tensor(values: Tensor, scales: TfLiteScales) -> TfLiteTensor:
    array: np.ndarray = values.contiguous().numpy()  # type: ignore[type-arg]
    return TfLiteTensor(tuple(values.shape), values.dtype, array, scales)
