"""Map a layout problem to the program: buffers, views of them, and one site per operator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch

from dimorder.graph.nodes import dynamic_dims
from dimorder.ops.operator import Implementation
from dimorder.ops.relation import AxedTensor, AxisOrder, Relation, Token


@dataclass(frozen=True)
class BufferInfo:
    """A value with all its relabelled views; the axes are those of `root`, the value that is produced."""

    index: int
    root: torch.fx.Node
    tensor: AxedTensor
    value: torch.Tensor  # shape and type, without data

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.value.shape)

    @cached_property
    def dynamic_axes(self) -> tuple[int, ...]:
        """The first axis of each dimension with a dynamic size."""
        dims = self.tensor.dims
        return tuple(dims.index(dim) for dim in dynamic_dims(self.root) if dim in dims)

    def logical(self, value: torch.Tensor, order: Sequence[int], shape: Sequence[int]) -> torch.Tensor | None:
        """Return the value in its logical shape, from a dense tensor with its axes in an order.

        The shape may have other dynamic sizes than the buffer. None if it is no shape of the buffer at all.
        """
        dynamic, pairs = dynamic_dims(self.root), itertools.zip_longest(self.shape, shape)
        if any(own != size for dim, (own, size) in enumerate(pairs) if dim not in dynamic):
            return None
        sizes = list(self.tensor.sizes)
        for axis in self.dynamic_axes:
            dim = self.tensor.dims[axis]
            others = (s for a, s in enumerate(sizes) if a != axis and self.tensor.dims[a] == dim)
            sizes[axis] = shape[dim] // math.prod(others)
        axes = value.reshape([sizes[axis] for axis in order])
        return axes.permute([order.index(axis) for axis in range(len(order))]).reshape(tuple(shape))

    @property
    def nbytes(self) -> int:
        return int(self.value.numel()) * self.value.element_size()


@dataclass(frozen=True)
class BufferView:
    """A value as a view of a buffer: `axes[i]` is the buffer axis of the value's axis `i`."""

    buffer: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """One operator of the problem: its node, and the buffer axes of each token in each operand and result.

    `implementations` are those that the target accepts, and `forms` are their orders in the labels of
    `relation`. The contract's inputs and outputs are sites too, and so is each buffer of the state. These
    have no relation and no implementation.
    """

    node: torch.fx.Node
    kind: str
    reads: tuple[BufferView, ...]
    writes: tuple[BufferView, ...]
    tokens: tuple[dict[Token, AxisOrder], ...]  # reads, then writes
    relation: Relation | None = None
    operands: tuple[AxedTensor, ...] = ()  # constants included
    sources: tuple[torch.fx.Node, ...] = ()  # the nodes of the operands
    implementations: tuple[Implementation, ...] = ()
    forms: tuple[str, ...] = ("*",)

    @property
    def views(self) -> tuple[BufferView, ...]:
        return (*self.reads, *self.writes)

    @property
    def absorbed(self) -> frozenset[str]:
        return self.relation.absorbed if self.relation else frozenset()


@dataclass(frozen=True)
class Arrangement:
    """One way to run a site: an implementation and the order of its tokens.

    `absorbed` is the order of the axes of each absorbed label, per tensor.
    """

    tokens: tuple[Token, ...]
    absorbed: tuple[tuple[tuple[Token, AxisOrder], ...], ...]  # per tensor: token → order
    implementation: int = 0


def layout_of(position: int, site: Site, arrangement: Arrangement) -> AxisOrder:
    """Return the buffer order that an arrangement gives the tensor at a position of a site's views."""
    own, absorbed = site.tokens[position], dict(arrangement.absorbed[position])
    return tuple(
        axis for token in arrangement.tokens if token in own for axis in absorbed.get(token, own[token])
    )


def layouts_of(site: Site, arrangement: Arrangement) -> tuple[AxisOrder, ...]:
    """Return the buffer orders that an arrangement gives the tensors of a site's views."""
    return tuple(layout_of(position, site, arrangement) for position in range(len(site.views)))


