"""Write graphs of dense tensors: views are followed, and nothing is transposed unless the plan asks for it.

A target's writer adds its operators. `NamedWriter` gives tensors names and shapes. It writes a reshape late,
once, and only if an operator reads it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, groupby
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch

from dimorder.ops.problem_map import common_runs
from dimorder.targets.table import Arguments, V, View

D = TypeVar("D")


class ViewWriter(ABC, Generic[V]):
    """A writer that gives operators dense operands."""

    def __init__(self) -> None:
        self._transposed: dict[View[V], V] = {}

    @abstractmethod
    def constant(self, data: torch.Tensor, /) -> V: ...

    @abstractmethod
    def reshape(self, value: V, shape: Sequence[int]) -> V: ...

    @abstractmethod
    def _transpose(self, view: View[V]) -> V:
        """Write an operator that puts a view into its own dimension order."""

    def dense(self, operand: View[V] | torch.Tensor) -> V:
        """Return `operand` dense in its own dimension order: a constant, or a value in that order already.

        Only `transposed` writes a transpose, for a conversion of the plan.
        """
        if isinstance(operand, torch.Tensor):
            return self.constant(operand)
        assert operand in self._transposed or operand.is_dense, (
            "the plan has no conversion for this transpose"
        )
        return self._transposed.get(operand) or self.reshape(operand.value, operand.shape)

    def transposed(self, view: View[V]) -> V:
        """Return `view` dense in its own dimension order.

        Write a transpose if needed, once per value and order.
        """
        if view.is_dense:
            return self.reshape(view.value, view.shape)
        if view not in self._transposed:
            self._transposed[view] = self._transpose(view)
        return self._transposed[view]


@dataclass(frozen=True)
class NamedValue(Generic[D]):
    """The dense tensor of that name, seen in `shape`.

    Only the writer knows the shape in which it was written.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: D

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class StoredTensor(Protocol):
    """A tensor in the shape in which it is written; `data` if it is constant."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def data(self) -> np.ndarray[Any, Any] | None: ...


N = TypeVar("N", bound=NamedValue[Any])
T = TypeVar("T", bound=StoredTensor)


class NamedWriter(ViewWriter[N], Generic[N, T]):
    """A writer of a graph whose tensors have names.

    `hint` is the name of the next operators' results, or its beginning.
    """

    MAX_RANK: ClassVar[int]
    CONCAT: ClassVar[str]  # the operator that concatenates, of at most so many operands
    MAX_CONCATENATED: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self.hint = "tensor"
        self._tensors: dict[str, T] = {}
        self._reshaped: dict[tuple[str, tuple[int, ...]], str] = {}

    @abstractmethod
    def op(
        self, kind: str, inputs: Sequence[N], shape: Sequence[int], dtype: Any = None, **options: Any
    ) -> N:
        """Write operator `kind` on `inputs` in their shapes; the default `dtype` is that of the first."""

    @abstractmethod
    def number(self, number: float, dtype: Any) -> N:
        """Return a constant of one element."""

    @abstractmethod
    def _broadcast(self, kind: str, values: Sequence[N], shape: tuple[int, ...]) -> list[N]:
        """Return operands of `kind` in dimensions in which they broadcast, as their own do to `shape`."""

    @abstractmethod
    def _goes_in_rows(self, kind: str, x: N) -> bool:
        """Return whether the operator that slices or concatenates takes an operand as rows."""

    @abstractmethod
    def sizes(self, sizes: Sequence[int]) -> N:
        """Return a constant of sizes, starts, paddings, multiples or dimensions."""

    @abstractmethod
    def _constant_like(self, data: np.ndarray[Any, Any], value: N) -> N:
        """Return a constant of the type of `value`."""

    @abstractmethod
    def _write_reshape(self, value: N, shape: tuple[int, ...]) -> N: ...

    @abstractmethod
    def _write_transpose(self, value: N, order: tuple[int, ...]) -> N: ...

    def data(self, value: N) -> torch.Tensor | None:
        """Return the data of `value` if it is a constant, else None."""
        data = self._tensors[value.tensor].data
        return None if data is None else torch.from_numpy(data).reshape(value.shape)

    def reshape(self, value: N, shape: Sequence[int]) -> N:
        """Return the same elements in `shape`. A reshape is written only when an operator reads them so."""
        shape = tuple(int(size) for size in shape)
        assert math.prod(shape) == value.size, (value.shape, shape)
        return replace(value, shape=shape)

    def as_written(self, value: N) -> N:
        """Return the same elements in the shape in which they were written, which needs no operator."""
        return self.reshape(value, self._tensors[value.tensor].shape)

    def elementwise(
        self, kind: str, *operands: N | float, dtype: Any = None, extra: Sequence[N] = (), **options: Any
    ) -> N:
        """Write an operator on each element.

        Operands broadcast as in torch. Numbers take the last value's type. `extra` follows the operands as it
        is. Values of one shape are read in the shape in which the first one was written. So no RESHAPE
        interrupts a chain of such operators.
        """
        like = [operand for operand in operands if isinstance(operand, NamedValue)][-1].dtype
        values = [o if isinstance(o, NamedValue) else self.number(o, like) for o in operands]
        shape = tuple(np.broadcast_shapes(*(value.shape for value in values)))
        taken = self._broadcast(kind, values, shape)
        out = np.broadcast_shapes(*(value.shape for value in taken))
        return self.reshape(self.op(kind, [*taken, *extra], out, dtype or like, **options), shape)

    def slice(self, x: N, dim: int, start: int, length: int) -> N:
        """Return `length` elements from `start` on of one dimension, by a SLICE if these are not all."""
        if length == x.shape[dim]:
            return x
        shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
        x, dim, inner = self._around(x, dim, self._goes_in_rows("SLICE", x))
        starts, sizes = [0] * len(x.shape), list(x.shape)
        starts[dim], sizes[dim] = start * inner, length * inner
        return self.reshape(self.op("SLICE", [x, self.sizes(starts), self.sizes(sizes)], sizes), shape)

    def concat(self, values: Sequence[N], dim: int) -> N:
        """Concatenate along one dimension; many operands are concatenated in several steps."""

        def joined(group: Sequence[N]) -> N:
            in_rows = any(self._goes_in_rows(self.CONCAT, value) for value in group)
            total = sum(value.shape[dim] for value in group)
            first, axis, inner = self._around(group[0], dim, in_rows)
            parts = [first, *(self._around(value, dim, in_rows)[0] for value in group[1:])]
            out = [*first.shape[:axis], total * inner, *first.shape[axis + 1 :]]
            y = self.op(self.CONCAT, parts, out, axis=axis)
            return self.reshape(y, (*group[0].shape[:dim], total, *group[0].shape[dim + 1 :]))

        return join_in_steps(values, self.MAX_CONCATENATED, joined)

    def beside_constants(self, x: N, added: Sequence[tuple[int, int]], fill: torch.Tensor) -> N:
        """Add elements before and after each dimension, by concatenations with constants."""
        for d, amounts in enumerate(added):
            shapes = [(*x.shape[:d], amount, *x.shape[d + 1 :]) for amount in amounts]
            before, after = ([self.constant(fill.expand(to))] if to[d] else [] for to in shapes)
            x = self.concat([*before, x, *after], d)
        return x

    def in_groups(self, x: N, weight: torch.Tensor, a: Arguments, write: Callable[..., N]) -> N:
        """Write one convolution per group of channels, and concatenate their results.

        `write` takes the input, weight and bias of a group, and the shape of its result.
        """
        axis, inputs, outputs = len(a.shape) - 1, x.shape[-1] // a.groups, a.shape[-1] // a.groups
        parts = []
        for g in range(a.groups):
            rows, part = (0, g * outputs, outputs), self.slice(x, axis, g * inputs, inputs)
            bias = None if a.bias is None else a.bias.narrow(*rows)
            parts.append(write(part, weight.narrow(*rows), bias, (*a.shape[:-1], outputs)))
        return self.concat(parts, axis)

    def _around(self, x: N, dim: int, in_rows: bool) -> tuple[N, int, int]:
        """Return `x` or its rows, the dimension that `dim` is part of, and its elements for each of `dim`."""
        if not in_rows:
            return x, dim, 1
        rows, inner = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :])
        return self.reshape(x, (rows, x.shape[dim] * inner)), 1, inner

    def in_ranks(self, x: N, dim: int) -> tuple[N, int]:
        """Return `x` and the place of a dimension, in as many dimensions as the target has."""
        if len(x.shape) <= self.MAX_RANK:
            return x, dim
        return self.reshape(x, (math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :]))), 1

    def _transpose(self, view: View[N]) -> N:
        is_written = len(view.order) <= self.MAX_RANK
        value, order = (view.value, view.order) if is_written else merge_transposed(view)
        return self.reshape(self._write_transpose(value, order), view.shape)

    def _named(self, value: N) -> str:
        """Return the tensor that holds `value` in its shape."""
        tensor = self._tensors[value.tensor]
        if value.shape == tensor.shape:
            return value.tensor
        key = (value.tensor, value.shape)
        if key not in self._reshaped:
            reshaped = (
                self._write_reshape(self.as_written(value), value.shape)
                if tensor.data is None
                else self._constant_like(tensor.data.reshape(value.shape), value)
            )
            self._reshaped[key] = reshaped.tensor
        return self._reshaped[key]


def join_in_steps(values: Sequence[V], most: int, join: Callable[[Sequence[V]], V]) -> V:
    """Join values by operators of at most `most` operands.

    >>> join_in_steps(["a", "b", "c", "d", "e"], 3, lambda values: f"({' '.join(values)})")
    '((a b c) (d e))'
    """
    values = list(values)
    while len(values) > 1:
        groups = [values[i : i + most] for i in range(0, len(values), most)]
        values = [join(group) if len(group) > 1 else group[0] for group in groups]
    return values[0]


def without_leading_ones(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(dropwhile(lambda size: size == 1, shape))


def merge_broadcast(shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return shapes that broadcast to `shape`, with adjacent dimensions merged as far as possible.

    Adjacent dimensions merge if every operand has both or lacks both.

    >>> merge_broadcast([(2, 3, 5), (5,)], (2, 3, 5))
    [(6, 5), (1, 5)]
    """
    groups = _broadcast_groups(shapes, shape)
    return [tuple(size if has[i] else 1 for size, has in groups) for i in range(len(shapes))]


