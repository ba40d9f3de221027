"""Compare integers with recomputed ones, and define how many may differ, and by how much."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from dimorder.errors import VerificationError

QUANTA = 1  # by which a rounded integer may be off
OFF = 1e-3  # the share of integers that may be off
FEW = 8  # further integers that may be off
HALF = 1e-3  # quanta from a half, within which float32 may round to either side


class Origin(NamedTuple):
    """The values that integers were rounded from, in quanta without the zero point, and the `quantum`.

    `unsure` are the elements that were computed from integers that may be rounded to either side. `margin` is
    how far a value may be off that was computed in half precision, in quanta.
    """

    quanta: Tensor
    quantum: float = 1.0
    unsure: Tensor | bool = False
    margin: float | Tensor = 0.0

    @property
    def choices(self) -> Tensor:
        """How many integers beside the nearest one each value may be rounded to."""
        reach = HALF + self.margin
        return (self.quanta + reach).round() - (self.quanta - reach).round()

    @property
    def on_a_half(self) -> Tensor:
        return self.choices > 0


class Differences(NamedTuple):
    """How far integers are off that were compared one by one: by how many quanta, and in how many elements.

    An element that was rounded from a half may be off by a quantum without being counted: either integer is
    right.
    """

    most: int
    off: int
    compared: int

    @staticmethod
    def between(got: Tensor, wanted: Tensor, origin: Origin | None = None) -> Differences:
        """Compare integers; `origin` is what `got` was rounded from, if that is known."""
        quanta = (got.to(torch.int64) - wanted.to(torch.int64)).abs()
        off = quanta > 0
        if origin is not None:
            quanta[origin.unsure] = 0
            explained = quanta <= origin.choices
            quanta = torch.where(explained, quanta.clamp(max=QUANTA), quanta)
            off = (quanta > 0) & ~explained
        most = int(quanta.max()) if quanta.numel() else 0
        return Differences(most, int(off.sum()), quanta.numel())

    @staticmethod
    def together(parts: Iterable[Differences]) -> Differences:
        """Return the differences of several values as one."""
        most, off, compared = zip((0, 0, 0), *parts, strict=True)
        return Differences(max(most), sum(off), sum(compared))

    def require_few(self, what: str, are_counted: bool = True) -> None:
        """Check that no more is off than rounding explains: a few integers, by one quantum.

        Args:
            what: the name of the integers in errors.
            are_counted: whether many may not be off.

        Raises:
            VerificationError: if more is.

        >>> halves = Origin(torch.full((99,), 2.5))
        >>> Differences.between(torch.tensor([3] * 99), torch.tensor([2] * 99), halves).require_few("halves")
        """
        if self.most > QUANTA or (are_counted and self.off > FEW + OFF * self.compared):
            raise VerificationError(
                what,
                f"integers are off by up to {self.most}, {self.off} of {self.compared}",
                "report this network: a rule is wrong",
            )
