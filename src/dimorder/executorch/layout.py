"""Describe the orders that a delegate takes: one frozen table per delegate, and the ready-made ones.

A delegate author writes a `DelegateLayout`. `guarded` and `legalize` read it.
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
    """The orders that a delegate accepts at its boundary, for its weights, and for each operator.

    Attributes:
        name: The delegate's name in errors.
        boundary: The accepted orders of inputs and outputs, by rank. A rank that is not listed takes
            contiguous.
        weights: The accepted orders of weights, by rank. A rank that is not listed takes contiguous.
        operators: By ATen name ("convolution", "add.Tensor"), the orders in which an operator takes its 4-D
            inputs. List every operator that the delegate takes, or none.
        default: The orders of the operators that the partitioner takes, if `operators` lists none.
        ranks: The ranks at which an operator is taken. An operator that is not listed is taken at every rank.
        alike: Whether all inputs of one call must have the same order.
        dim_order_operators: The treatment of ExecuTorch's dim-order operators. "as they are" leaves them in
            the partition. "reverted" says that the delegate's own preprocess reverts them
            (`RevertDimOrderOperators` does it). "outside" keeps them out of partitions.
        reorders: Operators after which the delegate keeps 4-D values in another order than their labels say.
        order_blind: Operators that the delegate computes wrong in such an order. `guarded` keeps them out of
            a partition if such a value, or one that is not contiguous, may reach them in it.
        fixed_results: Operators whose results in integers or halves must have fixed sizes in the delegate.

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
    reorders: frozenset[str] = frozenset()
    order_blind: frozenset[str] = frozenset()
    fixed_results: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("boundary", "weights", "operators", "ranks"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        for rank, orders in (*self.boundary.items(), *self.weights.items()):
            if not orders or any(len(order) != rank for order in orders):
                raise UsageError(
                    f"layout {self.name}", f"orders {orders} for rank {rank}", f"give orders of {rank} dims"
                )

    def at_boundary(self, rank: int) -> tuple[DimOrder, ...]:
        """Return the accepted orders of inputs and outputs of a rank.

        >>> PORTABLE.at_boundary(4), ARM_TOSA.at_boundary(4)
        ((DimOrder(0, 1, 2, 3), DimOrder(0, 2, 3, 1)), (DimOrder(0, 1, 2, 3),))
        """
        return self.boundary.get(rank, (DimOrder.contiguous(rank),))

    def of_weight(self, rank: int) -> tuple[DimOrder, ...]:
        """Return the accepted orders of weights of a rank.

        >>> PORTABLE.of_weight(4), PORTABLE.of_weight(2)
        ((DimOrder(0, 1, 2, 3), DimOrder(0, 2, 3, 1)), (DimOrder(0, 1),))
        """
        return self.weights.get(rank, (DimOrder.contiguous(rank),))

    def of_operator(self, operator: str) -> tuple[DimOrder, ...]:
        """Return the orders in which an operator takes its 4-D inputs.

        >>> mine = DelegateLayout("Mine", operators={"convolution": (NHWC,)})
        >>> mine.of_operator("convolution"), mine.of_operator("add.Tensor")
        ((DimOrder(0, 2, 3, 1),), (DimOrder(0, 1, 2, 3),))
        """
        return self.operators.get(operator, self.default)

    def takes(self, operator: str, rank: int) -> bool:
        """Return whether the delegate takes an operator at a rank, in any order.

        >>> mine = DelegateLayout("Mine", ranks={"convolution": (4,)})
        >>> mine.takes("convolution", 4), mine.takes("convolution", 3), mine.takes("relu", 3)
        (True, False, True)
        """
        return rank in self.ranks.get(operator, (rank,))


QUANTIZERS = "quantized_decomposed."  # the beginning of their names
# In XNNPACK's graph these are types of values, so they have no order.
_XNNPACK_QUANTIZERS = tuple(
    f"{QUANTIZERS}{name}{overload}"
    for name in ("quantize_per_tensor", "dequantize_per_tensor", "choose_qparams")
    for overload in ("", ".tensor")
)


@functools.cache
def _xnnpack_operators() -> Mapping[str, tuple[DimOrder, ...]]:
    """Return for each operator the orders in which all its probes were right."""
    rows = KernelTable.shipped().rows["xnnpack"]
    orders = {}
    for operator, found in rows.items():
        last = [verdict for key, verdict in found.items() if _says_last(key)]
        safe = last and all(verdict == "right" for verdict in last)
        orders[operator.removeprefix("aten::")] = (_NCHW, NHWC) if safe else (_NCHW,)
    return {**orders, **dict.fromkeys(_XNNPACK_QUANTIZERS, (_NCHW, NHWC))}


def _xnnpack_ranks() -> Mapping[str, tuple[int, ...]]:
    """Return the ranks of each operator that is not right in contiguous order at every rank."""
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
    """Return whether a signature has a channels-last 4-D tensor, and none that sizes of 1 make ambiguous."""
    rank, letters = key.split(" ")
    return SAME not in letters and (LAST in letters if rank == "4" else {LAST, OTHER} & {*letters} == {OTHER})


# They make XNNPACK's preprocess go on in channels-last, with any operator whose inputs are all so. Then its
# softmax runs along the last dimension in memory (`ChannelsLastTaggedReshapePass` of ExecuTorch 1.5.1).
_XNNPACK_REORDERS = frozenset(
    (
        *("convolution", "upsample_bilinear2d.vec", "mean.dim", "amax", "max.dim"),
        *("max_pool2d", "avg_pool2d", "prelu"),
    )
)


def __getattr__(name: str) -> DelegateLayout:
    """Build `XNNPACK` on first use, since it reads the truth table."""
    if name != "XNNPACK":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    layout = DelegateLayout(
        "XNNPACK",
        boundary={4: (_NCHW, NHWC)},
        operators=_xnnpack_operators(),
        ranks=_xnnpack_ranks(),
        alike=False,
        dim_order_operators="reverted",
        reorders=_XNNPACK_REORDERS,
        order_blind=frozenset({"_softmax"}),
        fixed_results=frozenset({"mean.dim"}),  # the memory for its sums may be too small for other sizes
    )
    globals()[name] = layout
    return layout


# No delegate at all. The truth table's verdict on each kernel is checked in any case.
PORTABLE = DelegateLayout("portable", boundary={4: (_NCHW, NHWC)}, weights={4: (_NCHW, NHWC)})
# Arm's own passes put permutes around operators that TOSA wants in NHWC: everything that enters is contiguous
# (#18948).
ARM_TOSA = DelegateLayout("Arm TOSA")
# Vulkan keeps tensors packed in textures and copies them in and out in NCHW; its serialiser knows no other.
VULKAN = DelegateLayout("Vulkan", dim_order_operators="outside")
