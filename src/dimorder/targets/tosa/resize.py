"""Write resizes as TOSA's RESIZE, NHWC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import torch

from dimorder.ops.dialect import OPS as dimorder
from dimorder.targets.table import Arguments, Row, is_of_one_type
from dimorder.targets.tosa.dtypes import sum_type
from dimorder.targets.tosa.indices import take
from dimorder.targets.tosa.pointwise import check_float
from dimorder.targets.tosa.writer import TosaValue, TosaWriter
from dimorder.targets.windows import nearest_reads, resizes

MAX_NUMERATOR = 2048  # RESIZE, spec 1.0: scale_y_n <= 1 << 11
MAX_SHRINK = 16  # scale_y_d < 16 * scale_y_n
MAX_GROW = 256  # MAX_SCALE of level 8K


@dataclass(frozen=True)
class ResizeAxis:
    """How RESIZE reads one dimension: element `o` of the `new` at (o · d + offset) / n of the `old`."""

    old: int
    new: int
    n: int
    d: int
    offset: int

    @property
    def border(self) -> int:
        return (self.new - 1) * self.d - (self.old - 1) * self.n + self.offset

    @property
    def refused(self) -> str | None:
        if self.n <= MAX_NUMERATOR and self.n <= MAX_GROW * self.d and self.d < MAX_SHRINK * self.n:
            return None
        limits = f"a numerator up to {MAX_NUMERATOR} and a factor between 1/{MAX_SHRINK} and {MAX_GROW}"
        return f"{self.old} resized to {self.new} as {self.n}/{self.d}, where RESIZE has {limits}"


def is_doubling(factors: Sequence[Fraction]) -> bool:
    """Return whether these factors double height and width, alike and up to three times.

    >>> is_doubling([Fraction(4), Fraction(4)]), is_doubling([Fraction(2), Fraction(4)])
    (True, False)
    """
    return len({*factors}) == 1 and factors[0] in (2, 4, 8)


def factors_of(a: Arguments) -> list[Fraction]:
    """Return the factors of height and width."""
    return [factor for _, _, factor in _axes(a)]


def _axes(a: Arguments) -> Iterator[tuple[int, int, Fraction]]:
    """Return for height and width: old size, new size, and the factor in the call, or else their ratio."""
    for old, new, factor in resizes(a):
        ratio = Fraction(new, old) if factor is None else Fraction(factor).limit_denominator(MAX_NUMERATOR)
        yield old, new, ratio


def bilinear(w: TosaWriter, a: Arguments) -> TosaValue:
    x, axes = w.dense(a.x), bilinear_axes(a)
    for d, axis in enumerate(axes, start=1):
        x = w.slice(x, d, 0, axis.old)
    return _resize(w, "BILINEAR", x, axes, a.shape)


def bilinear_axes(a: Arguments) -> list[ResizeAxis]:
    """Return how a bilinear resize reads height and width.

    Half-pixel centres read at (o + 1/2) / ratio - 1/2. Aligned corners read from the first to the last
    element.
    """
    axes = []
    for old, new, ratio in _axes(a):
        n, d = ratio.numerator, ratio.denominator
        axis = ResizeAxis(old, new, 2 * n, 2 * d, d - n)
        if a.align_corners and 1 in (old, new):
            axis = ResizeAxis(1, new, 2 * new, 2, 1 - new)
        elif a.align_corners:
            steps = Fraction(new - 1, old - 1)
            axis = ResizeAxis(old, new, steps.numerator, steps.denominator, 0)
        axes.append(axis)
    return axes


def check_bilinear(a: Arguments) -> str | None:
    return next((axis.refused for axis in bilinear_axes(a) if axis.refused), None) or check_float(a)


def nearest(w: TosaWriter, a: Arguments) -> TosaValue:
    """Write a nearest resize with an offset of half an element.

    torch takes floor(o / ratio), and RESIZE rounds.

    If torch's float32 multiplication lands on the other side of a whole number, elements are gathered one by
    one.
    """
    x, axes = w.dense(a.x), []
    exact = []
    for old, new, ratio in _axes(a):
        # A whole factor uses half-pixel centres, which read the same elements. Ethos-U55 has nothing else.
        half = ratio.denominator == 1
        axes.append(ResizeAxis(old, new, 2 * ratio.numerator, 2 * ratio.denominator, half - ratio.numerator))
        exact.append([min(int(o / ratio), old - 1) for o in range(new)])
    reads = nearest_reads(a)
    if reads == exact and not any(axis.refused for axis in axes):
        return _resize(w, "NEAREST", x, axes, a.shape)
    for d, indices in enumerate(reads, start=1):
        x = take(w, x, d, torch.tensor(indices))
    return x


def _resize(
    w: TosaWriter, mode: str, x: TosaValue, axes: Sequence[ResizeAxis], shape: Sequence[int]
) -> TosaValue:
    """Write a RESIZE.

    For int8 in BILINEAR it returns sums in int32, larger by the product of both numerators.
    """
    scale = [number for axis in axes for number in (axis.n, axis.d)]
    offset, border = [axis.offset for axis in axes], [axis.border for axis in axes]
    dtype = sum_type(x.dtype) if mode == "BILINEAR" else x.dtype
    return w.op("RESIZE", [x, w.sizes(scale), w.sizes(offset), w.sizes(border)], shape, dtype, mode=mode)


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        dimorder.upsample_bilinear2d_nhwc.default: Row(bilinear, check_bilinear),
        dimorder.upsample_nearest2d_nhwc.default: Row(nearest, check_float, halves=is_of_one_type),
    }
)