def dimension_axes(view: BufferView, shape: Sequence[int], buffers: Sequence[BufferInfo]) -> list[AxisOrder]:
    """Return the buffer axes of each dimension of a value of shape `shape`."""
    sizes, left = buffers[view.buffer].tensor.sizes, list(view.axes)
    found: list[AxisOrder] = []
    for extent in shape:
        axes: AxisOrder = ()
        while math.prod(sizes[axis] for axis in axes) < extent:
            axes = (*axes, left.pop(0))
        found.append(axes)
    return found


def transpose_rank(source: AxisOrder, target: AxisOrder) -> int:
    """Return the rank of a transpose between two orders.

    Dimensions that stay together count as one.
    """
    position = {axis: i for i, axis in enumerate(source)}
    breaks = sum(position[b] != position[a] + 1 for a, b in itertools.pairwise(target))
    return breaks + 1


def transposes(source: AxisOrder, target: AxisOrder, max_rank: int | None) -> list[AxisOrder] | None:
    """Return the orders after each of the transposes of at most `max_rank` that lead from one to another.

    Each transpose before the last one puts axes together that are neighbours in `target`. None if these would
    exceed the rank too, which is possible below 4.

    >>> transposes((0, 1, 2, 3, 4, 5, 6), (6, 4, 2, 0, 5, 3, 1), 6)
    [(6, 4, 2, 0, 1, 3, 5), (6, 4, 2, 0, 5, 3, 1)]
    >>> transposes((0, 1, 2, 3), (0, 2, 3, 1), 6)
    [(0, 2, 3, 1)]
    """
    if max_rank is None or len(source) <= max_rank or transpose_rank(source, target) <= max_rank:
        return [target]
    runs = common_runs(source, target)
    numbers = {run[0]: i for i, run in enumerate(runs)}
    steps = _steps_to(tuple(numbers[axis] for axis in target if axis in numbers), max_rank)
    return None if steps is None else [tuple(axis for i in step for axis in runs[i]) for step in steps]


@cache
def _steps_to(target: AxisOrder, max_rank: int) -> list[AxisOrder] | None:
    """Return what `transposes` does, from the order 0, 1, 2, …"""
    steps, source = [], tuple(range(len(target)))
    while transpose_rank(source, target) > max_rank:
        joined = [order for order in _joined(source, target) if transpose_rank(source, order) <= max_rank]
        if not joined:
            return None
        source = min(joined, key=lambda order: transpose_rank(order, target))
        steps.append(source)
    return [*steps, target]


def _joined(source: AxisOrder, target: AxisOrder) -> Iterator[AxisOrder]:
    """Yield orders like `source` in which some axes that are neighbours in `target` lie together."""
    runs = common_runs(source, target)
    wanted = sorted(runs, key=lambda run: target.index(run[0]))
    for first, last in itertools.combinations(range(len(wanted)), 2):
        together = wanted[first : last + 1]
        moved = [together if run == wanted[last] else [run] for run in runs if run not in together[:-1]]
        yield tuple(itertools.chain(*itertools.chain(*moved)))


def common_runs(
    source: Sequence[int], target: Sequence[int], apart: Collection[int] = ()
) -> tuple[AxisOrder, ...]:
    """Group the axes that stay together in both orders, in the order of `source`.

    A group begins at each of the axes `apart`.

    >>> common_runs((0, 1, 2, 3), (0, 2, 3, 1)), common_runs((0, 1, 2, 3), (0, 2, 3, 1), apart={2, 3})
    (((0,), (1,), (2, 3)), ((0,), (1,), (2,), (3,)))
    """
    position = {axis: i for i, axis in enumerate(target)}
    runs: list[list[int]] = []
    for axis in source:
        if runs and axis not in apart and position[axis] == position[runs[-1][-1]] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return tuple(tuple(run) for run in runs)
