"""Decides which dim order a pair of shape and strides shows: certain, ambiguous, or not dense; never a guess.

The way back, from an order to its canonical strides, is `DimOrder.strides`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UsageError


@dataclass(frozen=True)
class Certain:
    """Dense, and only one order has these elements in these places."""

    order: DimOrder

    def __str__(self) -> str:
        return self.order.name


@dataclass(frozen=True)
class Ambiguous:
    """Dense, and several orders have these elements in these places: all those equivalent to `order`.

    `order` is the least of them, `free` the dims of size 1, or every dim of a tensor without elements.

    >>> reading = read((2, 1, 3), (3, 3, 1))
    >>> reading.order, reading.free, [order.name for order in reading.orders()]
    (DimOrder(0, 1, 2), (1,), ['NCL', 'NLC', '(1, 0, 2)'])
    """

    order: DimOrder
    free: tuple[int, ...]
    shape: tuple[int, ...]

    def orders(self) -> Iterator[DimOrder]:
        """Every order that fits, least first; rank! of them for a tensor without elements."""
        every = (DimOrder(*dims) for dims in permutations(range(len(self.shape))))
        return (order for order in every if order.equivalent(self.order, self.shape))

    def __str__(self) -> str:
        return f"{self.order.name}, dims {', '.join(map(str, self.free))} free"


@dataclass(frozen=True)
class NotDense:
    """No order has these elements in these places: there are gaps or overlaps, or memory runs backwards."""

    why: str

    def __str__(self) -> str:
        return f"not dense: {self.why}"


Reading = Certain | Ambiguous | NotDense


def read(shape: Sequence[int], strides: Sequence[int]) -> Reading:
    """The order of a tensor of `shape` with `strides`, both in elements, from dimension 0 on.

    The strides of dims of size 1 say nothing and are not looked at. Raises `UsageError` for lengths that
    differ, and for sizes that are no ints: a symbolic size has no strides to compare.

    >>> read((2, 3, 5, 7), (105, 1, 21, 3))
    Certain(order=DimOrder(0, 2, 3, 1))
    >>> read((1, 1, 5, 7), (35, 1, 7, 1)).order
    DimOrder(0, 1, 2, 3)
    >>> print(read((2, 3, 5, 7), (210, 1, 42, 6)))
    not dense: dim 3 steps over 6 elements where dim 1 holds 3 (a slice of dim 1, or a step in dim 3)
    """
    shape, strides = tuple(shape), tuple(strides)
    if len(shape) != len(strides) or not all(isinstance(number, int) for number in shape + strides):
        raise UsageError(
            "strides.read",
            f"shape {shape} with strides {strides}",
            "pass one int size and one int stride per dimension",
        )
    if 0 in shape:
        return _dense(DimOrder.contiguous(len(shape)), tuple(range(len(shape))), shape)

    ones = tuple(dim for dim, size in enumerate(shape) if size == 1)
    counted = (dim for dim, size in enumerate(shape) if size != 1)
    inner_first = sorted(counted, key=lambda dim: (strides[dim], -dim))
    step = 1
    inner: int | None = None
    for dim in inner_first:
        if strides[dim] != step:
            return NotDense(_why(dim, inner, shape, strides, step))
        step, inner = step * shape[dim], dim
    return _dense(DimOrder(*ones, *reversed(inner_first)).canonical(shape), ones, shape)


def _dense(order: DimOrder, free: tuple[int, ...], shape: tuple[int, ...]) -> Certain | Ambiguous:
    return Ambiguous(order, free, shape) if free and len(shape) > 1 else Certain(order)


def _why(dim: int, inner: int | None, shape: tuple[int, ...], strides: tuple[int, ...], step: int) -> str:
    """Why `dim` is not `step` elements apart; `inner` is the next faster dim, None if there is none."""
    stride = strides[dim]
    if stride == 0:
        return f"dim {dim} of size {shape[dim]} is expanded (stride 0)"
    if stride < 0:
        return f"dim {dim} runs backwards (stride {stride})"
    if stride < step:
        return f"dim {dim} steps over {stride} elements where the faster dims hold {step}: they overlap"
    if inner is None:
        cause = f"a step in dim {dim}, or one index of a faster dim"
        return f"dim {dim}, the fastest, steps over {stride} elements ({cause})"
    if stride % strides[inner]:
        return f"dim {dim} steps over {stride} elements where the faster dims hold {step} (gaps between them)"
    unit = "elements" if strides[inner] == 1 else f"steps of dim {inner}"
    cause = f"a slice of dim {inner}, or a step in dim {dim}"
    apart = f"{stride // strides[inner]} {unit}"
    return f"dim {dim} steps over {apart} where dim {inner} holds {shape[inner]} ({cause})"
