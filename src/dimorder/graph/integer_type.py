"""Decides what integers stand for: the type of a quantised value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dimorder.contract import range_of


@dataclass(frozen=True)
class IntegerType:
    """Integers that stand for numbers: each for (itself − zero_point) · scale."""

    dtype: torch.dtype
    scale: float
    zero_point: int

    @property
    def low(self) -> int:
        """The least of the integers."""
        return range_of(self.dtype)[0]

    @property
    def high(self) -> int:
        """The greatest of the integers."""
        return range_of(self.dtype)[1]

    @property
    def reach(self) -> int:
        """How far an integer may be from the zero point."""
        return max(self.high - self.zero_point, self.zero_point - self.low)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What quantize and dequantize take besides the value."""
        return (self.scale, self.zero_point, self.low, self.high, self.dtype)

    def as_type(self, dtype: torch.dtype) -> IntegerType:
        """Integers of another type for the same numbers.

        >>> IntegerType(torch.int8, 0.5, -1).as_type(torch.uint8)
        IntegerType(dtype=torch.uint8, scale=0.5, zero_point=127)
        """
        moved = torch.iinfo(dtype).min - self.low
        return IntegerType(dtype, self.scale, self.zero_point + moved)
