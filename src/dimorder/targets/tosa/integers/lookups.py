"""Write functions of one quantised value: a number for each of its integers.

Such a function is the integers themselves, a CLAMP, a TABLE, or for int16 a RESCALE. A TABLE of int16 has a
number for every 128th integer and interpolates between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dimorder.graph.quantized import IntegerType
from dimorder.physical.integer_functions import levels_of, slope_of
from dimorder.targets.tosa.dtypes import DTYPES, WIDEST
from dimorder.targets.tosa.integers.model import interpolated
from dimorder.targets.tosa.integers.numbers import IntegerWriter, Lookup, Operand
from dimorder.targets.tosa.rescale import fits, rescale, rescale_integers
from dimorder.targets.tosa.writer import TosaValue

ENTRY = 2**15 - 2  # the largest number of a TABLE, and the largest difference of neighbours, after rounding


# -- the same integers, or others of one operator ----------------------------------------------------------


def as_integers(w: IntegerWriter, x: Operand) -> tuple[TosaValue, IntegerType]:
    """Return the integers that stand for the numbers exactly, and their type.

    The plan has it that there are such integers.
    """
    assert isinstance(x, Lookup) and x.exact_type is not None, "the plan has no such integers"
    of = x.exact_type
    integers = look_up(w, x.integers, levels_of(x.numbers, of).round(), x.of, 1.0, of)
    assert integers is not None
    return integers, of


def look_up(
    w: IntegerWriter, x: TosaValue, levels: Tensor, of: IntegerType, slope: float, to: IntegerType
) -> TosaValue | None:
    """Return `levels` of `to` by the cheapest operator that gives exactly these.

    That is none, CLAMP, TABLE for int8, and RESCALE or RESCALE and CLAMP for others. Returns None if there is
    none, since a TABLE of int16 interpolates. An Ethos-U looks up a TABLE as it computes what is looked up,
    and takes a step of its own for a RESCALE. `slope` is that of the line on which the levels may be.
    """
    own = torch.arange(of.low, of.high + 1)
    ends = int(levels.min()), int(levels.max())
    if of.dtype == to.dtype and torch.equal(levels, own.clamp(*ends).double()):
        return clamp(w, x, *(ends if ends != (of.low, of.high) else _reach(x.dtype)))
    if of.dtype == to.dtype == torch.int8:
        table = w.constant(levels.to(torch.int8))
        return w.op("TABLE", [x, table], x.shape, "INT8")
    middle, slopes = (levels > ends[0]) & (levels < ends[1]), [slope]
    if int(middle.sum()) > 1:  # clipped ends say nothing about the line
        slopes.append(slope_of(levels[middle]))
    for each in filter(fits, slopes):
        dtype, line = DTYPES[to.dtype], rescale_integers(own, [each], of.zero_point, to.zero_point)
        exact = torch.equal(levels, line.clamp(*_reach(dtype)).double())
        if exact or torch.equal(levels, line.clamp(*ends).double()):
            y = rescale(w, x, [each], dtype, zero_point=of.zero_point, to_zero_point=to.zero_point)
            return y if exact else clamp(w, y, *ends)
    return None


def clamp(w: IntegerWriter, x: TosaValue, low: int, high: int) -> TosaValue:
    if (low, high) == _reach(x.dtype):
        return x
    size = 1 if x.dtype == "INT8" else 2
    low_bytes, high_bytes = (list(end.to_bytes(size, "little", signed=True)) for end in (low, high))
    return w.op("CLAMP", [x], x.shape, min_val=low_bytes, max_val=high_bytes)


def _reach(dtype: str) -> tuple[int, int]:
    """Return the least and the largest integer of a type."""
    held = torch.iinfo(WIDEST[dtype])
    return held.min, held.max


# -- 16 bits -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Interpolated:
    """The result of a TABLE over int16 times `times`, clipped to 16 bits.

    `given` has a number for each integer. An entry stands for `scale`. No number is farther than `error` from
    the function's.
    """

    times: int
    entries: Tensor
    scale: float
    given: Tensor
    error: float

    @staticmethod
    def of(numbers: Tensor, times: int) -> Interpolated:
        """Fit a TABLE to the numbers; its first and last entries may extrapolate beyond the last integers."""
        most = len(numbers) // 2
        first, last = (
            numbers[end] + (numbers[end] - numbers[near]) / 127 for end, near in ((0, 127), (-1, -128))
        )
        wanted = torch.cat([first[None], numbers, last[None]])[:: 128 // times]
        middle = len(wanted) // 2
        wanted = wanted[middle - 256 : middle + 257]
        most_apart = float(wanted.diff().abs().max())  # TABLE has 16 bits for differences too
        scale = (max(float(wanted.abs().max()), most_apart) or 1.0) / ENTRY
        entries = (wanted / scale).round().to(torch.int16)
        levels = (torch.arange(-most, most + 1) * times).clamp(-most - 1, most)
        given = interpolated(levels, entries).double() * (scale / 128)
        return Interpolated(times, entries, scale, given, float((given - numbers).abs().max()))
