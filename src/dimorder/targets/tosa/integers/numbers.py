"""Represent the program's floats in a graph of integers: as integers that stand for numbers.

A dequantised value stays the int8 that it came from, with a number for each of the 256. A function of it,
element by element, only changes these numbers, and writes no operator. A sum is int32 with scales. Both are
written when they are quantised: by one RESCALE, CLAMP or TABLE.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dimorder.errors import UnsupportedError
from dimorder.graph.integer_type import IntegerType
from dimorder.targets.table import View
from dimorder.targets.tosa.integers.forms import Forms
from dimorder.targets.tosa.integers.interpolation import Interpolated
from dimorder.targets.tosa.integers.lanes import dimensions_to_merge
from dimorder.targets.tosa.integers.permutation import permuted
from dimorder.targets.tosa.moves import tile
from dimorder.targets.tosa.rescale import fits, relative_error, rescale, rescaled
from dimorder.targets.tosa.writer import DTYPES, WIDEST, TosaValue, TosaWriter
from dimorder.verification.float64_interpreter import in_float32

BITS = 28  # of a sum: RESCALE takes values below 2^(shift - 1), so that no result may reach 2^29
GRID = 19  # of a sum's finest operand: Ethos-U55 adds int8 on a grid of as many bits in one operator
FINE = 2**15  # steps of a function's numbers, besides the sign
PLAIN = Forms()
CLOSER = (2, 4, 8, 16, 32, 64, 128)  # times as close
ENOUGH = 2**-14  # of a function's largest number: the allowed error of a table, a step or two of 16 bits
COARSE = 2**-8  # of a function's largest number: int8 would be no worse
NEAR = {torch.int8: 1e-5, torch.int16: 4e-3}  # to an integer: a scale has 24 bits
EXACT = 2**24  # steps of a constant's magnitude: a float32 has no more


@dataclass(frozen=True, eq=False)
class Lookup:
    """A function of int8 values: the integers, what they stand for, and `numbers[i - low]` for integer i."""

    integers: TosaValue
    of: IntegerType
    numbers: Tensor

    @staticmethod
    def dequantised(integers: TosaValue, of: IntegerType) -> Lookup:
        levels = torch.arange(of.low, of.high + 1, dtype=torch.float64)
        return Lookup(integers, of, (levels - of.zero_point) * in_float32(of.scale))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.integers.shape

    @property
    def most(self) -> float:
        """Return the largest magnitude."""
        return largest(self.numbers)

    def with_integers(self, integers: TosaValue) -> Lookup:
        return replace(self, integers=integers)


@dataclass(frozen=True, eq=False)
class Accumulator:
    """32-bit integers, each of which stands for itself times a scale, clipped between two bounds.

    `scales` broadcast against the last dimensions. `limit` is the largest magnitude of the integers. `error`
    is the possible error of the numbers after a TABLE that interpolates.
    """

    integers: TosaValue
    scales: Tensor
    limit: int
    low: float = -math.inf
    high: float = math.inf
    error: float = 0.0

    def __post_init__(self) -> None:
        bits = 48 if self.integers.dtype == "INT48" else 32
        if self.limit >= 2 ** (bits - 1):
            found = f"integers up to {self.limit:.2e}, where TOSA adds in {bits} bits"
            raise UnsupportedError("a sum", found, "use fewer terms")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.integers.shape

    @property
    def most(self) -> float:
        return min(self.limit * float(self.scales.max()), max(abs(self.low), abs(self.high)))

    def with_integers(self, integers: TosaValue) -> Accumulator:
        return replace(self, integers=integers)


def largest(numbers: Tensor) -> float:
    """Return the largest magnitude; refuse numbers that are not finite."""
    most = float(numbers.abs().max())
    if not math.isfinite(most):
        raise UnsupportedError("an operand", "a function that is not finite everywhere", "quantise it")
    return most


Numbers = Lookup | Accumulator
Operand = Lookup | Accumulator | Tensor  # a tensor is a constant


class IntegerWriter(TosaWriter):
    """A writer whose values may be numbers that integers stand for.

    Equal operators are written again. Vela makes a RESCALE a part of its reader, and so estimates fewer
    cycles (8 % for a vision transformer). Operators that nothing reads are omitted in the end.

    `padded` maps the result of a padding to its operand, the padding before each dimension, and the fill.
    `shortcuts` maps the tensor of a sum to a function that writes it with fewer operators, for a type for
    which that is exact. `errors` are the quanta by which int16 tensors may be off the nearest integers.
    `forms` are the chosen alternatives among operators that give the same integers.
    """

    def __init__(self, forms: Forms = PLAIN) -> None:
        super().__init__()
        self.forms = forms
        self.padded: dict[TosaValue, tuple[TosaValue, Sequence[int], float]] = {}
        self.shortcuts: dict[str, Callable[[Accumulator, IntegerType], TosaValue | None]] = {}
        self.errors: dict[str, float] = {}

    def reshape(self, value: Any, shape: Sequence[int]) -> Any:
        if isinstance(value, TosaValue):
            return super().reshape(value, shape)
        if isinstance(value, Accumulator) and value.scales.numel() > 1:
            return _reshaped(self, value, shape)
        return value.with_integers(super().reshape(value.integers, shape))

    def dense(self, operand: Any) -> Any:
        if isinstance(operand, View) and operand.is_dense and not isinstance(operand.value, TosaValue):
            return self.reshape(operand.value, operand.shape)
        return self._as_integers(super().dense, operand)

    def transposed(self, view: Any) -> Any:
        return self._as_integers(self._moved, view)

    def _moved(self, view: View[TosaValue]) -> TosaValue:
        if self.forms.permutes_by_products and not view.is_dense and view not in self._transposed:
            made = permuted(self, view)
            if made is not None:
                self._transposed[view] = made
        return super().transposed(view)

    def _as_integers(self, function: Any, operand: Any) -> Any:
        if not isinstance(operand, View) or isinstance(operand.value, TosaValue):
            return function(operand)
        held: Any = operand.value
        alone = isinstance(held, Accumulator) and (held.scales.numel() > 1 or held.integers.dtype == "INT48")
        if alone and not operand.is_dense:  # its scales are along a dimension, or only RESCALE reads it
            held = uniform(self, held)
        return held.with_integers(function(View(held.integers, operand.order)))


def _reshaped(w: IntegerWriter, x: Accumulator, shape: Sequence[int]) -> Accumulator:
    """Reshape a sum.

    Keep its scales if they are along the last dimensions after it too, else use one scale.
    """
    differing = x.shape[len(x.shape) - x.scales.dim() :]
    count, kept = 1, len(shape)
    while count < math.prod(differing) and kept:
        kept -= 1
        count *= shape[kept]
    if count != math.prod(differing):
        return w.reshape(uniform(w, x), shape)  # type: ignore[no-any-return]
    scales = x.scales.expand(differing).reshape(tuple(shape[kept:]))
    return replace(x, integers=TosaWriter.reshape(w, x.integers, shape), scales=scales)


# -- integers of a program's numbers -----------------------------------------------------------------------


def quantised(w: IntegerWriter, x: Numbers, to: IntegerType) -> TosaValue:
    """Return the integers of that type that stand for the nearest numbers. NaN becomes the integer of 0."""
    scale = in_float32(to.scale)
    if isinstance(x, Lookup):
        real = torch.where(x.numbers.isnan(), 0.0, x.numbers / scale)
        levels = real.round().add(to.zero_point).clamp(to.low, to.high)
        y = looked_up(w, x.integers, levels, x.of, _slope(real), to)
        held = real.clamp(to.low - to.zero_point, to.high - to.zero_point) * scale
        return quantised(w, in_halves(w, replace(x, numbers=held)), to) if y is None else y
    shortcut = w.shortcuts.get(x.integers.tensor)
    y = None if shortcut is None else shortcut(x, to)
    if y is None:
        if x.scales.dim() > 1 and x.scales.shape[-1] != x.shape[-1]:
            x = uniform(w, x)
        y = _rescaled(w, x, x.scales / scale, DTYPES[to.dtype], to.zero_point)
    y = TosaWriter.reshape(w, y, x.shape)
    low, high = (round(min(max(bound / scale + to.zero_point, to.low), to.high)) for bound in (x.low, x.high))
    y = _clamped(w, y, low, high)
    reach = min(x.most, scale * to.reach)
    off = x.error + relative_error(x.integers.dtype, x.scales / scale) * reach
    if off:
        w.errors[y.tensor] = off / scale
    return y


def looked_up(
    w: IntegerWriter, x: TosaValue, levels: Tensor, of: IntegerType, slope: float, to: IntegerType
) -> TosaValue | None:
    """Return `levels` of `to` by the cheapest operator that gives exactly these.

    That is none, CLAMP, RESCALE, RESCALE and CLAMP, or TABLE. Returns None if there is none, since a TABLE of
    int16 interpolates. `slope` is that of the line on which the levels may be.
    """
    own = torch.arange(of.low, of.high + 1)
    ends = int(levels.min()), int(levels.max())
    if of.dtype == to.dtype and torch.equal(levels, own.clamp(*ends).double()):
        return _clamped(w, x, *(ends if ends != (of.low, of.high) else _reach(x.dtype)))
    in_bytes = of.dtype == to.dtype == torch.int8
    if not in_bytes:  # clipped ends say nothing about the line
        middle = (levels > ends[0]) & (levels < ends[1])
        slope = _slope(levels[middle]) if int(middle.sum()) > 1 else slope
    if fits(slope):
        dtype, line = DTYPES[to.dtype], rescaled(own, [slope], of.zero_point, to.zero_point)
        exact = torch.equal(levels, line.clamp(*_reach(dtype)).double())
        if exact or (not in_bytes and torch.equal(levels, line.clamp(*ends).double())):
            y = rescale(w, x, [slope], dtype, zero_point=of.zero_point, to_zero_point=to.zero_point)
            return y if exact else _clamped(w, y, *ends)
    if not in_bytes:
        return None
    table = w.constant(levels.to(torch.int8))
    return w.op("TABLE", [x, table], x.shape, "INT8")


def _slope(numbers: Tensor) -> float:
    return float(numbers[-1] - numbers[0]) / (len(numbers) - 1)


def _clamped(w: IntegerWriter, x: TosaValue, low: int, high: int) -> TosaValue:
    if (low, high) == _reach(x.dtype):
        return x
    size = 1 if x.dtype == "INT8" else 2
    low_bytes, high_bytes = (list(end.to_bytes(size, "little", signed=True)) for end in (low, high))
    return w.op("CLAMP", [x], x.shape, min_val=low_bytes, max_val=high_bytes)


def _reach(dtype: str) -> tuple[int, int]:
    """Return the least and the largest integer of a type."""
    held = torch.iinfo(WIDEST[dtype])
    return held.min, held.max


def as_integers(w: IntegerWriter, x: Operand) -> tuple[TosaValue, IntegerType]:
    """Return the integers that stand for the numbers exactly, and their type.

    Refuse numbers without such integers.
    """
    if not isinstance(x, Lookup):
        found = "a constant" if isinstance(x, Tensor) else "a sum"
        raise UnsupportedError("an operand", f"{found} that is not quantised", "quantise it")
    of = _type(x)
    if of is None:
        raise UnsupportedError("an operand", "a function of it that is not quantised", "quantise it")
    integers = looked_up(w, x.integers, _levels(x, of).round(), x.of, 1.0, of)
    assert integers is not None
    return integers, of


def as_bytes(w: IntegerWriter, x: Operand) -> tuple[TosaValue, IntegerType]:
    """Return the same as `as_integers`, but refuse 16 bits."""
    integers, of = as_integers(w, x)
    if of.dtype != torch.int8:
        raise UnsupportedError(
            "an operand", f"{of.dtype}, where this is computed of int8 alone", "quantise it so"
        )
    return integers, of


def has_integers(x: Lookup) -> bool:
    """Return whether integers of the source's type stand for the numbers exactly."""
    return _type(x) is not None


