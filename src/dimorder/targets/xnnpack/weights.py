"""Write the integers of constants as XNNPACK's integer nodes read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema

from dimorder.graph.quantized import Integers
from dimorder.targets.integer_kernels import operand_integers
from dimorder.targets.xnnpack.graph import XnnBytes, XnnConstant, XnnGraph, XnnScales, XnnValue


class XnnWeights:
    """The integers of constants that were added to a graph, each once; `stored` returns their bytes."""

    def __init__(self, graph: XnnGraph, stored: Callable[[torch.Tensor], XnnBytes]) -> None:
        self.graph, self.stored = graph, stored
        self.known: dict[tuple[int, Any], int] = {}  # by constant of floats, and type of its integers

    def in_8_bits(self, index: int, outputs: int) -> int:
        """Return the value of a constant's integers, with a scale for each of its output channels."""
        integers, datatype = self._integers(index), schema.XNNDatatype
        wide = integers.values.dtype == torch.int32
        kind = datatype.xnn_datatype_qcint32 if wide else datatype.xnn_datatype_qcint8
        if (index, kind) not in self.known:
            scales = integers.along(outputs)
            assert scales is not None
            stored = XnnScales(scales, self.stored(scales), scales.numel(), outputs)
            self._add(index, kind, integers.values, stored)
        return self.known[index, kind]

    def in_4_bits(self, index: int) -> int:
        """Return the value of a matrix of integers from -8 to 7, two in a byte, with its scales.

        A scale belongs to an output, or to a group of inputs. XNNPACK holds the scales of groups as bfloat16.
        """
        integers, datatype = self._integers(index), schema.XNNDatatype
        size, scales = integers.group_size(), integers.scales
        assert size is not None
        group = None if size == scales.shape[1] else size
        kind = datatype.xnn_datatype_qcint4 if group is None else datatype.xnn_datatype_qbint4
        if (index, kind) not in self.known:
            rows = scales[:, ::size]
            if group is not None:
                rows = rows.to(torch.bfloat16)
                scales = rows.float().repeat_interleave(size, 1)
            stored = XnnScales(scales, self.stored(rows), rows.numel(), group=group)
            self._add(index, kind, _in_pairs(integers.values), stored)
        return self.known[index, kind]

    def operand(self, value: XnnValue) -> XnnValue:
        """Return integers as they are, and those with one scale of a constant."""
        if value.integer_type is not None:
            return value
        assert value.constant is not None
        if (value.id, "operand") not in self.known:
            integers = operand_integers(value.constant.data, value.integers)
            assert integers is not None and integers.type is not None
            data = integers.values.reshape(value.constant.data.shape)
            constant = XnnConstant(data, self.stored(data))
            added = self.graph.add(value.shape, integers.type, origin=value.origin, constant=constant)
            self.known[value.id, "operand"] = added.id
        return self.graph.values[self.known[value.id, "operand"]]

    def _integers(self, index: int) -> Integers:
        integers = self.graph.values[index].integers
        assert integers is not None
        return integers

    def _add(self, index: int, datatype: Any, stored: torch.Tensor, scales: XnnScales) -> None:
        source = self.graph.values[index]
        constant = XnnConstant(self._integers(index).values, self.stored(stored), scales=scales)
        value = self.graph.add(source.shape, constant=constant)
        value.datatype = datatype
        self.known[index, datatype] = value.id


def _in_pairs(values: torch.Tensor) -> torch.Tensor:
    """Return integers from -8 to 7, two in a byte: each plus 8, the first of a pair in the lower half."""
    even = torch.nn.functional.pad(values, (0, values.shape[-1] % 2)).to(torch.int16) + 8
    return (even[..., ::2] | even[..., 1::2] << 4).to(torch.uint8)
