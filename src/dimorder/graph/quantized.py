"""Say which numbers quantized integers stand for: those of a value, by its type, and those of a constant.

A `Scaled` is a float tensor that carries its integers and scales through views, permutes and other moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # defines quantize and dequantize
import torch.utils._pytree as pytree
from torch import Tensor

from dimorder.contract import range_of
from dimorder.graph.elements import function_copies, function_moves
from dimorder.graph.nodes import bound

QUANTIZE = torch.ops.quantized_decomposed.quantize_per_tensor.default
DEQUANTIZE = torch.ops.quantized_decomposed.dequantize_per_tensor.default
DEQUANTIZE_CHANNELS = torch.ops.quantized_decomposed.dequantize_per_channel.default  # only of constants


@dataclass(frozen=True)
class IntegerType:
    """A type of quantized integers: an integer q stands for (q − zero_point) · scale."""

    dtype: torch.dtype
    scale: float
    zero_point: int

    @property
    def low(self) -> int:
        """The smallest integer."""
        return range_of(self.dtype)[0]

    @property
    def high(self) -> int:
        """The largest integer."""
        return range_of(self.dtype)[1]

    @property
    def reach(self) -> int:
        """The largest distance between an integer and the zero point."""
        return max(self.high - self.zero_point, self.zero_point - self.low)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of quantize and dequantize after the value."""
        return (self.scale, self.zero_point, self.low, self.high, self.dtype)

    def as_type(self, dtype: torch.dtype) -> IntegerType:
        """Return the integer type of another dtype that stands for the same numbers.

        >>> IntegerType(torch.int8, 0.5, -1).as_type(torch.uint8)
        IntegerType(dtype=torch.uint8, scale=0.5, zero_point=127)
        """
        moved = range_of(dtype)[0] - self.low
        return IntegerType(dtype, self.scale, self.zero_point + moved)


def in_float32(scale: float) -> float:
    """Return a scale as float32 tensors are multiplied by it: times an integer it is exact in float64."""
    return float(torch.tensor(scale, dtype=torch.float32))


def level_of(number: float, of: IntegerType) -> int | None:
    """Return the integer that stands for a number exactly, or None.

    >>> level_of(1.5, IntegerType(torch.int8, 0.5, 3)), level_of(1.6, IntegerType(torch.int8, 0.5, 3))
    (6, None)
    >>> level_of(-math.inf, IntegerType(torch.int8, 0.5, 3)) is None
    True
    """
    level = number / in_float32(of.scale) + of.zero_point
    if not math.isfinite(level):
        return None
    whole = round(level)
    return whole if abs(level - whole) <= 1e-6 and of.low <= whole <= of.high else None


def level_bounds(low: float, high: float, of: IntegerType) -> tuple[int, int]:
    """Return the least and the largest integer that numbers between two bounds are rounded to.

    >>> level_bounds(0.0, 6.0, IntegerType(torch.int8, 0.0625, -100))
    (-100, -4)
    """
    levels = (bound / in_float32(of.scale) + of.zero_point for bound in (low, high))
    least, most = (round(min(max(level, of.low), of.high)) for level in levels)
    return least, most


@dataclass(frozen=True)
class Integers:
    """The integers and scales of a constant, which is (`values` − `zero_point`) · `scales`.

    `values` and `scales` have the constant's shape.
    """

    values: Tensor
    scales: Tensor
    zero_point: int = 0

    @property
    def scale(self) -> float | None:
        """The scale of all values, or None if scales differ."""
        scales = _held(self.scales)
        first = float(scales.flatten()[0])
        return first if bool((scales == first).all()) else None

    @property
    def type(self) -> IntegerType | None:
        """The type of the values with their scale, or None if scales differ."""
        scale = self.scale
        return None if scale is None else IntegerType(self.values.dtype, scale, self.zero_point)

    def per_channel(self) -> tuple[Tensor, int] | None:
        """Return the scales along the only dimension in which they differ, and that dimension (0 by default).

        >>> scales = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
        >>> Integers(torch.ones(2, 2, dtype=torch.int8), scales).per_channel()
        (tensor([1., 2.]), 0)
        """
        for dim in range(self.scales.dim()):
            scales = self.along(dim)
            if scales is not None:
                return scales, dim
        return None

    def group_size(self) -> int | None:
        """Return how many neighbours along the last dimension of a matrix share a scale; None for others.

        >>> scales = torch.tensor([[1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 3.0, 3.0]])
        >>> Integers(torch.ones(2, 4, dtype=torch.int8), scales).group_size()
        2
        """
        if self.scales.dim() != 2:
            return None
        scales = _held(self.scales)
        changes = (scales[:, 1:] != scales[:, :-1]).any(0).nonzero().flatten() + 1
        return math.gcd(self.scales.shape[1], *changes.tolist())

    def along(self, dim: int) -> Tensor | None:
        """Return the scales along a dimension, or None if they also differ along another one."""
        sizes, strides = self.scales.shape, self.scales.stride()
        if all(strides[d] == 0 or sizes[d] == 1 for d in range(len(sizes)) if d != dim):  # it is expanded
            return self.scales[
                tuple(slice(None) if d == dim else 0 for d in range(self.scales.dim()))
            ].contiguous()
        along = self.scales.movedim(dim, 0).reshape(self.scales.shape[dim], -1)
        return along[:, 0].contiguous() if bool((along == along[:, :1]).all()) else None


