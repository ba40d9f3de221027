"""Decides how a delegate says which orders it takes: one frozen table per delegate, and the ready-made ones.

What a delegate author writes is a `DelegateLayout`; `guarded` and `legalise` read it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UsageError
from dimorder.runtime.kernels import CONTIGUOUS, LAST, LOWER, OTHER, SAME, KernelTable

NHWC = DimOrder.channels_last(4)
_NCHW = DimOrder.contiguous(4)

DimOrderOperators = Literal["as they are", "reverted", "outside"]


@dataclass(frozen=True)
class DelegateLayout:
    """What a delegate accepts: the orders at its boundary, of its weights, and of each operator.

    `boundary` and `weights` give the accepted orders by rank, contiguous where a rank is not listed.
    `operators` gives, by ATen name ("convolution", "add.Tensor"), the orders in which an operator takes its
    4-D inputs, and is to list all that the delegate takes; where it lists none, those that the partitioner
    takes get `default`. `ranks` gives the ranks that an operator is taken at,
    every one where it is not listed. `alike` says that the inputs of one call must have one
    order. `dim_order_operators` says what becomes of ExecuTorch's dim-order operators: left in the partition
    "as they are", "reverted" by the delegate's own preprocess (`RevertDimOrderOperators` does it), or kept
    "outside".

    >>> layout = DelegateLayout("Mine", boundary={4: (NHWC,)}, default=(NHWC,))
    >>> layout.at_boundary(4), layout.at_boundary(3), layout.of_operator("relu")
    ((DimOrder(0, 2, 3, 1),), (DimOrder(0, 1, 2),), (DimOrder(0, 2, 3, 1),))
    """

    name: str
    boundary: Mapping[int, tuple[DimOrder, ...]] = field(default_factory=dict)
    weights: Mapping[int, tuple[DimOrder, ...]] = field(default_factory=dict)
    operators: Mapping[str, tuple[DimOrder, ...]] = field(default_factory=dict)
    default: tuple[DimOrder, ...] = (_NCHW,)
    ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    alike: bool = True
    dim_order_operators: DimOrderOperators = "as they are"

    def __post_init__(self) -> None:
        for name in ("boundary", "weights", "operators", "ranks"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        for rank, orders in (*self.boundary.items(), *self.weights.items()):
            if not orders or any(len(order) != rank for order in orders):
                raise UsageError(
                    f"layout {self.name}", f"orders {orders} for rank {rank}", f"give orders of {rank} dims"
                )

    def at_boundary(self, rank: int) -> tuple[DimOrder, ...]:
        return self.boundary.get(rank, (DimOrder.contiguous(rank),))

    def of_weight(self, rank: int) -> tuple[DimOrder, ...]:
        return self.weights.get(rank, (DimOrder.contiguous(rank),))

    def of_operator(self, operator: str) -> tuple[DimOrder, ...]:
        return self.operators.get(operator, self.default)

    def takes(self, operator: str, rank: int) -> bool:
        """Whether the delegate takes an operator at a rank, in any order."""
        return rank in self.ranks.get(operator, (rank,))


@functools.cache
def _xnnpack_operators() -> Mapping[str, tuple[DimOrder, ...]]:
    """For each operator, the orders in which all its probes were right."""
    rows = KernelTable.shipped().rows["xnnpack"]
    orders = {}
    for operator, found in rows.items():
        last = [verdict for key, verdict in found.items() if _says_last(key)]
        safe = last and all(verdict == "right" for verdict in last)
        orders[operator.removeprefix("aten::")] = (_NCHW, NHWC) if safe else (_NCHW,)
    return orders


def _xnnpack_ranks() -> Mapping[str, tuple[int, ...]]:
    """The ranks of each operator that is not right in contiguous order at every rank."""
    ranks = {}
    for operator, found in KernelTable.shipped().rows["xnnpack"].items():
        plain = {
            (int(key[0]), verdict) for key, verdict in found.items() if {*key[2:]} <= {CONTIGUOUS, LOWER}
        }
        bad = {rank for rank, verdict in plain if verdict != "right"}
        if bad:
            ranks[operator.removeprefix("aten::")] = tuple(sorted({rank for rank, _ in plain} - bad))
    return ranks


def _says_last(key: str) -> bool:
    """Whether a signature is about a channels-last tensor of 4 dims, and none that sizes of 1 leave open.

    What XNNPACK refuses of the latter is the label at its boundary, not the operator.
    """
    rank, letters = key.split(" ")
    return SAME not in letters and (LAST in letters if rank == "4" else {LAST, OTHER} & {*letters} == {OTHER})


def __getattr__(name: str) -> DelegateLayout:
    """`XNNPACK` reads the truth table, so it is made when first asked for."""
    if name != "XNNPACK":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    layout = DelegateLayout(
        "XNNPACK",
        boundary={4: (_NCHW, NHWC)},
        operators=_xnnpack_operators(),
        ranks=_xnnpack_ranks(),
        alike=False,
        dim_order_operators="reverted",
    )
    globals()[name] = layout
    return layout


# No delegate at all: what the truth table says of each kernel is checked in any case.
PORTABLE = DelegateLayout("portable", boundary={4: (_NCHW, NHWC)}, weights={4: (_NCHW, NHWC)})
# Arm's own passes put permutes around what TOSA wants in NHWC: everything that enters is contiguous (#18948).
ARM_TOSA = DelegateLayout("Arm TOSA")
# Vulkan keeps tensors packed in textures and copies them in and out in NCHW; its serialiser knows no other.
VULKAN = DelegateLayout("Vulkan", dim_order_operators="outside")
