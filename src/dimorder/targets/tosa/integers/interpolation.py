"""Fit a function of int16 to a TABLE.

A TABLE has a number for every 128th integer and interpolates between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dimorder.targets.tosa.integers.model import interpolated

ENTRY = 2**15 - 2  # the largest number of a TABLE, and the largest difference of neighbours, after rounding


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
