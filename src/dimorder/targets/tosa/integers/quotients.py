"""Write softmax and layer norm in integers, with reciprocals of sums from a TABLE.

Shifts first bring the sums to one range: a power of two is taken out of each row (`CLZ`). A TABLE of 513
numbers interpolates the function of the rest, and a shift puts the power back. The result is right to about
15 bits, for any sum. Every operator is one that Ethos-U55 and U85 compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from dimorder.errors import UnsupportedError
from dimorder.graph.quantized import IntegerType, in_float32
from dimorder.targets.tosa.integers.lookups import as_integers
from dimorder.targets.tosa.integers.numbers import Accumulator, IntegerWriter, Lookup, times
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
    values, of = as_integers(w, x)
    wide = rescale(w, values, [1.0], "INT32")
    largest = rescale(w, reduce(w, "REDUCE_MAX", values, {dim}), [1.0], "INT32")
    below = rescale(w, w.elementwise("SUB", wide, largest), [1.0], "INT8", to_zero_point=127)
    difference = Lookup.dequantize(below, IntegerType(torch.int8, of.scale, 127))
    raised = in_16_bits(w, Lookup(below, difference.of, difference.numbers.exp()))
    limit = raised.limit * x.shape[dim]
    total = Accumulator(reduce(w, "REDUCE_SUM", raised.integers, {dim}), raised.scales, limit)
    power = _Power.of(
        w, total.integers, least=_ENTRY, step=1
    )  # the largest of a row is e⁰, the largest entry
    inverse = power.function(w, lambda m: 1 / m)
    # e / S, where S = m · 2³¹ / 2^shift: the product has 15 + 22 bits
    product = times(w, raised.integers, inverse, 7)
    quotient = power.restored(w, product, 1)
    scale = 2.0**7 * 2.0 * 2.0 ** (power.most - 31) / _INTERPOLATED
    return Accumulator(quotient, torch.tensor(scale, dtype=torch.float64), 2**30)


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
    y = root.restored(w, product, 2)
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

    def restored(self, w: W, x: TosaValue, root: int) -> TosaValue:
        """Return x · 2^(shift / root), as a multiple of 2^(most / root)."""
        left = w.elementwise("SUB", w.number(self.most, "INT32"), self.shift)
        left = left if root == 1 else w.elementwise("ARITHMETIC_RIGHT_SHIFT", left, 1, round=False)
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