class Scaled(torch.Tensor):
    """A float constant that carries its integers, which follow it through moves of elements.

    An operator that computes with it sees a float tensor and returns one.

    >>> integers = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int8)
    >>> weight = Scaled.of(integers, torch.tensor([[0.5], [0.25]]))
    >>> moved = weight.permute(1, 0).reshape(3, 1, 2)
    >>> moved.flatten().tolist(), moved.integers.values.flatten().tolist()
    ([0.5, 1.0, 1.0, 1.25, 1.5, 1.5], [1, 4, 2, 5, 3, 6])
    >>> type(moved + 1).__name__
    'Tensor'
    """

    integers: Integers

    @cached_property
    def in_float64(self) -> Tensor:
        """The constant in float64: its integers times their scales, if these lie along one dimension.

        >>> weight = Scaled.of(torch.tensor([[3], [5]], dtype=torch.int8), torch.tensor([[0.1], [0.2]]))
        >>> (weight.in_float64 / weight.integers.scales.double()).tolist()
        [[3.0], [5.0]]
        """
        channels = self.integers.per_channel()
        if channels is None:
            return self.as_subclass(Tensor).double()
        scales, dim = channels
        return dequantize_in_float64(self.integers.values, scales, self.integers.zero_point, dim)

    def forget_float64(self) -> None:
        """Release `in_float64`, which takes eight bytes for each element. It is computed again if needed."""
        vars(self).pop("in_float64", None)

    @staticmethod
    def of(values: Tensor, scales: Tensor, zero_point: int = 0, dtype: torch.dtype = torch.float32) -> Scaled:
        """Return (`values` − `zero_point`) · `scales`; scales broadcast to the shape of the integers."""
        values, scales = values.detach(), scales.detach().to(torch.float32).expand(values.shape)
        real = (values.to(torch.float32) - zero_point) * scales
        return _with_integers(real.to(dtype), Integers(values, scales, zero_point))

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*_plain(args), **_plain(kwargs or {}))
            first = args[0] if args else None
            if not isinstance(first, Scaled) or not function_moves(func):
                return result

            def moved(part: Tensor) -> Any:
                return func(part, *_plain(args[1:]), **_plain(kwargs or {}))

            def joined(real: Any, values: Any, scales: Any) -> Any:
                integers = Integers(values, _repeated(scales), first.integers.zero_point)
                return _with_integers(real, integers) if isinstance(real, Tensor) else real

            values, scales = first.integers.values, first.integers.scales
            # A copy would write a scale for each element.
            scales = scales if function_copies(func) else moved(scales)
            return pytree.tree_map(joined, result, moved(values), scales)


def dequantize_in_float64(
    values: Tensor, scales: Tensor, zero_points: Tensor | int | None, axis: int
) -> Tensor:
    """Return (`values` − `zero_points`) · `scales` in float64, with scales and zero points along `axis`.

    A single element is the number of float32 with which PyTorch computes: a half of a value is its half.

    >>> dequantize_in_float64(torch.tensor([127]), torch.tensor([1 / 254]), None, 0)
    tensor([0.5000], dtype=torch.float64)
    >>> _.item()
    0.5
    """
    along = [-1 if d == axis else 1 for d in range(values.dim())]
    real = values.to(torch.float64, copy=True)  # changed in place: a table of weights may be large
    if isinstance(zero_points, Tensor):
        real.sub_(zero_points.reshape(along))
    elif zero_points:
        real.sub_(zero_points)
    real.mul_(scales.double().reshape(along))
    return real.float().double() if real.numel() == 1 else real


def are_equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two constants are the same numbers of the same type, and carry the same integers.

    >>> ones = torch.ones(2)
    >>> are_equal(ones, torch.ones(2)), are_equal(ones, ones.double())
    (True, False)
    >>> weight = Scaled.of(torch.ones(2, dtype=torch.int8), torch.ones(()))
    >>> are_equal(ones, weight), are_equal(weight, Scaled.of(torch.ones(2, dtype=torch.int8), torch.ones(())))
    (False, True)
    >>> are_equal(torch.tensor(torch.nan), torch.tensor(torch.nan))
    True
    """
    if a is b:
        return True
    if a.dtype != b.dtype or isinstance(a, Scaled) != isinstance(b, Scaled):
        return False
    if not isinstance(a, Scaled) or not isinstance(b, Scaled):
        may_be_nan = a.is_floating_point() and a.shape == b.shape
        return torch.equal(a, b) or (may_be_nan and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
    ours, theirs = a.integers, b.integers
    return (
        ours.zero_point == theirs.zero_point
        and ours.values.dtype == theirs.values.dtype
        and torch.equal(ours.values, theirs.values)
        and ours.scales.shape == theirs.scales.shape
        and bool((_held(ours.scales) == _held(theirs.scales)).all())
    )


def equal_ones(tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return those of the other tensors that are equal to the tensors of their names.

    Who reads them instead shares their memory.
    """
    return {
        name: others[name]
        for name, tensor in tensors.items()
        if name in others and are_equal(others[name], tensor)
    }


