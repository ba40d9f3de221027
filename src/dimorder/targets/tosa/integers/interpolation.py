"""Functions of int16: TABLE has a number for every 128th integer, and interpolates between these."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dimorder.targets.tosa.integers.model import interpolated

ENTRY = 2**15 - 2  # the largest number of a TABLE, and the largest difference of neighbours, once rounded


@dataclass(frozen=True, eq=False)
class Interpolated:
    """What a TABLE gives of the products of int16 and `times`, held in 16 bits: `given` has a number for each
    integer, an entry stands for `scale`, and no number is farther than `error` from the function's."""

    times: int
    entries: Tensor
    scale: float
    given: Tensor
    error: float

    @staticmethod
    def of(numbers: Tensor, times: int) -> Interpolated:
        """The first and the last entry may be for an integer beyond the last ones, as far as these go on."""
        most = len(numbers) // 2
        first, last = (
            numbers[end] + (numbers[end] - numbers[near]) / 127 for end, near in ((0, 127), (-1, -128))
        )
        wanted = torch.cat([first[None], numbers, last[None]])[:: 128 // times]
        middle = len(wanted) // 2
        wanted = wanted[middle - 256 : middle + 257]
        most_apart = float(wanted.diff().abs().max())  # which TABLE has 16 bits for, too
        scale = (max(float(wanted.abs().max()), most_apart) or 1.0) / ENTRY
        entries = (wanted / scale).round().to(torch.int16)
        levels = (torch.arange(-most, most + 1) * times).clamp(-most - 1, most)
        given = interpolated(levels, entries).double() * (scale / 128)
        return Interpolated(times, entries, scale, given, float((given - numbers).abs().max()))
