"""Compute functions of one quantized value as tables: a number for each of the value's integers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor
from torch.fx import Node, map_arg

from dimorder.graph.elements import jumps, moves
from dimorder.graph.nodes import bound
from dimorder.graph.quantized import IntegerType, in_float32

aten = torch.ops.aten

# How near to an integer is an integer: a scale has 24 bits.
NEAR = MappingProxyType({torch.int8: 1e-5, torch.uint8: 1e-5, torch.int16: 4e-3})
# Of elements, by the place in their shape.
_KEEPS_SEQUENCE = (aten.view.default, aten.clone.default, aten._to_copy.default)


def dequantized_numbers(of: IntegerType, levels: Tensor | None = None) -> Tensor:
    """Return the numbers that integers of a type stand for; by default all, from the lowest on.

    >>> dequantized_numbers(IntegerType(torch.int8, 0.5, 126))[[0, -1]]
    tensor([-127.0000,    0.5000], dtype=torch.float64)
    """
    if levels is None:
        levels = torch.arange(of.low, of.high + 1, dtype=torch.float64)
    return (levels - of.zero_point) * in_float32(of.scale)


def computed(node: Node, numbers: Mapping[Node, Tensor], constants: Mapping[Node, Tensor]) -> Tensor:
    """Return the results of a call for numbers of each operand.

    PyTorch compares and rounds numbers of float32. Each constant has one element.
    """
    held = {**numbers, **{value: _wide(constant).reshape(()) for value, constant in constants.items()}}
    if node.meta["val"].dtype == torch.bool or jumps(node.target, node.kwargs):
        held = {value: each.float() if each.is_floating_point() else each for value, each in held.items()}
    args, kwargs = map_arg((node.args, node.kwargs), held.__getitem__)
    results: Tensor = node.target(*args, **kwargs)  # type: ignore[operator]
    return _wide(results)


def _wide(numbers: Tensor) -> Tensor:
    return numbers if numbers.dtype == torch.bool else numbers.double()


def levels_of(numbers: Tensor, of: IntegerType) -> Tensor:
    """Return the numbers in quanta of a type, before they are rounded."""
    return numbers / (in_float32(of.scale) or 1.0) + of.zero_point


def rounded_levels(numbers: Tensor, of: IntegerType) -> Tensor:
    """Return the integers of a type that stand for the nearest numbers. NaN becomes the integer of 0.

    >>> rounded_levels(torch.tensor([0.3, 99.0, torch.nan]), IntegerType(torch.int8, 0.5, 3))
    tensor([  4., 127.,   3.])
    """
    real = numbers / in_float32(of.scale)
    return torch.where(real.isnan(), 0.0, real).round().add(of.zero_point).clamp(of.low, of.high)


def slope_of(numbers: Tensor) -> float:
    """Return the mean difference of neighbours."""
    return float(numbers[-1] - numbers[0]) / (len(numbers) - 1)


def is_smooth(numbers: Tensor) -> bool:
    """Return whether numbers have no step: all are finite, and no difference of neighbours is large.

    A large difference is a thousandth of the largest number, and four times that of each neighbour.

    >>> x = torch.arange(-2000, 2001, dtype=torch.float64)
    >>> is_smooth(x.abs()), is_smooth(torch.where(x > 5, x, x - 9)), is_smooth(1 / x)
    (True, False, False)
    """
    if numbers.dtype == torch.bool or not bool(numbers.isfinite().all()):
        return False
    apart = numbers.diff().abs()
    near = torch.maximum(apart.roll(1), apart.roll(-1))
    return not bool(((apart > numbers.abs().max() * 2**-10) & (apart > 4 * near)).any())


def with_finite_ends(numbers: Tensor, reach: tuple[int, int] | None) -> Tensor:
    """Return numbers, with the nearest one in reach for each out of reach, unless all are finite.

    >>> with_finite_ends(torch.tensor([-2.0, -1.0, 1.0, 2.0]).log(), (2, 3))
    tensor([0.0000, 0.0000, 0.0000, 0.6931])
    """
    if reach is None or numbers.dtype == torch.bool or bool(numbers.isfinite().all()):
        return numbers
    return numbers[torch.arange(len(numbers)).clamp(*reach)]


def exact_type(of: IntegerType, numbers: Tensor) -> IntegerType | None:
    """Return the type of integers that stand for the numbers exactly, or None.

    That is the source's type, or the source's with another scale.

    Args:
        of: the type of the integers that the numbers are a function of.
        numbers: the number for each integer.

    >>> of = IntegerType(torch.int8, 0.5, 3)
    >>> exact_type(of, 2 * dequantized_numbers(of)).scale, exact_type(of, dequantized_numbers(of).exp())
    (1.0, None)
    """
    for scale in (of.scale, slope_of(numbers)):
        found = replace(of, scale=scale)
        levels = levels_of(numbers, found)
        whole = levels.round()
        near = bool(((levels - whole).abs() < NEAR[of.dtype]).all())
        # a TABLE of int16 interpolates, so only the same integers will do, or clamped ones
        if of.dtype == torch.int16:
            own = torch.arange(of.low, of.high + 1, dtype=torch.float64)
            near = near and torch.equal(whole, own.clamp(float(whole.min()), float(whole.max())))
        if scale > 0 and near and of.low <= float(whole.min()) and float(whole.max()) <= of.high:
            return found
    return None


def position_key(value: Node, moved: Hashable = None) -> Hashable:
    """Return a key of the elements of a value by their places, which is the same after moves that cancel out.

    Args:
        value: the value.
        moved: the key of its operand, if the value only moves the elements of one operand.
    """
    shape = tuple(value.meta["val"].shape)
    if not isinstance(moved, tuple):
        return value, shape
    root, before = moved
    if value.target in _KEEPS_SEQUENCE or _moves_only_ones(value, before):
        return root, shape
    rest = [each if not isinstance(each, Node) else "" for each in value.args]
    return (value.target, moved, str(rest), str(value.kwargs)), shape


def _moves_only_ones(value: Node, shape: tuple[int, ...]) -> bool:
    """Return whether a call is a permute of which only dimensions of 1 change places."""
    if value.target is not aten.permute.default:
        return False
    dims = [d % len(shape) for d in bound(value.target, value.args, value.kwargs)["dims"]]
    return not moves(dims, shape)