def _type(x: Lookup) -> IntegerType | None:
    """Return the type of such integers: the source's, or the source's with another scale."""
    for scale in (x.of.scale, _slope(x.numbers)):
        of = replace(x.of, scale=scale)
        levels = _levels(x, of)
        whole = levels.round()
        near = bool(((levels - whole).abs() < NEAR[x.of.dtype]).all())
        # a TABLE of int16 interpolates, so only the same integers will do, or clamped ones
        if x.of.dtype == torch.int16:
            own = torch.arange(of.low, of.high + 1, dtype=torch.float64)
            near = near and torch.equal(whole, own.clamp(float(whole.min()), float(whole.max())))
        if scale > 0 and near and of.low <= float(whole.min()) and float(whole.max()) <= of.high:
            return of
    return None


def _levels(x: Lookup, of: IntegerType) -> Tensor:
    return x.numbers / (in_float32(of.scale) or 1.0) + of.zero_point


def as_sum(w: IntegerWriter, x: Operand) -> Accumulator:
    """Return the numbers as int32 with one scale, without a zero point."""
    if isinstance(x, Tensor):
        most = largest(x) or 1.0
        integers = w.constant((x.double() * (EXACT / most)).round().to(torch.int32))
        return Accumulator(integers, torch.tensor(most / EXACT, dtype=torch.float64), EXACT)
    if isinstance(x, Accumulator):
        return uniform(w, x)
    if not has_integers(x):
        return in_halves(w, x)
    integers, of = as_integers(w, x)
    value = rescale(w, integers, [1.0], "INT32", zero_point=of.zero_point)
    return Accumulator(value, torch.tensor(in_float32(of.scale), dtype=torch.float64), of.reach)


