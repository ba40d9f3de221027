"""Write softmax, log_softmax and layer norm in integers, with functions of sums from a TABLE.

Shifts first bring the sums to one range: a power of two is taken out of each row (`CLZ`). A TABLE of 513
numbers interpolates the function of the rest, and a shift puts the power back. The result is right to about
15 bits, for any sum. Every operator is one that Ethos-U55 and U85 compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dimorder.errors import UnsupportedError
from dimorder.graph.quantized import IntegerType, in_float32
from dimorder.targets.tosa.dtypes import DTYPES
from dimorder.targets.tosa.integers.lookups import as_integers
from dimorder.targets.tosa.integers.numbers import Accumulator, IntegerWriter, Lookup, shorten, times
from dimorder.targets.tosa.integers.sums import add, in_16_bits, multiply
from dimorder.targets.tosa.reductions import reduce
from dimorder.targets.tosa.rescale import rescale
from dimorder.targets.tosa.writer import TosaValue

W = IntegerWriter

_TOP = 2**31
_ENTRY = 32767  # the largest entry of a TABLE of int16, which interpolates in 7 bits more
_INTERPOLATED = _ENTRY * 128


def softmax(w: W, x: Lookup, dim: int) -> Accumulator:
    """Return exp(x - max), as a function of the difference in int8, over the sum."""
    _, raised = _raised(w, x, dim)
    power = _power_of_sum(w, raised, dim)
    inverse = power.function(w, lambda m: 1 / m)
    # e / S, where S = m · 2³¹ / 2^shift: the product has 15 + 22 bits
    product = times(w, raised.integers, inverse, 7)
    quotient = power.restored(w, product)
    scale = 2.0**7 * 2.0 * 2.0 ** (power.most - 31) / _INTERPOLATED
    return Accumulator(quotient, torch.tensor(scale, dtype=torch.float64), 2**30)


def log_softmax(w: W, x: Lookup, dim: int) -> Accumulator:
    """Return x - max - log(sum(exp(x - max))): exact differences minus a number for each row."""
    difference, raised = _raised(w, x, dim)
    power = _power_of_sum(w, raised, dim)
    # log(m · 2³¹ / 2^shift), in which TABLE gives 2 + log(m)
    unit, double = (torch.tensor(each, dtype=torch.float64) for each in (2 / _INTERPOLATED, math.log(2)))
    error = raised.error * x.shape[dim] + 1 / _ENTRY  # each row's sum is 1 at least; an entry is rounded
    mantissa = Accumulator(power.function(w, lambda m: 2 + m.log()), unit, _INTERPOLATED, error=error)
    left = w.elementwise("SUB", w.number(power.most, "INT32"), power.shift)
    logarithm = add(w, mantissa, Accumulator(left, double, power.most))
    offset = (31 - power.most) * math.log(2) - 2 + math.log(float(raised.scales))
    logarithm = add(w, logarithm, torch.tensor([offset], dtype=torch.float64))
    return add(w, difference, logarithm, "SUB")


def _raised(w: W, x: Lookup, dim: int) -> tuple[Accumulator, Accumulator]:
    """Return x - max, and exp(x - max) in integers of which int32 holds the sum."""
    values, of = as_integers(w, x)
    wide = rescale(w, values, [1.0], "INT32")
    largest = rescale(w, reduce(w, "REDUCE_MAX", values, {dim}), [1.0], "INT32")
    difference = w.elementwise("SUB", wide, largest)
    scale, is_short = in_float32(of.scale), of.dtype == torch.int16
    # int8 has a zero point for all differences; for those of int16, which has none, it has a bit too few
    factor, zero_point = (0.5, 0) if is_short else (1.0, 127)
    below = rescale(w, difference, [factor], DTYPES[of.dtype], to_zero_point=zero_point)
    held = Lookup.dequantize(below, IntegerType(of.dtype, scale / factor, zero_point))
    raised = in_16_bits(w, replace(held, numbers=held.numbers.clamp(max=0).exp()))
    raised = shorten(w, raised, 30 - x.shape[dim].bit_length())
    return Accumulator(difference, torch.tensor(scale, dtype=torch.float64), 2 * of.reach), raised


def _power_of_sum(w: W, raised: Accumulator, dim: int) -> _Power:
    """Return the sums of exponents. The largest of each row is e⁰, which is over half of the limit."""
    total = reduce(w, "REDUCE_SUM", raised.integers, {dim})
    return _Power.of(w, total, least=raised.limit // 2, step=1)


def layer_norm(
    w: W, x: Lookup, dims: Collection[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Accumulator:
    """Return deviations n·x - Σx over the root of the sum of their squares.

    The deviations have 31 bits after a shift of each row.
    """
    values, of = as_integers(w, x)
    count = math.prod(x.shape[d] for d in dims)
    scale = in_float32(of.scale)
    each = rescale(w, values, [1.0], "INT32", zero_point=of.zero_point)
    total = reduce(w, "REDUCE_SUM", each, dims)

    def off_mean(x: TosaValue) -> TosaValue:
        many = rescale(w, x, [float(count)], "INT32", zero_point=of.zero_point)
        return w.elementwise("SUB", many, total)

    deviation, ends = off_mean(values), (off_mean(end) for end in _extremes(w, values, dims))
    largest = w.elementwise("MAXIMUM", *(w.elementwise("ABS", end) for end in ends))
    # If not all are equal, one is off the mean by at least half a step, or by (n - 1) / n.
    power = _Power.of(w, largest, least=max(count // 2, 1), step=1)
    shifted = w.elementwise("LOGICAL_LEFT_SHIFT", deviation, power.shift)
    more = math.ceil(math.log2(count)) + _room(eps * count**3 / scale**2 * 4.0**power.most, count)
    squares = times(w, shifted, shifted, 32 + more)
    variance = reduce(w, "REDUCE_SUM", squares, dims)
    unit = scale**2 / count**3 * 2.0 ** (32 + more)  # of the variance, times 4^-shift
    whole = w.elementwise("ADD", variance, _with_power(w, power, eps / unit))
    root = _Power.of(w, whole, least=max(2 ** (27 + math.ceil(math.log2(count)) - more) // count, 1), step=2)
    inverse = root.function(w, lambda m: m**-0.5)
    product = times(w, shifted, inverse, 23)
    y = root.restored(w, product)
    factor = 2.0**23 * math.sqrt(count) * 2.0 ** (-(32 + more) / 2)
    factor *= 2.0 * 2.0 ** ((root.most - 31) / 2) / _INTERPOLATED
    normal = Accumulator(y, torch.tensor(factor, dtype=torch.float64), 2**30)
    normal = normal if weight is None else multiply(w, normal, weight)
    return normal if bias is None else add(w, normal, bias)


def _extremes(w: W, x: TosaValue, dims: Collection[int]) -> tuple[TosaValue, TosaValue]:
    """Return the largest and the least of int8; Ethos-U55 has only the largest, and only for int8."""
    opposite = w.constant(torch.arange(127, -129, -1).to(torch.int8))
    turned = w.op("TABLE", [x, opposite], x.shape, "INT8")
    least = reduce(w, "REDUCE_MAX", turned, dims)
    return reduce(w, "REDUCE_MAX", x, dims), w.op("TABLE", [least, opposite], least.shape, "INT8")


@dataclass(frozen=True)
class _Power:
    """Integers shifted left by multiples of `step`, until their first bit is just below the sign.

    Each integer is m · 2³¹ / 2^shift, and m is at least 1 / 2^step. No shift is larger than `most`.
    """

    mantissa: TosaValue
    shift: TosaValue
    most: int
    step: int

    @staticmethod
    def of(w: W, x: TosaValue, least: int, step: int) -> _Power:
        x = w.elementwise("MAXIMUM", x, least)
        shift = w.elementwise("SUB", w.op("CLZ", [x], x.shape), 1)
        most = 30 - (least.bit_length() - 1)
        if step == 2:
            halved = w.elementwise("ARITHMETIC_RIGHT_SHIFT", shift, 1, round=False)
            shift, most = w.elementwise("LOGICAL_LEFT_SHIFT", halved, 1), most // 2 * 2
        return _Power(w.elementwise("LOGICAL_LEFT_SHIFT", x, shift), shift, most, step)

    def function(self, w: W, of: Callable[[Tensor], Tensor]) -> TosaValue:
        """Return a function of m with values between 1 and 2, as multiples of 2 / `_INTERPOLATED`."""
        low = 2.0**-self.step
        middle, half = (1 + low) / 2, (1 - low) / 2
        centred = w.elementwise("SUB", self.mantissa, int(middle * _TOP))
        index = rescale(w, centred, [2**15 / (half * _TOP)], "INT16")
        entries = of(torch.linspace(low, 1, 513, dtype=torch.float64)) * (_ENTRY / 2)
        table = w.constant(entries.round().to(torch.int16))
        return w.op("TABLE", [index, table], index.shape, "INT32")

    def restored(self, w: W, x: TosaValue) -> TosaValue:
        """Return x · 2^(shift / step), as a multiple of 2^(most / step)."""
        left = w.elementwise("SUB", w.number(self.most, "INT32"), self.shift)
        left = left if self.step == 1 else w.elementwise("ARITHMETIC_RIGHT_SHIFT", left, 1, round=False)
        return w.elementwise("ARITHMETIC_RIGHT_SHIFT", x, left, round=True)


def _room(most: float, count: int) -> int:
    """Return how many more bits squares are shifted, so that the eps of the most shifted row fits."""
    bits = math.ceil(math.log2(max(most, 2.0**-99))) - 62 - math.ceil(math.log2(count))
    if bits > 8:
        raise UnsupportedError(
            "an operator", "an eps that is much larger than the least variance", "make it less"
        )
    return max(bits, 0)


def _with_power(w: W, power: _Power, number: float) -> TosaValue:
    """Return number · 4^shift for each shift, as its first 14 bits and their own shift."""
    shifts = torch.arange(-128, 128).clamp(0, power.most)
    exact = number * 4.0 ** shifts.double()
    left = (exact.log2().ceil() - 14).clamp(min=0)
    index = rescale(w, power.shift, [1.0], "INT8")
    of = IntegerType(torch.int8, 1.0, 0)
    parts = [in_16_bits(w, Lookup(index, of, entries), 1.0) for entries in (exact / 2.0**left, left)]
    return w.elementwise("LOGICAL_LEFT_SHIFT", *(part.integers for part in parts))