def _held(scales: Tensor) -> Tensor:
    """Return scales with a size of 1 along each dimension along which they are held once."""
    for dim, stride in enumerate(scales.stride()):
        scales = scales if stride else scales.narrow(dim, 0, 1)
    return scales


def _repeated(scales: Tensor) -> Tensor:
    """Return the same scales with equal ones along a dimension held once: reshapes may write all.

    >>> written = torch.tensor([[1.0], [2.0]]).expand(2, 3).clone()
    >>> _repeated(written).stride(), torch.equal(_repeated(written), written)
    ((1, 0), True)
    """
    held = _held(scales)
    for dim, size in enumerate(held.shape):
        first, last = held.narrow(dim, 0, 1), held.narrow(dim, size - 1, 1)
        # Where the last one differs, no other is compared.
        if torch.equal(first, last) and bool((held == first).all()):
            held = first
    if held.untyped_storage().nbytes() > held.nbytes:
        held = held.clone()
    return held.expand(scales.shape)


def _with_integers(real: Tensor, integers: Integers) -> Scaled:
    scaled = real.as_subclass(Scaled)
    scaled.integers = integers
    return scaled


def _plain(arguments: Any) -> Any:
    return pytree.tree_map_only(Scaled, lambda x: x.as_subclass(Tensor), arguments)


def evaluate(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Evaluate an operator on constants; a dequantize keeps the integers.

    A constant may have other strides than the tensor that was traced in its place, which no view could have.
    """
    if target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        target = torch.ops.aten.reshape.default
    with torch.no_grad():
        scaled = _dequantize(target, args, kwargs)
        if scaled is not None:
            return scaled
        if target is not torch.ops.aten.linear.default or not _repeats_one(args[0]):
            return target(*args, **kwargs)
        x, *others = args
        one = target(x[:1], *others, **kwargs)
        return one.expand(len(x), *one.shape[1:]).contiguous()


def _repeats_one(x: Tensor) -> bool:
    """Return whether a constant is one item, repeated along its first dimension.

    A product of more rows adds up in another sequence. The item would be another one at each dynamic size.
    """
    return x.dim() > 1 and len(x) > 1 and not isinstance(x, Scaled) and bool((x == x[:1]).all())


def _dequantize(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Scaled | None:
    """Return the result of a dequantize with one zero point, or None for any other call."""
    name = f"{target.namespace}.{target._opname}" if isinstance(target, torch._ops.OpOverload) else ""
    if name not in _DEQUANTIZES:
        return None
    given = bound(target, args, kwargs)
    values, dim = given["input"], given.get("axis")
    dtype = _dtype(given.get("out_dtype", given.get("output_dtype")))
    scales, zeros = (given.get(n, given.get(f"{n}s")) for n in ("scale", "zero_point"))
    scales, zeros = (None if each is None else torch.as_tensor(each) for each in (scales, zeros))
    zero_point = 0 if zeros is None else int(zeros.flatten()[0])
    several = zeros is not None and bool((zeros != zero_point).any())  # no target computes with these
    if scales is None or values.is_floating_point() or several:
        return None
    if name == "torchao.dequantize_affine":
        return Scaled.of(values, _of_blocks(scales, given["block_size"], values.shape), zero_point, dtype)
    shape = [1] * values.dim()
    if scales.numel() > 1:
        shape[dim or 0] = -1
    return Scaled.of(values, scales.reshape(shape), zero_point, dtype)


def _dtype(given: torch.dtype | int | None) -> torch.dtype:
    """Return the type of a dequantize's result; none, or a number as the default of a schema, is float32."""
    return given if isinstance(given, torch.dtype) else torch.float32


def _of_blocks(scales: Tensor, block: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Expand one scale per block to one scale per element."""
    counts = [size // each for size, each in zip(shape, block, strict=True)]
    spread = scales.reshape([n for count in counts for n in (count, 1)])
    return spread.expand([n for pair in zip(counts, block, strict=True) for n in pair]).reshape(*shape)


_DEQUANTIZES = (
    *("quantized_decomposed.dequantize_per_tensor", "quantized_decomposed.dequantize_per_channel"),
    "torchao.dequantize_affine",
)