def in_halves(w: IntegerWriter, x: Lookup, scale: float | None = None) -> Accumulator:
    """Return any function in 16 bits.

    For int8 one TABLE gives the upper eight bits and another the lower eight.
    """
    if x.of.dtype == torch.int16:
        return _of_16_bits(w, x)
    scale = (x.most or 1.0) / (FINE - 1) if scale is None else scale
    integers = (x.numbers / scale).round().to(torch.int64)
    parts = []
    for levels, factor, zero_point in ((integers >> 8, 256.0, 0), ((integers & 255) - 128, 1.0, -128)):
        part = w.op("TABLE", [x.integers, w.constant(levels.to(torch.int8))], x.shape, "INT8")
        parts.append(rescale(w, part, [factor], "INT32", zero_point=zero_point))
    return Accumulator(w.elementwise("ADD", *parts), torch.tensor(scale, dtype=torch.float64), FINE)


def shortened(w: IntegerWriter, x: Accumulator, bits: int, dtype: str) -> Accumulator:
    """Round to so many bits, besides the sign."""
    less = max(x.limit.bit_length() - bits, 0)
    if not less and dtype == x.integers.dtype:
        return x
    integers = rescale(w, x.integers, [2.0**-less], dtype)
    return replace(x, integers=integers, scales=x.scales * 2.0**less, limit=(x.limit >> less) + 1)


