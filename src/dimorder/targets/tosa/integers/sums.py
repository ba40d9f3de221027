"""Add, multiply and round numbers that integers stand for.

An Ethos-U computes the elements of the last dimension side by side, so dimensions may be merged before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce

import numpy as np
import torch
from torch import Tensor

from dimorder.errors import UnsupportedError
from dimorder.graph.quantized import IntegerType, in_float32, level_bounds
from dimorder.physical.integer_functions import rounded_levels, slope_of
from dimorder.targets.tosa.dtypes import DTYPES
from dimorder.targets.tosa.integers.lookups import (
    Interpolated,
    as_integers,
    clamp,
    look_up,
)
from dimorder.targets.tosa.integers.numbers import (
    BITS,
    Accumulator,
    IntegerWriter,
    Lookup,
    Numbers,
    Operand,
    largest,
    times,
    with_one_scale,
)
from dimorder.targets.tosa.rescale import relative_error, rescale
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

GRID = 19  # of a sum's finest operand: Ethos-U55 adds int8 on a grid of as many bits in one operator
FINE = 2**15  # steps of a function's numbers, besides the sign
CLOSER = (128, 64, 32, 16, 8, 4, 2)  # times as close, for more TABLEs around the zero point
ENOUGH = 2**-14  # of a function's largest number: one table may have this error, a step or two of 16 bits
FAIR = 2**-10  # of it: two tables may have this error
COARSE = 2**-8  # of it: the allowed error. int8 would be no worse
EXACT = 2**24  # steps of a constant's magnitude: a float32 has no more
LANES = 16  # in which an Ethos-U computes the elements of the last dimension
LITTLE = 8  # times fewer elements than the result has


def quantize(w: IntegerWriter, x: Numbers, to: IntegerType) -> TosaValue:
    """Return the integers of that type that stand for the nearest numbers. NaN becomes the integer of 0."""
    scale = in_float32(to.scale)
    if isinstance(x, Lookup):
        real = torch.where(x.numbers.isnan(), 0.0, x.numbers / scale)
        y = look_up(w, x.integers, rounded_levels(x.numbers, to), x.of, slope_of(real), to)
        held = real.clamp(to.low - to.zero_point, to.high - to.zero_point) * scale
        return quantize(w, in_16_bits(w, replace(x, numbers=held)), to) if y is None else y
    shortcut = w.shortcuts.get(x.integers.tensor)
    y = None if shortcut is None else shortcut(x, to)
    if y is None:
        if x.scales.dim() > 1 and x.scales.shape[-1] != x.shape[-1]:
            x = with_one_scale(w, x)
        y = _rescaled(w, x, x.scales / scale, DTYPES[to.dtype], to.zero_point)
    y = TosaWriter.reshape(w, y, x.shape)
    y = clamp(w, y, *level_bounds(x.low, x.high, to))
    reach = min(x.most, scale * to.reach)
    off = x.error + relative_error(x.integers.dtype, x.scales / scale) * reach
    if off > max(scale, 2 * COARSE * scale * to.reach):  # a step of int8
        found = f"numbers that 32 bits have wrong by up to {off:.2g}, where a quantum is {scale:.2g}"
        raise UnsupportedError("an operand", found, "multiply fewer numbers before they are quantised")
    if off:
        w.errors[y.tensor] = off / scale
    return y


def as_sum(w: IntegerWriter, x: Operand) -> Accumulator:
    """Return the numbers as int32 with one scale, without a zero point."""
    if isinstance(x, Tensor):
        most = largest(x) or 1.0
        integers = w.constant((x.double() * (EXACT / most)).round().to(torch.int32))
        return Accumulator(integers, torch.tensor(most / EXACT, dtype=torch.float64), EXACT)
    if isinstance(x, Accumulator):
        return with_one_scale(w, x)
    if x.exact_type is None:
        return in_16_bits(w, x)
    integers, of = as_integers(w, x)
    value = rescale(w, integers, [1.0], "INT32", zero_point=of.zero_point)
    return Accumulator(value, torch.tensor(in_float32(of.scale), dtype=torch.float64), of.reach)


def in_16_bits(w: IntegerWriter, x: Lookup, scale: float | None = None) -> Accumulator:
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
    total, step = w.elementwise("ADD", *parts), torch.tensor(scale, dtype=torch.float64)
    return Accumulator(total, step, FINE, error=scale / 2)


def _of_16_bits(w: IntegerWriter, x: Lookup) -> Accumulator:
    """Return a function of int16 by a TABLE, which has a number for every 128th integer and interpolates.

    If its error is large, as near a pole, other tables have closer numbers for fewer integers around the zero
    point. This one then has the rest.
    """
    most, tables = largest(x.numbers), [Interpolated.of(x.numbers, 1)]

    def cost(chain: list[Interpolated]) -> tuple[bool, float]:  # one more table is worth half of the error
        return chain[-1].error > most * COARSE, chain[-1].error * 2.0 ** len(chain)

    for enough, finer in ((ENOUGH, 1), (FAIR, 2)):
        if tables[-1].error > most * enough:
            chains = [_chain(x.numbers, times) for times in itertools.combinations(CLOSER, finer)]
            tables = min([*chains, tables], key=cost)
    error = tables[-1].error
    if error > most * COARSE:
        found = f"a function of 16 bits that tables have wrong by up to {error:.2g}"
        raise UnsupportedError("an operand", found, "quantise its operand with 8 bits")
    *near, rest = tables
    return reduce(partial(add, w), [*(_table(w, x, each, 0) for each in near), _table(w, x, rest, error)])


def _chain(numbers: Tensor, closer: Sequence[int]) -> list[Interpolated]:
    """Return tables whose sum is a function: each has what those before it leave."""
    tables = []
    for each in (*closer, 1):
        tables.append(Interpolated.of(numbers, each))
        numbers = numbers - tables[-1].given
    return tables


def _table(w: IntegerWriter, x: Lookup, table: Interpolated, error: float) -> Accumulator:
    levels = x.integers if table.times == 1 else rescale(w, x.integers, [float(table.times)], "INT16")
    y = w.op("TABLE", [levels, w.constant(table.entries)], x.shape, "INT32")
    scale = torch.tensor(table.scale / 128, dtype=torch.float64)
    return Accumulator(y, scale, FINE * 128, error=error)


def on_grid(w: IntegerWriter, x: Operand, step: float) -> TosaValue:
    """Return the numbers as multiples of `step`, in int32; for a function, see `exact_or_sum`."""
    if isinstance(x, Tensor):
        return w.constant((x.double() / step).round().to(torch.int32))
    if isinstance(x, Lookup):
        integers, of = as_integers(w, x)
        return rescale(w, integers, [in_float32(of.scale) / step], "INT32", zero_point=of.zero_point)
    if x.scales.dim() > 1 or (x.low, x.high) != (-math.inf, math.inf) or x.integers.dtype == "INT48":
        x = with_one_scale(w, x)
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


def add(w: IntegerWriter, x: Operand, y: Operand, kind: str = "ADD") -> Accumulator:
    """Return the sum of both, or `kind` of both, on the finest common grid for which int32 holds the sum."""
    shape = np.broadcast_shapes(tuple(x.shape), tuple(y.shape))
    total = _of_common_grid(w, *_in_lanes(w, x, y), lambda *both: w.elementwise(kind, *both))
    return total.with_integers(w.reshape(total.integers, shape))


def choose(w: IntegerWriter, condition: TosaValue, x: Operand, y: Operand) -> Accumulator:
    """Return the elements of `x` where the condition holds, and of `y` elsewhere."""
    return _of_common_grid(w, x, y, lambda *both: w.elementwise("SELECT", condition, *both))


def compare(
    w: IntegerWriter,
    x: Operand,
    y: Operand,
    write: Callable[[IntegerWriter, TosaValue, TosaValue], TosaValue],
) -> TosaValue:
    """Return truth values that `write` gives for two operands on one grid."""
    return _of_common_grid(w, x, y, lambda *both: write(w, *both)).integers


def _of_common_grid(
    w: IntegerWriter, x: Operand, y: Operand, write: Callable[[TosaValue, TosaValue], TosaValue]
) -> Accumulator:
    """Return what is written of two operands on the finest common grid for which int32 holds their sum."""
    x, y = (exact_or_sum(w, each) for each in (x, y))
    most = _most(x) + _most(y)
    scale = max(_scale(x), _scale(y))
    step = scale * 2.0 ** max(math.ceil(math.log2((most or 1.0) / 2**BITS / scale)), -GRID)
    total = write(on_grid(w, x, step), on_grid(w, y, step))
    limit = min(math.ceil(most / step) + 2, 2**31 - 1)
    scales, error = torch.tensor(step, dtype=torch.float64), error_of(x) + error_of(y)
    return Accumulator(total, scales, limit, error=error)


def multiply(w: IntegerWriter, x: Operand, y: Operand) -> Accumulator:
    """Return the product, rounded to int32."""
    shape = np.broadcast_shapes(tuple(x.shape), tuple(y.shape))
    a, b = (as_sum(w, each) for each in _in_lanes(w, x, y))
    shift = max(0, math.ceil(math.log2(a.limit * b.limit)) - BITS)
    product = times(w, a.integers, b.integers, shift)
    scales, limit = a.scales * b.scales * 2.0**shift, (a.limit * b.limit >> shift) + 1
    error = a.most * b.error + b.most * a.error + a.error * b.error
    if shift:  # the result of a long product may be small beside the product of the largest numbers
        error += 0.5 * float(scales)
    return Accumulator(w.reshape(product, shape), scales, limit, error=error)


def exact_or_sum(w: IntegerWriter, x: Operand) -> Operand:
    """Return the operand as it is, but as a sum if it is a function without exact integers."""
    return in_16_bits(w, x) if isinstance(x, Lookup) and x.exact_type is None else x


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


# -- lanes -------------------------------------------------------------------------------------------------


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
            held = with_one_scale(w, held) if isinstance(held, Accumulator) else held
            sizes = (*sizes[:-merged], *ends)
            held = held.with_integers(w.tiled(held.integers, sizes))
        made.append(w.reshape(held, (*sizes[:-merged], math.prod(sizes[-merged:]))))
    return made[0], made[1]


def dimensions_to_merge(shape: tuple[int, ...], shapes: Sequence[tuple[int, ...]]) -> int:
    """Return how many last dimensions of a result to merge, or 0; `shapes` are those of its operands.

    The merged dimension must fill the lanes better, and the elements repeated for it must be few.

    >>> dimensions_to_merge((560, 4, 6), [(560, 4, 6), (1, 4, 1)])
    2
    >>> dimensions_to_merge((9, 6), [(9, 6), (9, 1)])
    0
    """
    for merged in range(2, len(shape) + 1):
        ends = shape[-merged:]
        repeated = [s for s in shapes if s[-merged:] not in (ends, (1,) * merged)]
        little = all(math.prod(s[:-merged]) * LITTLE <= math.prod(shape[:-merged]) for s in repeated)
        if repeated and little and _filled(math.prod(ends)) > 1.5 * _filled(shape[-1]):
            return merged
    return 0


def _filled(count: int) -> float:
    """Return the share of lanes that so many channels fill."""
    return count / (math.ceil(count / LANES) * LANES)
