"""Write a transposed convolution as convolutions of its input, one for each row of a step.

That is less work for an NPU than TRANSPOSE_CONV2D, whose sums Vela writes separately and rescales one by one.
With a step of s each result is the sum of every s-th tap: result q·s + r is Σ x[q - j] · w[r + padding +
j·s]. So a row of results in steps is a convolution, whose channels are those of the s results of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dimorder.targets.table import Arguments
from dimorder.targets.tosa import spatial
from dimorder.targets.tosa.writer import TosaValue, TosaWriter


@dataclass(frozen=True)
class _Side:
    """Height or width: results a step, the taps of its convolution from `low` to `high`, and padding."""

    step: int
    low: int
    high: int
    padding: tuple[int, int]

    @staticmethod
    def of(step: int, padding: int, taps: int, size: int, results: int) -> _Side | None:
        """Return None if the results are no whole steps, or if input would be cut off."""
        low = min(-((r + padding) // step) for r in range(step))
        high = max((taps - 1 - r - padding) // step for r in range(step))
        after = results // step - low - size
        if results % step or min(high, after) < 0:
            return None
        return _Side(step, low, high, (high, after))

    def taps(self, r: int, padding: int, count: int) -> list[tuple[int, int]]:
        """Return pairs for result `r` of a step: a tap of the convolution, and its tap of the weight."""
        found = [(self.high - j, r + padding + j * self.step) for j in range(self.low, self.high + 1)]
        return [(at, tap) for at, tap in found if 0 <= tap < count]


@dataclass(frozen=True)
class Phases:
    """The rows of a step.

    `weights[r]` are (columns of the step · C, height, width, inputs). Each of their convolutions has `shape`
    and `padding`.
    """

    weights: Tensor
    columns: int
    shape: tuple[int, ...]
    padding: list[int]

    @staticmethod
    def of(a: Arguments, x: TosaValue, weight: Tensor) -> Phases | None:
        """Return the phases of a call in NHWC with a weight (C, height, width, inputs), or None."""
        if a.groups != 1 or set(a.dilation) != {1} or set(a.stride) == {1}:
            return None
        sides = [
            _Side.of(a.stride[d], a.padding[d], weight.shape[d + 1], x.shape[d + 1], a.shape[d + 1])
            for d in range(2)
        ]
        if sides[0] is None or sides[1] is None:
            return None
        down, across = sides[0], sides[1]
        channels, inputs = weight.shape[0], weight.shape[-1]
        sizes = (down.high - down.low + 1, across.high - across.low + 1)
        cut = weight.new_zeros(down.step, across.step, channels, *sizes, inputs)
        for r in range(down.step):
            for c in range(across.step):
                for y, row in down.taps(r, a.padding[0], weight.shape[1]):
                    for z, column in across.taps(c, a.padding[1], weight.shape[2]):
                        cut[r, c, :, y, z] = weight[:, row, column]
        n, height, width, _ = a.shape
        shape = (n, height // down.step, width // across.step, across.step * channels)
        return Phases(cut.flatten(1, 2), across.step, shape, [*down.padding, *across.padding])

    def sums(self, w: TosaWriter, x: TosaValue, row: int, bias: Tensor | None, zero_point: int) -> TosaValue:
        """Return the results of one row of each step, with the results of a step side by side."""
        return spatial.convolved(
            w,
            x,
            self.weights[row],
            self.shape,
            bias=None if bias is None else bias.repeat(self.columns),
            padding=self.padding,
            zero_point=zero_point,
        )

    def joined(self, w: TosaWriter, rows: list[TosaValue]) -> TosaValue:
        """Return the rows of all steps, one below the other."""
        n, height, width, channels = self.shape
        parts = [w.reshape(row, (n * height, 1, width, channels)) for row in rows]
        y = w.op("CONCAT", parts, (n * height, len(rows), width, channels), axis=1)
        shape = (n, height * len(rows), width * self.columns, channels // self.columns)
        return w.reshape(y, shape)