def _of_16_bits(w: IntegerWriter, x: Lookup) -> Accumulator:
    """Return a function of int16 by a TABLE, which has a number for every 128th integer and interpolates.

    If its error is large, as near a pole, another table has closer numbers for fewer integers around the zero
    point. This one then has the rest.
    """
    most, plain = largest(x.numbers), Interpolated.of(x.numbers, 1)
    if plain.error <= most * ENOUGH:
        return _table(w, x, plain, plain.error)
    finer = [Interpolated.of(x.numbers, times) for times in CLOSER]
    left = [Interpolated.of(x.numbers - near.given, 1) for near in finer]
    near, rest = min(zip(finer, left, strict=True), key=lambda pair: pair[1].error)
    if min(plain.error, rest.error) > most * COARSE:
        found = f"a function of 16 bits that tables have wrong by up to {min(plain.error, rest.error):.2g}"
        raise UnsupportedError("an operand", found, "quantise its operand with 8 bits")
    if rest.error >= plain.error / 2:
        return _table(w, x, plain, plain.error)
    return added(w, _table(w, x, near, 0), _table(w, x, rest, rest.error))


def _table(w: IntegerWriter, x: Lookup, table: Interpolated, error: float) -> Accumulator:
    levels = x.integers if table.times == 1 else rescale(w, x.integers, [float(table.times)], "INT16")
    y = w.op("TABLE", [levels, w.constant(table.entries)], x.shape, "INT32")
    scale = torch.tensor(table.scale / 128, dtype=torch.float64)
    return Accumulator(y, scale, FINE * 128, error=error)


