"""Define dim orders: their names, and the strides and offsets that they mean.

Everything here is exact integer arithmetic on tuples, without torch.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, overload

from dimorder.errors import UsageError, as_int, require_type

T = TypeVar("T")

# Activations come first: if two names mean one order, `DimOrder.name` returns the first.
NAMED_ORDERS: MappingProxyType[str, tuple[int, ...]] = MappingProxyType(
    {
        "NC": (0, 1),
        "NCL": (0, 1, 2),
        "NLC": (0, 2, 1),
        "NCHW": (0, 1, 2, 3),
        "NHWC": (0, 2, 3, 1),
        "CHWN": (1, 2, 3, 0),
        "NCDHW": (0, 1, 2, 3, 4),
        "NDHWC": (0, 2, 3, 4, 1),
        "NCH": (0, 1, 2),
        "NHC": (0, 2, 1),
        "OIHW": (0, 1, 2, 3),
        "OHWI": (0, 2, 3, 1),
        "HWIO": (2, 3, 1, 0),
        # A depthwise weight is logically (I, M, H, W): I input channels, M outputs for each. TOSA calls it
        # HWCM.
        "HWIM": (2, 3, 0, 1),
        "HWCM": (2, 3, 0, 1),
    }
)
_NAME_OF: MappingProxyType[tuple[int, ...], str] = MappingProxyType(
    {dims: name for name, dims in reversed(tuple(NAMED_ORDERS.items()))}
)


@dataclass(frozen=True, order=True, init=False, repr=False)
class DimOrder:
    """The dimensions of a tensor from slowest to fastest in memory, as `torch.Tensor.dim_order()`.

    Args:
        dims: the dimensions, a permutation of 0 … rank-1.

    Raises:
        UsageError: if the dims are not such a permutation.

    >>> nhwc = DimOrder(0, 2, 3, 1)
    >>> nhwc, nhwc.name
    (DimOrder(0, 2, 3, 1), 'NHWC')
    >>> nhwc.strides((2, 3, 5, 7))
    (105, 1, 21, 3)
    """

    dims: tuple[int, ...]

    def __init__(self, *dims: int) -> None:
        object.__setattr__(self, "dims", tuple(dims))
        self.__post_init__()

    def __post_init__(self) -> None:
        where = f"DimOrder({', '.join(map(repr, self.dims))})"
        try:
            dims = tuple(operator.index(dim) for dim in self.dims)
        except TypeError:
            fix = "write DimOrder(0, 2, 3, 1) or DimOrder.parse('NHWC', 4)"
            raise UsageError(where, "a dim that is not an int", fix) from None
        if sorted(dims) != list(range(len(dims))):
            raise UsageError(
                where,
                f"{len(dims)} dims that are not a permutation of 0 to {len(dims) - 1}",
                "name each dimension once, from slowest to fastest in memory",
            )
        object.__setattr__(self, "dims", dims)

    @staticmethod
    def contiguous(rank: int) -> DimOrder:
        """Return the row-major order.

        >>> DimOrder.contiguous(3)
        DimOrder(0, 1, 2)
        """
        return DimOrder(*range(rank))

    @staticmethod
    def channels_last(rank: int) -> DimOrder:
        """Return the order with dimension 1 fastest, and the others in their sequence.

        Below 3 dims this is row-major.

        >>> DimOrder.channels_last(5).name
        'NDHWC'
        """
        if rank < 3:
            return DimOrder.contiguous(rank)
        return DimOrder(0, *range(2, rank), 1)

    @staticmethod
    def parse(spec: object, rank: int) -> DimOrder:
        """Return the order that `spec` means for a tensor of `rank` dims.

        Args:
            spec: a `DimOrder`, a sequence of ints, a name ("NHWC", "contiguous", "channels_last", "0,2,3,1"),
                or a torch memory format. Torch's formats are known by their texts. `torch.channels_last` is
                accepted at any rank, `torch.channels_last_3d` at rank 5.
            rank: the number of dimensions.

        Raises:
            UsageError: if `spec` means no order, or an order of another rank.

        >>> DimOrder.parse("NHWC", 4) == DimOrder.parse([0, 2, 3, 1], 4) == DimOrder.parse("channels_last", 4)
        True
        """
        rank = as_int(rank, f"dim order {spec!r:.60}", "give the number of dims as the second argument")
        order = _parse(spec, rank)
        if order is None:
            names = ", ".join(name for name, dims in NAMED_ORDERS.items() if len(dims) == rank)
            raise UsageError(
                f"dim order {spec!r}",
                f"no order of this name for {rank} dims",
                f"give one of {names + ', ' if names else ''}contiguous, channels_last, "
                f"or {rank} dims such as {','.join(map(str, range(rank))) or '()'}",
            )
        if len(order) != rank:
            raise UsageError(
                f"dim order {spec!r}",
                f"an order of {len(order)} dims for a tensor of {rank}",
                f"give an order of {rank} dims, such as {DimOrder.channels_last(rank).name}",
            )
        return order

    @property
    def name(self) -> str:
        """Return the usual name, or the dims as a tuple if there is none.

        >>> DimOrder(0, 1, 2).name, DimOrder(2, 0, 1).name
        ('NCL', '(2, 0, 1)')
        """
        return _NAME_OF.get(self.dims, str(self.dims))

    @property
    def is_contiguous(self) -> bool:
        """Whether this is the row-major order, by its dims alone; `equivalent` compares for a shape.

        >>> DimOrder(0, 1, 2, 3).is_contiguous, DimOrder(0, 2, 3, 1).is_contiguous
        (True, False)
        """
        return self.dims == tuple(range(len(self.dims)))

    @property
    def inverse(self) -> DimOrder:
        """Return the order that undoes this one: `p.inverse.apply(p.apply(s)) == s`.

        >>> DimOrder(0, 2, 3, 1).inverse
        DimOrder(0, 3, 1, 2)
        """
        return DimOrder(*sorted(range(len(self.dims)), key=self.dims.__getitem__))

    def compose(self, then: DimOrder) -> DimOrder:
        """Return this order followed by `then`, as `x.permute(p).permute(q)`.

        >>> DimOrder(0, 2, 3, 1).compose(DimOrder(0, 3, 1, 2))
        DimOrder(0, 1, 2, 3)
        """
        require_type(then, DimOrder, f"{self!r}.compose", "give a DimOrder")
        return DimOrder(*then.apply(self.dims))

    def apply(self, values: Sequence[T]) -> tuple[T, ...]:
        """Put one value per dimension into this order: logical in, physical out, as `permute` does.

        >>> DimOrder(0, 2, 3, 1).apply("NCHW")
        ('N', 'H', 'W', 'C')
        """
        self._check_rank(values)
        return tuple(values[dim] for dim in self.dims)

    def physical_shape(self, shape: Sequence[T]) -> tuple[T, ...]:
        """Return the sizes from slowest to fastest: the shape of the row-major tensor with the same memory.

        >>> DimOrder(0, 2, 3, 1).physical_shape((2, 3, 5, 7))
        (2, 5, 7, 3)
        """
        return self.apply(shape)

    def permuted(self, dims: DimOrder) -> DimOrder:
        """Return the order of `x.permute(dims)` if this is the order of `x`: a relabel that moves no memory.

        >>> DimOrder.contiguous(4).permuted(DimOrder(0, 3, 1, 2))
        DimOrder(0, 2, 3, 1)
        """
        require_type(dims, DimOrder, f"{self!r}.permuted", "give a DimOrder")
        return dims.inverse.compose(self)

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the canonical strides, in elements: dense in this order.

        A size 0 counts as 1, as in torch.

        >>> DimOrder(1, 2, 3, 0).strides((2, 3, 5, 7))
        (1, 70, 14, 2)
        """
        self._check_rank(shape)
        strides, step = [0] * len(self.dims), 1
        for dim in reversed(self.dims):
            strides[dim] = step
            step *= max(1, shape[dim])
        return tuple(strides)

    def offset(self, index: Sequence[int], shape: Sequence[int]) -> int:
        """Return the offset of a logical index in the dense tensor of a logical shape, in elements.

        Raises:
            UsageError: if the index lies outside the shape; negative indices do.

        >>> DimOrder(0, 2, 3, 1).offset((1, 2, 3, 4), (2, 3, 5, 7))
        182
        """
        self._check_rank(index)
        if not all(0 <= i < size for i, size in zip(index, shape, strict=True)):
            raise UsageError(
                f"{self!r}.offset",
                f"index {tuple(index)} outside shape {tuple(shape)}",
                "index from 0 to size - 1",
            )
        return sum(i * stride for i, stride in zip(index, self.strides(shape), strict=True))

    def canonical(self, shape: Sequence[Any]) -> DimOrder:
        """Return the least order that means the same memory for `shape`.

        Dims of size 1 move to where they sort first. With a dim of size 0 every order means the same, empty,
        memory. A size that is not an int (a dynamic size) never counts as 1.

        >>> DimOrder(0, 2, 3, 1).canonical((8, 1, 3, 5)), DimOrder(0, 2, 3, 1).canonical((1, 3, "h", 1))
        (DimOrder(0, 1, 2, 3), DimOrder(0, 2, 1, 3))
        """
        self._check_rank(shape)
        if any(isinstance(size, int) and size == 0 for size in shape):
            return DimOrder.contiguous(len(self.dims))
        fixed = [dim for dim in self.dims if not _is_one(shape[dim])]
        free = [dim for dim in range(len(self.dims)) if _is_one(shape[dim])]
        # Merging the two fronts gives the least order: `fixed` is a chain, the free dims may stand anywhere.
        merged: list[int] = []
        while fixed and free:
            merged.append((fixed if fixed[0] < free[0] else free).pop(0))
        return DimOrder(*merged, *fixed, *free)

    def equivalent(self, other: DimOrder, shape: Sequence[Any]) -> bool:
        """Return whether both orders put every element of a dense tensor of `shape` in the same place.

        >>> nchw, nhwc = DimOrder(0, 1, 2, 3), DimOrder(0, 2, 3, 1)
        >>> [nchw.equivalent(nhwc, (2, channels, 5, 7)) for channels in (1, 3, "c")]
        [True, False, False]
        """
        require_type(other, DimOrder, f"{self!r}.equivalent", "give a DimOrder")
        return self.canonical(shape) == other.canonical(shape)

    def __repr__(self) -> str:
        return f"DimOrder({', '.join(map(str, self.dims))})"

    def __str__(self) -> str:
        return self.name

    def __len__(self) -> int:
        return len(self.dims)

    def __iter__(self) -> Iterator[int]:
        return iter(self.dims)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[int, ...]: ...
    def __getitem__(self, place: int | slice) -> int | tuple[int, ...]:
        return self.dims[place]

    def _check_rank(self, values: Sequence[object]) -> None:
        if not hasattr(values, "__len__"):
            found = f"a {type(values).__name__}, which has no entries"
            raise UsageError(repr(self), found, f"pass one entry for each of the {len(self.dims)} dims")
        if len(values) != len(self.dims):
            raise UsageError(
                repr(self),
                f"{tuple(values)}, which has {len(values)} entries for {len(self.dims)} dims",
                f"pass one entry for each of the {len(self.dims)} dims",
            )


def describe(order: DimOrder) -> str:
    """Return an order as text for a reader who may not know its name.

    >>> describe(DimOrder(0, 2, 3, 1)), describe(DimOrder(1, 0))
    ('NHWC (0, 2, 3, 1)', '(1, 0)')
    """
    return order.name if order.name == str(order.dims) else f"{order.name} {order.dims}"


def _is_one(size: object) -> bool:
    return isinstance(size, int) and size == 1


def _parse(spec: object, rank: int) -> DimOrder | None:
    if isinstance(spec, DimOrder):
        return spec
    if isinstance(spec, (tuple, list)):
        return DimOrder(*spec)
    text = str(spec).removeprefix("torch.")
    if text in ("contiguous", "contiguous_format"):
        return DimOrder.contiguous(rank)
    if text == "channels_last":
        return DimOrder.channels_last(rank)
    if text == "channels_last_3d":
        return DimOrder.channels_last(5)
    if text.upper() in NAMED_ORDERS:
        return DimOrder(*NAMED_ORDERS[text.upper()])
    digits = text.strip("()[] ").split(",")
    if all(digit.strip().isdecimal() for digit in digits):
        return DimOrder(*map(int, digits))
    return None
