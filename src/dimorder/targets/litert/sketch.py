"""Write single calls without data at several points, to see whether LiteRT computes them at all sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from dimorder.errors import UnsupportedError
from dimorder.graph.dynamic_sizes import DynamicCall, DynamicSize
from dimorder.graph.nodes import results
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from dimorder.targets.litert.all_sizes import NotForAllSizesError, merge_graphs, varying_sizes
from dimorder.targets.litert.flatbuffer import TfLiteGraph, TfLiteTensor
from dimorder.targets.litert.integer_writer import LiteRtValue
from dimorder.targets.litert.writer import LiteRtWriter
from dimorder.targets.table import Table, View, whole

_SMALL = 1024  # elements of a constant from which on only its shape counts


class TfLiteSketch(LiteRtWriter):
    """A graph whose large constants are all zeros."""

    def constant(self, data: torch.Tensor | np.ndarray[Any, Any]) -> LiteRtValue:
        shape = tuple(data.shape)
        tensor = torch.as_tensor(data)
        if tensor.numel() < _SMALL:
            return super().constant(data)
        zeros = torch.zeros((), dtype=tensor.dtype).expand(shape).numpy()
        name = self._unique("constant")
        self._tensors[name] = TfLiteTensor(shape, tensor.dtype, zeros)
        return LiteRtValue(name, shape, tensor.dtype)


def unfit_sizes(
    operators: Table, call: Node, constants: Collection[Node], numbers: Mapping[Node, DynamicCall]
) -> str | None:
    """Return why LiteRT does not compute a call at all sizes, or None."""
    if operators.is_relabel(call) or call.target in (QUANTIZE, DEQUANTIZE):
        return None
    read = (numbers[node] for node in (call, *call.all_input_nodes))
    leaves = pytree.tree_leaves([(each.args, each.kwargs, each.shapes) for each in read])
    dynamic = [leaf for leaf in leaves if isinstance(leaf, DynamicSize)]
    if not dynamic:
        return None
    (count,) = {len(size.values) for size in dynamic}
    shapes = pytree.tree_leaves([numbers[node].shapes for node in (call, *call.all_input_nodes)])
    sizes = [size.values if isinstance(size, DynamicSize) else (size,) * count for size in shapes]
    try:
        merge_graphs(
            [
                _graph(operators, call, constants, numbers, point, varying)
                for point, varying in enumerate(varying_sizes(sizes, count))
            ]
        )
    except (NotForAllSizesError, UnsupportedError) as error:  # or a tensor has too many dimensions
        return error.found
    return None


def _graph(
    operators: Table,
    call: Node,
    constants: Collection[Node],
    numbers: Mapping[Node, DynamicCall],
    point: int,
    varying: Collection[int],
) -> TfLiteGraph:
    """Return the graph of one call at a point, given by its index; `varying` are the dynamic sizes there."""
    sketch = TfLiteSketch()
    sketch.varying = varying
    operands: dict[Node, View[LiteRtValue] | torch.Tensor] = {}
    for node in call.all_input_nodes:
        ((shape, *_), (value, *_)) = numbers[node].at(point).shapes, results(node)
        if node in constants:
            operands[node] = torch.zeros((), dtype=value.dtype).expand(shape)
        else:
            operands[node] = whole(sketch.input(node.name, shape, value.dtype))
    made = operators.build(sketch, call, operands.__getitem__, numbers[call].at(point))
    for i, view in enumerate(made if isinstance(made, list) else [made]):
        sketch.output(f"output {i}", view.value)
    return sketch.finish()