def uniform(w: IntegerWriter, x: Accumulator) -> Accumulator:
    """Return the same with one scale, and with its bounds applied to the integers."""
    if x.integers.dtype == "INT48":
        x = shortened(w, x, 30, "INT32")
    scale, limit, value = float(x.scales.max()), x.limit, x.integers
    if x.scales.numel() > 1:
        bits = max(limit, 1).bit_length()
        factors = (x.scales / scale * 2**BITS).round().to(torch.int32)
        value = times(w, value, w.constant(factors), bits)
        scale, limit = scale * 2.0 ** (bits - BITS), 2**BITS
    for kind, bound in (("MAXIMUM", x.low), ("MINIMUM", x.high)):
        if abs(bound) < limit * scale:
            value = w.elementwise(kind, value, round(bound / scale))
    most = max(abs(x.low), abs(x.high))
    limit = math.ceil(most / scale) if most < limit * scale else limit
    return Accumulator(value, torch.tensor(scale, dtype=torch.float64), max(limit, 1), error=x.error)


def on_grid(w: IntegerWriter, x: Operand, step: float) -> TosaValue:
    """Return the numbers as multiples of `step`, in int32; for a function, see `exact_or_sum`."""
    if isinstance(x, Tensor):
        return w.constant((x.double() / step).round().to(torch.int32))
    if isinstance(x, Lookup):
        integers, of = as_integers(w, x)
        return rescale(w, integers, [in_float32(of.scale) / step], "INT32", zero_point=of.zero_point)
    if x.scales.dim() > 1 or (x.low, x.high) != (-math.inf, math.inf) or x.integers.dtype == "INT48":
        x = uniform(w, x)
    return _rescaled(w, x, x.scales / step, "INT32", 0)


def _rescaled(w: IntegerWriter, x: Accumulator, factors: Tensor, dtype: str, zero_point: int) -> TosaValue:
    """Rescale by one factor, or by one for each place along the last dimensions."""
    if bool((factors == factors.flatten()[0]).all()):
        factors = factors.flatten()[:1]
    shape, value = x.shape, x.integers
    if dtype == "INT32" and factors.numel() == 1 and float(factors) == 1.0:
        return value
    written = w.as_written(value)
    if factors.numel() > 1:
        varying = shape[len(shape) - factors.dim() :]
        factors = factors.expand(varying).flatten()
        if written.shape[-1] != factors.numel():
            written = w.reshape(value, (*shape[: len(shape) - len(varying)], factors.numel()))
    y = rescale(w, written, factors.tolist(), dtype, to_zero_point=zero_point)
    return w.reshape(y, shape)  # type: ignore[no-any-return]


