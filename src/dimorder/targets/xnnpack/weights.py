"""Turn constants into the weights of XNNPACK's integer nodes, where XNNPACK can compute with them."""

from __future__ import annotations

import math
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema

from dimorder.graph.quantized import Integers, IntegerType
from dimorder.targets.xnnpack.graph import XnnBytes, XnnConstant, XnnGraph, XnnScales, XnnValue


def integers_of(value: XnnValue) -> XnnValue | Integers | None:
    """Return the int8 value that a float32 one is converted from, or the integers of a constant."""
    if value.dequantized is not None:
        return value.dequantized
    integers = value.integers
    if integers is None and value.constant is not None:
        integers = _uniform(value.constant.data)
    fits = integers is not None and integers.values.dtype == torch.int8 and integers.scale is not None
    return integers if fits else None


def type_of(integers: XnnValue | Integers) -> IntegerType:
    """Return what integers stand for."""
    if isinstance(integers, XnnValue):
        assert integers.integer_type is not None
        return integers.integer_type
    assert integers.scale is not None
    return IntegerType(integers.values.dtype, integers.scale, integers.zero_point)


def add_integers(graph: XnnGraph, integers: XnnValue | Integers) -> XnnValue:
    """Return the value of integers with one scale; those of a constant are added."""
    if isinstance(integers, XnnValue):
        return integers
    constant = XnnConstant(integers.values, XnnBytes.of(integers.values))
    return graph.add(integers.values.shape, type_of(integers), constant=constant)


def unfit_weight(value: XnnValue, outputs: int) -> str | None:
    """Return why a constant cannot be the weight or the bias of an int8 node.

    `outputs` is the dimension of its output channels.
    """
    integers = value.integers
    if integers is None:
        return "a weight that is not int8 with one scale per output channel and one zero point"
    if integers.zero_point:
        return f"a weight with the zero point {integers.zero_point}"
    if integers.along(outputs) is None:
        groups = None if integers.group_size() in (None, 1) else unfit_4_bits(value)
        return groups or "a weight with scales along another dimension than its output channels"
    return None


def unfit_4_bits(value: XnnValue) -> str | None:
    """Return why a constant cannot be a matrix of 4-bit integers."""
    integers = value.integers
    size = None if integers is None else integers.group_size()
    if integers is None or size is None or integers.zero_point:
        return "a weight that is not quantised by rows"
    if size % 32 and size != integers.values.shape[1]:
        return f"a weight with a scale for every {size} inputs, where XNNPACK takes multiples of 32"
    if integers.values.shape[1] % 2:
        return "an odd number of inputs, of which XNNPACK's products with 4 bits are off by 3e-3"
    least, most = torch.aminmax(integers.values)
    if least < -8 or most > 7:
        return f"a weight of 8 bits with a scale for every {size} inputs, which XNNPACK has for 4 bits"
    return None


class XnnWeights:
    """The integer weights that a pass has added to a graph, each once."""

    def __init__(self, graph: XnnGraph) -> None:
        self.graph = graph
        self.weights: dict[int, int] = {}  # by constant of floats

    def in_8_bits(self, index: int, outputs: int) -> int:
        """Return the value of a constant's integers, with a scale for each of its output channels."""
        if index not in self.weights:
            integers = self._integers(index)
            scales = integers.along(outputs)
            assert scales is not None
            wide = integers.values.dtype == torch.int32
            datatype = schema.XNNDatatype
            kind = datatype.xnn_datatype_qcint32 if wide else datatype.xnn_datatype_qcint8
            stored = XnnScales(scales, XnnBytes.of(scales), scales.numel(), outputs)
            self._add(index, kind, integers.values, stored)
        return self.weights[index]

    def in_4_bits(self, index: int) -> int:
        """Return the value of a matrix of integers from -8 to 7, two in a byte, with its scales.

        A scale belongs to an output, or to a group of inputs. XNNPACK holds the scales of groups as bfloat16.
        """
        if index not in self.weights:
            integers, datatype = self._integers(index), schema.XNNDatatype
            size, scales = integers.group_size(), integers.scales
            assert size is not None
            rows = scales[:, ::size]
            if size == scales.shape[1]:
                kind, stored = (
                    datatype.xnn_datatype_qcint4,
                    XnnScales(scales, XnnBytes.of(rows), rows.numel()),
                )
            else:
                rows = rows.to(torch.bfloat16)
                scales = rows.float().repeat_interleave(size, 1)
                kind = datatype.xnn_datatype_qbint4
                stored = XnnScales(scales, XnnBytes.of(rows), rows.numel(), group=size)
            self._add(index, kind, _in_pairs(integers.values), stored)
        return self.weights[index]

    def _integers(self, index: int) -> Integers:
        integers = self.graph.values[index].integers
        assert integers is not None
        return integers

    def _add(self, index: int, datatype: Any, stored: torch.Tensor, scales: XnnScales) -> None:
        source = self.graph.values[index]
        constant = XnnConstant(self._integers(index).values, XnnBytes.of(stored), scales=scales)
        value = self.graph.add(source.shape, constant=constant)
        value.datatype = datatype
        self.weights[index] = value.id


def _in_pairs(values: torch.Tensor) -> torch.Tensor:
    """Return integers from -8 to 7, two in a byte: each plus 8, the first of a pair in the lower half."""
    even = torch.nn.functional.pad(values, (0, values.shape[-1] % 2)).to(torch.int16) + 8
    return (even[..., ::2] | even[..., 1::2] << 4).to(torch.uint8)


def _uniform(constant: torch.Tensor) -> Integers | None:
    """Return a constant whose elements are all one number or its negative, as exact integers."""
    magnitude = float(constant.abs().max())
    if not 0 < magnitude < math.inf or not bool((constant.abs() == magnitude).all()):
        return None
    values = (constant.sign() * _UNIT).to(torch.int8)
    return Integers(values, torch.tensor(magnitude / _UNIT).expand(values.shape))


_UNIT = 64  # a power of 2, so that a scale times it is exact; large, so that sums of it have fine multipliers
