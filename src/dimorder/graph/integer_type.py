"""Describe the type of a quantized value: which numbers its integers stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dimorder.contract import range_of


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
        moved = torch.iinfo(dtype).min - self.low
        return IntegerType(dtype, self.scale, self.zero_point + moved)


def in_float32(scale: float) -> float:
    """Return a scale as float32 tensors are multiplied by it: times an integer it is exact in float64."""
    return float(torch.tensor(scale, dtype=torch.float32))