def broadcast_within(
    shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...], within: Sequence[int]
) -> list[tuple[int, ...]] | None:
    """Return shapes that broadcast to `within` as `shapes` do to `shape`, or None if there are none.

    `within` has the elements of `shape`, in other dimensions.

    >>> broadcast_within([(2, 3, 5), (1, 1, 5), (2, 3, 1)], (2, 3, 5), (6, 1, 5))
    [(6, 1, 5), (1, 1, 5), (6, 1, 1)]
    >>> broadcast_within([(2, 3, 5), (2, 1, 5)], (2, 3, 5), (6, 5))
    """
    if 0 in within:
        return None
    groups, taken, rest = _broadcast_groups(shapes, shape), list[list[int]](), 1
    for size in within:
        if size != 1 and rest == 1 and groups:
            (rest, has), *groups = groups
        if rest % size:
            return None
        taken.append([size if size != 1 and has[i] else 1 for i in range(len(shapes))])
        rest //= size
    return [tuple(sizes) for sizes in zip(*taken, strict=True)] if taken else [()] * len(shapes)


def _broadcast_groups(
    shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...]
) -> list[tuple[int, list[bool]]]:
    """Return runs of dimensions that each operand has or lacks as a whole: their size, and who has them."""
    padded = [(1,) * (len(shape) - len(s)) + s for s in shapes]
    dims = (d for d, size in enumerate(shape) if size != 1)
    runs = groupby(dims, lambda d: [s[d] == shape[d] for s in padded])
    return [(math.prod(shape[d] for d in run), having) for having, run in runs]


def merge_transposed(view: View[N]) -> tuple[N, tuple[int, ...]]:
    """Return the same transpose without dimensions of 1, and with dimensions merged that stay adjacent."""
    sizes, order = view.value.shape, [i for i in view.order if view.value.shape[i] != 1]
    runs = common_runs(order, sorted(order))
    ordered = sorted(runs)
    shape = tuple(math.prod(sizes[d] for d in run) for run in ordered)
    return replace(view.value, shape=shape), tuple(ordered.index(run) for run in runs)
