"""Decides what the places of a layout problem are in a program's terms: buffers, views of them, and per
operator a site, which says which axes lie behind each label of its relation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dimorder.ops.operator import Implementation, Relation
from dimorder.ops.tokens import AxedTensor, AxisOrder, Token


@dataclass(frozen=True)
class BufferInfo:
    """A value with all its relabelled views. Axes are those of `root`, the value that is produced."""

    index: int
    root: torch.fx.Node
    tensor: AxedTensor
    value: torch.Tensor  # its shape and type; no data

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.value.shape)

    @property
    def nbytes(self) -> int:
        return int(self.value.numel()) * self.value.element_size()


@dataclass(frozen=True)
class BufferView:
    """A value as a view of a buffer: `axes[i]` is the buffer axis behind the value's axis `i`."""

    buffer: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """One operator of the problem: its node, and per operand and result the buffer axes behind each token.

    `implementations` are those that the target takes, and `forms` their orders in the labels of `relation`.
    The contract's inputs and outputs are sites too, and so is each buffer of the state; they have no relation
    and one implementation, which is none.
    """

    node: torch.fx.Node
    kind: str
    reads: tuple[BufferView, ...]
    writes: tuple[BufferView, ...]
    tokens: tuple[dict[Token, AxisOrder], ...]  # reads, then writes
    relation: Relation | None = None
    operands: tuple[AxedTensor, ...] = ()  # constants included
    sources: tuple[torch.fx.Node, ...] = ()  # of the operands
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
    """One way to run a site: an implementation, the order of its tokens, and per tensor the order of its
    absorbed axes."""

    tokens: tuple[Token, ...]
    absorbed: tuple[tuple[tuple[Token, AxisOrder], ...], ...]  # per tensor, token → order
    implementation: int = 0


def layout_of(tensor_index: int, site: Site, arrangement: Arrangement) -> AxisOrder:
    """The buffer order that an arrangement means for one tensor of a site."""
    held, absorbed = site.tokens[tensor_index], dict(arrangement.absorbed[tensor_index])
    return tuple(
        axis for token in arrangement.tokens if token in held for axis in absorbed.get(token, held[token])
    )


def common_runs(source: Sequence[int], target: Sequence[int]) -> tuple[AxisOrder, ...]:
    """Axes grouped as far as they stay together in both orders, in the source's order.

    >>> common_runs((0, 1, 2, 3), (0, 2, 3, 1))
    ((0,), (1,), (2, 3))
    """
    position = {axis: i for i, axis in enumerate(target)}
    runs: list[list[int]] = []
    for axis in source:
        if runs and position[axis] == position[runs[-1][-1]] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return tuple(tuple(run) for run in runs)
