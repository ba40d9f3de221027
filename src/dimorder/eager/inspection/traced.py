"""Define what is recorded of a run: calls, the values that they read and write, and copies.

A value has an order in memory, of one of five kinds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from dimorder.algebra.dim_order import DimOrder
from dimorder.algebra.strides import NotDense, order_with_gaps, read

Kind = Literal["channels-last", "row-major", "ambiguous", "permuted", "overlapping"]


@dataclass(frozen=True)
class TracedValue:
    """A tensor as an operator saw it: sizes, strides in elements, bytes, and its place in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    bytes: int
    storage: int
    address: int
    known: bool = True  # an input of the model, or the result of an operator in the trace

    @property
    def order(self) -> DimOrder | None:
        """The order of its dims in memory, without regard to gaps; None if elements overlap.

        >>> TracedValue((2, 3, 5, 7), (210, 1, 42, 6), 840, 0, 0).order
        DimOrder(0, 2, 3, 1)
        """
        return _placement(self.shape, self.strides).order

    @property
    def is_dense(self) -> bool:
        return _placement(self.shape, self.strides).is_dense

    @property
    def kind(self) -> Kind:
        return _placement(self.shape, self.strides).kind

    @property
    def order_name(self) -> str:
        return _placement(self.shape, self.strides).name

    def lies_like(self, other: TracedValue) -> bool:
        """Return whether the dims larger than 1 in both have the same sequence in both.

        >>> image, pooled = (2, 3, 5, 7), (2, 3, 1, 1)
        >>> a, b = TracedValue(image, (105, 1, 21, 3), 840, 0, 0), TracedValue(pooled, (3, 1, 1, 1), 24, 0, 0)
        >>> c = TracedValue(image, (105, 35, 7, 1), 840, 0, 0)
        >>> a.lies_like(b), a.lies_like(c)
        (True, False)
        """
        if self.order is None or other.order is None or 0 in (*self.shape, *other.shape):
            return True
        own, its = (
            [dim for dim in order if self.shape[dim] != 1 and other.shape[dim] != 1]
            for order in (self.order, other.order)
        )
        return own == its


@dataclass(frozen=True)
class Copy:
    """Memory moved inside an operator, by another; `operand` is the index of the copied one, if it is one."""

    operator: str
    before: TracedValue
    after: TracedValue
    operand: int | None
    time_us: float


@dataclass(frozen=True)
class TracedCall:
    """One operator as torch dispatched it.

    `module` is the path of the innermost module. `source` is the line outside of torch, and `function` the
    function called there. Values are tensors, in the sequence of the arguments.
    """

    index: int
    operator: str
    function: str
    module: str
    source: str
    operands: tuple[TracedValue, ...]
    results: tuple[TracedValue, ...]
    is_view: bool
    copies: tuple[Copy, ...]
    time_us: float


@dataclass(frozen=True)
class _Placement:
    """How a tensor lies in memory.

    A value that fits both kinds, or is too small to have one, is ambiguous. The name fits the kind:
    `DimOrder.canonical` may call (2, 3, 1, 7) channels-last NHCW.
    """

    order: DimOrder | None
    is_dense: bool
    kind: Kind
    name: str


@functools.lru_cache(maxsize=4096)
def _placement(shape: tuple[int, ...], strides: tuple[int, ...]) -> _Placement:
    is_dense, order = not isinstance(read(shape, strides), NotDense), order_with_gaps(shape, strides)
    if order is None:
        return _Placement(None, is_dense, "overlapping", "overlapping")
    first, last = DimOrder.contiguous(len(shape)), DimOrder.channels_last(len(shape))
    is_first, is_last = order.equivalent(first, shape), order.equivalent(last, shape)
    kind: Kind = "channels-last" if is_last else "row-major" if is_first else "permuted"
    name = last.name if is_last else first.name if is_first else order.name
    if is_first and is_last:
        kind, name = "ambiguous", f"{first.name} or {last.name}"
    return _Placement(order, is_dense, kind, name if is_dense else f"{name} with gaps")
