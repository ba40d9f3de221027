"""Read the dim order from a shape and strides.

`DimOrder.strides` is the inverse: it returns the canonical strides of an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UsageError


@dataclass(frozen=True)
class NotDense:
    """A reading of strides that no order fits: there are gaps or overlaps, or memory runs backwards."""

    why: str

    def __str__(self) -> str:
        return f"not dense: {self.why}"


def read(shape: Sequence[int], strides: Sequence[int]) -> DimOrder | NotDense:
    """Return the order that the strides of a dense tensor have, the least of those that fit.

    Strides of dims of size 1 are ignored. Raises `UsageError` for a size that is not an int.

    >>> read((2, 3, 5, 7), (105, 1, 21, 3)), read((1, 1, 5, 7), (35, 1, 7, 1))
    (DimOrder(0, 2, 3, 1), DimOrder(0, 1, 2, 3))
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
        return DimOrder.contiguous(len(shape))
    order, step, inner = _by_strides(shape, strides), 1, None
    for dim in reversed([dim for dim in order if shape[dim] != 1]):
        if strides[dim] != step:
            return NotDense(_why(dim, inner, shape, strides, step))
        step, inner = step * shape[dim], dim
    return order


def order_with_gaps(shape: Sequence[int], strides: Sequence[int]) -> DimOrder | None:
    """Return the order of the dims in memory, without regard to gaps; None if elements overlap.

    >>> order_with_gaps((2, 3, 5, 7), (210, 1, 42, 6)), order_with_gaps((2, 3), (1, 1))
    (DimOrder(0, 2, 3, 1), None)
    """
    if 0 in shape:
        return DimOrder.contiguous(len(shape))
    order, step = _by_strides(shape, strides), 1
    for dim in reversed([dim for dim in order if shape[dim] != 1]):
        if strides[dim] < step:
            return None
        step = strides[dim] * shape[dim]
    return order


def _by_strides(shape: Sequence[int], strides: Sequence[int]) -> DimOrder:
    """Return the dims with the largest strides first; those of size 1 where they make the least order."""
    return DimOrder(*sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim))).canonical(shape)


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
