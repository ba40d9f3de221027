"""Write operators into a physical program: dense tensors whose dimensions consist of buffer axes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dimorder.graph.nodes import add_meta, add_origin, origin_of
from dimorder.graph.quantized import DEQUANTIZE_CHANNELS, Scaled, are_equal
from dimorder.ops.problem_map import BufferInfo, common_runs, transposes
from dimorder.ops.relation import AxisOrder

aten = torch.ops.aten

# Buffer axes that form one physical dimension, slowest first; () is a dimension of size 1.
AxisGroup = tuple[int, ...]


@dataclass(frozen=True)
class Physical:
    """A dense tensor of the graph under construction.

    `runs` are the axes of each dimension, or None if the dimensions cut across axes.
    """

    node: torch.fx.Node
    order: AxisOrder
    runs: tuple[AxisGroup, ...] | None


class Builder:
    """The graph under construction, the orders in which each buffer is in memory, and the constants."""

    writes = True  # whether the program is built, and not only calls to ask a target about

    def __init__(
        self,
        value_of: Callable[[torch.fx.Node], torch.Tensor],
        buffers: Sequence[BufferInfo],
        max_rank: int | None = None,
    ) -> None:
        # `value_of` returns the constant that a node of the captured program reads. `max_rank` is the highest
        # rank of a transpose.
        self.value_of, self.buffers, self.max_rank = value_of, buffers, max_rank
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.memory: dict[tuple[int, AxisOrder], Physical] = {}
        self.produced: dict[int, AxisOrder] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.source: dict[str, Any] = {}  # meta of the operator being lowered: where it comes from

    def extent(self, buffer: int, axes: Iterable[int]) -> int:
        return math.prod(self.buffers[buffer].tensor.sizes[axis] for axis in axes)

    def store(
        self, buffer: int, order: AxisOrder, node: torch.fx.Node, runs: tuple[AxisGroup, ...] | None
    ) -> None:
        assert runs is None or tuple(axis for run in runs for axis in run) == order
        self.memory[buffer, order] = Physical(node, order, runs)
        self.produced[buffer] = order
        if "buffer" not in origin_of(node):
            add_origin(node, buffer=buffer, order=list(order))

    def fetch(self, buffer: int, order: AxisOrder) -> Physical:
        """Return the buffer in an order: as it was produced, or converted once and kept."""
        if (buffer, order) not in self.memory:
            self.memory[buffer, order] = self.convert(
                buffer, self.memory[buffer, self.produced[buffer]], order
            )
        return self.memory[buffer, order]

    def convert(self, buffer: int, source: Physical, order: AxisOrder) -> Physical:
        """Convert a buffer by explicit permutes between dense tensors: one, or those that the rank allows."""
        steps = transposes(source.order, order, self.max_rank)
        assert steps is not None, "a conversion that is not offered"
        for step in steps:
            source = self._transposed(buffer, source, step)
        add_origin(source.node, buffer=buffer, order=list(order))
        return source

    def _transposed(self, buffer: int, source: Physical, order: AxisOrder) -> Physical:
        """Write one permute. Physical dimensions of `source` stay whole if the permute allows it."""
        position = {axis: i for i, axis in enumerate(order)}
        runs = source.runs
        pairs = [pair for run in runs or () for pair in itertools.pairwise(run)]
        most = self.max_rank or math.inf
        if runs is None or len(runs) > most or any(position[b] != position[a] + 1 for a, b in pairs):
            dynamic = self.buffers[buffer].dynamic_axes
            runs = common_runs(source.order, order, dynamic if len(dynamic) > 1 else ())
        shaped = self.shaped(buffer, source, runs)
        slots = iter(sorted((i for i, run in enumerate(runs) if run), key=lambda i: position[runs[i][0]]))
        dims = [next(slots) if run else i for i, run in enumerate(runs)]
        permuted = self.call(aten.permute.default, shaped, dims)
        dense = self.dense(permuted)
        add_origin(permuted, converts=True)
        add_origin(dense, converts=True)
        return Physical(dense, order, tuple(runs[d] for d in dims))

    def shaped(self, buffer: int, tensor: Physical, runs: Sequence[AxisGroup]) -> torch.fx.Node:
        """View a tensor with other physical dimensions, or return it if its shape is already right."""
        shape = [self.extent(buffer, run) for run in runs]
        if tensor.runs is not None and [self.extent(buffer, run) for run in tensor.runs] == shape:
            return tensor.node
        return self.call(aten.view.default, tensor.node, shape)

    def constant(self, name: str, tensor: torch.Tensor) -> torch.fx.Node:
        """Store a constant and return its node; equal constants of one name are stored once.

        A `Scaled` is stored as integers that are dequantized, if its scales differ along one dimension at
        most. Otherwise it is stored as floats.
        """
        channels = tensor.integers.per_channel() if isinstance(tensor, Scaled) else None
        if isinstance(tensor, Scaled) and channels is not None:
            values, zero_point, (scales, dim) = tensor.integers.values, tensor.integers.zero_point, channels
            limits, scales = torch.iinfo(values.dtype), scales.expand(values.shape[dim])
            parts = [self.constant(f"{name}_integers", values), self.constant(f"{name}_scales", scales), None]
            if zero_point:
                parts[2] = self.constant(f"{name}_zero", torch.full(scales.shape, zero_point))
            return self.call(DEQUANTIZE_CHANNELS, *parts, dim, limits.min, limits.max, values.dtype)
        versions = [n for n in self.constants if n == name or n.startswith(f"{name}__")]
        unique = next(
            (n for n in versions if are_equal(self.constants[n], tensor)), f"{name}__{len(versions)}"
        )
        if unique not in self.constants:
            self.constants[unique] = tensor.contiguous()
            self.root.register_buffer(unique, self.constants[unique])
        return self.graph.get_attr(unique)

    def slice(self, x: torch.fx.Node, dim: int, begin: int, end: int, step: int = 1) -> torch.fx.Node:
        """Slice one physical dimension into a dense tensor: ATen's slice is a view."""
        return self.dense(self.call(aten.slice.Tensor, x, dim, begin, end, step))

    def dense(self, x: torch.fx.Node) -> torch.fx.Node:
        return self.call(aten.clone.default, x, memory_format=torch.contiguous_format)

    def combine(self, target: Any, parts: Iterable[torch.fx.Node]) -> torch.fx.Node:
        """Combine parts by an operator of two operands, from left to right."""
        return functools.reduce(lambda total, part: self.call(target, total, part), parts)

    def cat(self, parts: Sequence[torch.fx.Node], dim: int) -> torch.fx.Node:
        """Concatenate parts along one physical dimension; a single part is returned as it is."""
        return parts[0] if len(parts) == 1 else self.call(aten.cat.default, parts, dim)

    def every(
        self, x: torch.fx.Node, sizes: Sequence[int], dim: int, begin: int, count: int, step: int
    ) -> torch.fx.Node:
        """Return every `step`-th element of a dimension of a dense tensor, `count` of them from `begin` on.

        The dimension is viewed as rows of `step` elements, of which each first one stays. Padding completes
        the last row. `sizes` is the physical shape of `x`.
        """
        end = begin + count * step
        x = self.slice(x, dim, begin, min(end, sizes[dim]))
        if step == 1:
            return x
        if end > sizes[dim]:
            pads = [0, 0] * (len(sizes) - 1 - dim) + [0, end - sizes[dim]]
            x = self.call(aten.constant_pad_nd.default, x, pads, 0)
        rows = [math.prod(sizes[:dim]) * count, step, math.prod(sizes[dim + 1 :])]
        x = self.slice(self.call(aten.view.default, x, rows), 1, 0, 1)
        return self.call(aten.view.default, x, [*sizes[:dim], count, *sizes[dim + 1 :]])

    def call(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        name = target.__name__.partition(".")[0]  # without the overload, as torch.export names calls
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        return add_meta(node, self.source)
