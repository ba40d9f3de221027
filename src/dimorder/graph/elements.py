"""Classify operators by their effect on the elements of their operands, and list those that move them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

import torch

aten = torch.ops.aten


class Elements(Enum):
    """The effect of an operator on the elements of its operands, in any of its calls."""

    RELABELS = "gives each element of its operand once, as a chain of reshapes and permutes does"
    MOVES = "gives each element of its operands at most once"
    REPEATS = "gives each element of its first operand any number of times, at places that no value decides"
    GATHERS = "gives elements of its first operand, at positions that another operand says"
    SCATTERS = "gives its first operand with other elements, at positions that another operand says"
    PADS = "gives its operand with a constant around it, or cropped"
    SELECTS = "gives one element of each window of its operand: the largest or the nearest"
    CLAMPS = "gives each element, or the bound that it is beyond"
    POINTWISE = "computes each element from the elements at the same place"
    REDUCES = "computes one element from all along some dimensions"
    MIXES = "computes each element from all along some dimensions"
    FILTERS = "computes each element as a weighted sum of its neighbours"
    CONTRACTS = "computes sums of products of two operands"
    UNKNOWN = "computes anything"

    @property
    def moves(self) -> bool:
        """Whether each result is an element of an operand, at a place that no value decides."""
        return self in (Elements.RELABELS, Elements.MOVES, Elements.REPEATS)

    @property
    def is_pointwise(self) -> bool:
        """Whether each result is computed from the elements at the same place."""
        return self in (Elements.POINTWISE, Elements.CLAMPS)


# The operators that give each element of their operand at its place.
COPIES = (
    *(aten.alias.default, aten.clone.default, aten.contiguous.default),
    *(aten.detach.default, aten.detach_.default, aten.lift_fresh_copy.default),
)
# The operators that give each element at its place in another type, or on another device.
CASTS = (
    *(aten._to_copy.default, aten.type_as.default),
    *(aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.other),
)
AT_THEIR_PLACES = frozenset({*COPIES, *CASTS})
# The operators that move elements.
MOVERS: Mapping[Any, Elements] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *COPIES,
                *(aten.reshape.default, aten.view.default, aten._unsafe_view.default),
                *(aten.flatten.using_ints, aten.unflatten.int, aten.unsqueeze.default),
                *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
                *(aten.permute.default, aten.transpose.int, aten.t.default, aten.mT.default),
                *(aten.movedim.int, aten.movedim.intlist, aten.moveaxis.int, aten.moveaxis.intlist),
                *(aten.swapaxes.default, aten.swapdims.default),
                *(aten.pixel_shuffle.default, aten.pixel_unshuffle.default),
                *(aten.channel_shuffle.default, aten.native_channel_shuffle.default),
            ),
            Elements.RELABELS,
        ),
        **dict.fromkeys(
            (
                *(aten.slice.Tensor, aten.select.int, aten.narrow.default, aten.chunk.default),
                *(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int),
                *(aten.cat.default, aten.stack.default, aten.flip.default, aten.roll.default),
            ),
            Elements.MOVES,
        ),
        **dict.fromkeys(
            (
                *(aten.expand.default, aten.expand_as.default, aten.broadcast_to.default),
                *(aten.repeat.default, aten.tile.default, aten.repeat_interleave.self_int),
                *(aten.index_select.default, aten.unfold.default),
                *(aten.reflection_pad1d.default, aten.replication_pad1d.default),
                *(aten.reflection_pad2d.default, aten.replication_pad2d.default),
                *(aten.reflection_pad3d.default, aten.replication_pad3d.default),
            ),
            Elements.REPEATS,
        ),
    }
)
# The operators whose result jumps where an operand passes a number.
_JUMPS = frozenset(
    (
        *(aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.isclose),
        *(aten.bucketize, aten.searchsorted, aten.logical_not),
        *(aten.floor, aten.ceil, aten.trunc, aten.round, aten.frac, aten.remainder, aten.fmod),
        *(aten.floor_divide, aten.sign, aten.sgn, aten.signbit, aten.heaviside),
        *(aten.threshold, aten.hardshrink),
    )
)
_NAMES = frozenset((*(overload._opname for overload in MOVERS), "__getitem__"))
_NAMES_OF_COPIES = frozenset(overload._opname for overload in COPIES)


def function_moves(function: Any) -> bool:
    """Return whether a function or method of torch, or an operator, moves elements.

    A function, a method and an ATen operator of one name do the same.

    >>> [function_moves(f) for f in (torch.Tensor.permute, torch.flip, aten.narrow.default, torch.exp)]
    [True, True, True, False]
    """
    return _name_of(function) in _NAMES


def function_copies(function: Any) -> bool:
    """Return whether a function or method of torch, or an operator, gives each element at its place.

    >>> [function_copies(f) for f in (torch.clone, torch.Tensor.contiguous, torch.Tensor.permute)]
    [True, True, False]
    """
    return _name_of(function) in _NAMES_OF_COPIES


def jumps(operator: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether the result of an operator jumps where an operand passes a number.

    Args:
        operator: the operator.
        arguments: its keyword arguments.

    >>> [jumps(f, {}) for f in (aten.gt.Scalar, aten.floor.default, aten.relu.default)]
    [True, True, False]
    >>> jumps(aten._to_copy.default, {"dtype": torch.int32})
    True
    >>> jumps(aten.div.Scalar_mode, {"rounding_mode": "floor"})
    True
    """
    dtype = arguments.get("dtype")
    to_integers = isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex)
    rounded = arguments.get("rounding_mode") is not None
    return to_integers or rounded or getattr(operator, "overloadpacket", None) in _JUMPS


def _name_of(function: Any) -> str:
    return str(getattr(function, "_opname", None) or getattr(function, "__name__", ""))


def moves(dims: Sequence[int], shape: Sequence[object]) -> bool:
    """Return whether a permutation of the dimensions moves more than dimensions of size 1.

    Args:
        dims: the dimensions that the result has, by their places in `shape`.
        shape: the shape before.

    >>> moves((0, 2, 1), (2, 1, 3)), moves((1, 0, 2), (2, 5, 3))
    (False, True)
    """
    kept = [d for d in dims if shape[d] != 1]
    return kept != sorted(kept)