# -- arithmetic --------------------------------------------------------------------------------------------


def added(w: IntegerWriter, x: Operand, y: Operand, kind: str = "ADD") -> Accumulator:
    """Return the sum of both, or `kind` of both, on the finest common grid for which int32 holds the sum."""
    shape = np.broadcast_shapes(tuple(x.shape), tuple(y.shape))
    x, y = (exact_or_sum(w, each) for each in _in_lanes(w, x, y))
    most = _most(x) + _most(y)
    scale = max(_scale(x), _scale(y))
    step = scale * 2.0 ** max(math.ceil(math.log2((most or 1.0) / 2**BITS / scale)), -GRID)
    total = w.elementwise(kind, on_grid(w, x, step), on_grid(w, y, step))
    limit = min(math.ceil(most / step) + 2, 2**31 - 1)
    scales, error = torch.tensor(step, dtype=torch.float64), error_of(x) + error_of(y)
    return Accumulator(w.reshape(total, shape), scales, limit, error=error)


def multiplied(w: IntegerWriter, x: Operand, y: Operand) -> Accumulator:
    """Return the product, rounded to int32."""
    shape = np.broadcast_shapes(tuple(x.shape), tuple(y.shape))
    a, b = (as_sum(w, each) for each in _in_lanes(w, x, y))
    shift = max(0, math.ceil(math.log2(a.limit * b.limit)) - BITS)
    product = times(w, a.integers, b.integers, shift)
    scales, limit = a.scales * b.scales * 2.0**shift, (a.limit * b.limit >> shift) + 1
    error = a.most * b.error + b.most * a.error + a.error * b.error
    return Accumulator(w.reshape(product, shape), scales, limit, error=error)


def times(w: IntegerWriter, x: TosaValue, y: TosaValue, shift: int) -> TosaValue:
    """Return x · y / 2**shift, rounded half up; the product has 64 bits."""
    return w.elementwise("MUL", x, y, extra=(w.number(shift, "INT8"),))


def _in_lanes(w: IntegerWriter, x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """Merge last dimensions of both so that elements fill the lanes, if the form asks for it.

    The smaller operand is repeated. Vela computes the elements of the last dimension side by side.
    """
    if not w.forms.fills_lanes or isinstance(x, Tensor) or isinstance(y, Tensor):
        return x, y
    shape = np.broadcast_shapes(x.shape, y.shape)
    shapes = [(1,) * (len(shape) - len(each.shape)) + each.shape for each in (x, y)]
    merged = dimensions_to_merge(shape, shapes)
    if not merged:
        return x, y
    ends = shape[-merged:]
    made = []
    for each, sizes in zip((x, y), shapes, strict=True):
        held: Numbers = w.reshape(each, sizes)
        if sizes[-merged:] not in (ends, (1,) * merged):
            held = uniform(w, held) if isinstance(held, Accumulator) else held
            sizes = (*sizes[:-merged], *ends)
            held = held.with_integers(tile(w, held.integers, sizes))
        made.append(w.reshape(held, (*sizes[:-merged], math.prod(sizes[-merged:]))))
    return made[0], made[1]


def exact_or_sum(w: IntegerWriter, x: Operand) -> Operand:
    """Return the operand as it is, but as a sum if it is a function without exact integers."""
    return in_halves(w, x) if isinstance(x, Lookup) and not has_integers(x) else x


def error_of(x: Operand) -> float:
    """Return the possible error of the numbers."""
    return x.error if isinstance(x, Accumulator) else 0.0


def _most(x: Operand) -> float:
    return largest(x) if isinstance(x, Tensor) else x.most


def _scale(x: Operand) -> float:
    """Return the scale for a common grid, which is exact for the operand with the larger scale."""
    if isinstance(x, Tensor):
        return 2.0**-100
    return in_float32(x.of.scale) if isinstance(x, Lookup) else float(x.scales.max())
