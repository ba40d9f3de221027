"""Read the dim order from a shape and strides: certain, ambiguous or not dense, and never a guess.

`DimOrder.strides` is the inverse: it returns the canonical strides of an order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UsageError


@dataclass(frozen=True)
class Certain:
    """A reading of dense strides that only one order fits."""

    order: DimOrder

    def __str__(self) -> str:
        return self.order.name


@dataclass(frozen=True)
class Ambiguous:
    """A reading of dense strides that several orders fit: all those equivalent to `order`.

    `order` is the least of them. `free` are the dims of size 1, or every dim of a tensor without elements.

    >>> reading = read((2, 1, 3), (3, 3, 1))
    >>> reading.order, reading.free, [order.name for order in reading.orders()]
    (DimOrder(0, 1, 2), (1,), ['NCL', 'NLC', '(1, 0, 2)'])
    """

    order: DimOrder
    free: tuple[int, ...]
    shape: tuple[int, ...]

    def orders(self) -> Iterator[DimOrder]:
        """Yield every order that fits, least first; a tensor without elements has rank! of them."""
        every = (DimOrder(*dims) for dims in permutations(range(len(self.shape))))
        return (order for order in every if order.equivalent(self.order, self.shape))

    def __str__(self) -> str:
        return f"{self.order.name}, dims {', '.join(map(str, self.free))} free"


@dataclass(frozen=True)
class NotDense:
    """A reading of strides that no order fits: there are gaps or overlaps, or memory runs backwards."""

    why: str

    def __str__(self) -> str:
        return f"not dense: {self.why}"


Reading = Certain | Ambiguous | NotDense


def read(shape: Sequence[int], strides: Sequence[int]) -> Reading:
    """Return what the strides of a tensor say about its order.

    The strides of dims of size 1 carry no information and are ignored.

    Args:
        shape: the sizes, from dimension 0 on.
        strides: the strides in elements, from dimension 0 on.

    Raises:
        UsageError: if the lengths differ, or if a size is not an int: a dynamic size has no strides to
            compare.

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
    """Return why `dim` is not `step` elements apart; `inner` is the next faster dim, if there is one."""
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
