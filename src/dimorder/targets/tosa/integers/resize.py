"""Write resizes of integers: as RESIZE, or as depthwise convolutions of the phases of each dimension.

The results of one phase read at the same place between two elements of the input, so by the same weights. A
resize by 4 has four phases. Their sums are those of RESIZE in smaller numbers. They have 48 bits after both
dimensions. RESCALE's factors for these have 15 bits: exact for powers of two, else to a 128th of a quantum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch

from dimorder.graph.quantized import IntegerType, in_float32
from dimorder.ops.dialect import OPS as dimorder
from dimorder.targets.table import Arguments, Row, whole
from dimorder.targets.tosa import resize, spatial
from dimorder.targets.tosa.calls import changed
from dimorder.targets.tosa.dtypes import DTYPES
from dimorder.targets.tosa.integers.kernels import INTEGERS, SELECTION
from dimorder.targets.tosa.integers.lookups import as_integers
from dimorder.targets.tosa.integers.numbers import Accumulator, IntegerWriter, Lookup
from dimorder.targets.tosa.integers.sums import quantize
from dimorder.targets.tosa.pointwise import check_float
from dimorder.targets.tosa.rescale import SHORT, rescale
from dimorder.targets.tosa.writer import TosaValue
from dimorder.targets.windows import nearest_reads

W = IntegerWriter
Join = Callable[[Sequence[TosaValue]], TosaValue]
MAX_TOTAL = 127  # of weights in int8, times an int8: a sum in int16
MAX_STRIDE = 3  # of a depthwise convolution on Ethos-U55 and U65


@dataclass(frozen=True)
class Taps:
    """The adjacent elements that each result of one dimension reads: from `starts` on, times `weights`.

    Elements beyond an end of the `old` ones are the last one there. All results have the same `total`, the
    sum of their weights.
    """

    old: int
    starts: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]

    @staticmethod
    def bilinear(axis: resize.ResizeAxis) -> Taps:
        """Return the two elements around each place at which RESIZE reads, without a common factor."""
        at = [o * axis.d + axis.offset for o in range(axis.new)]
        pairs = [(axis.n - place % axis.n, place % axis.n) for place in at]
        common = math.gcd(*(weight for pair in pairs for weight in pair))
        count = 2 if any(second for _, second in pairs) else 1
        weights = tuple(tuple(weight // common for weight in pair[:count]) for pair in pairs)
        return Taps(axis.old, tuple(place // axis.n for place in at), weights)

    @staticmethod
    def nearest(old: int, reads: Sequence[int]) -> Taps:
        return Taps(old, tuple(reads), ((1,),) * len(reads))

    @property
    def total(self) -> int:
        return 1 if self.old == 1 else sum(self.weights[0])

    @property
    def new(self) -> int:
        return len(self.starts)

    @property
    def computes(self) -> bool:
        """Whether the results are more than the elements as they are, or one element repeated."""
        return self.old > 1 and not (self.total == 1 and self.starts == tuple(range(self.old)))

    @property
    def fits(self) -> bool:
        """Whether the weights and the sums do."""
        return not self.computes or self.total <= MAX_TOTAL

    @property
    def edges(self) -> tuple[int, int]:
        """How often the first and the last element are read beyond their ends."""
        last = max(self.starts) + len(self.weights[0]) - 1
        return max(0, -min(self.starts)), max(0, last - (self.old - 1))

    @cached_property
    def period(self) -> tuple[int, int]:
        """After how many results the weights come again, and how many elements further on these are read.

        >>> Taps.bilinear(resize.ResizeAxis(5, 10, 4, 2, -1)).period
        (2, 1)
        """
        periods = math.gcd(self.old, self.new)
        results, step = self.new // periods, self.old // periods
        again = range(self.new - results)
        recurs = all(
            (self.starts[o] + step, self.weights[o]) == (self.starts[o + results], self.weights[o + results])
            for o in again
        )
        return (results, step) if recurs and step <= MAX_STRIDE else (self.new, 1)


def in_phases(w: W, x: TosaValue, of: IntegerType, taps: Sequence[Taps], shape: Sequence[int]) -> Accumulator:
    """Return the numbers of (N, H, W, C) resized to `shape`; `taps` are of height and width.

    Columns come first, when there are fewer rows. Between the two dimensions are sums in int16, which holds
    those of int8 exactly. Those of int16 are means there, which are rounded.
    """
    moving = [(dim, each) for dim, each in ((2, taps[1]), (1, taps[0])) if each.computes]
    for dim, each in moving:
        x = _with_edges(w, x, dim, each)
    zero_point, sums = of.zero_point, [x]
    is_rounded = of.dtype == torch.int16 and len(moving) == 2 and taps[1].total > 1
    between = 1 / taps[1].total if is_rounded else 1.0
    join: Join = _alone
    for step, (dim, each) in enumerate(moving):
        if step and taps[1].total > 1:
            x, zero_point = join([rescale(w, phase, [between], "INT16") for phase in sums]), 0
        elif step:  # elements as they are
            x = join([rescale(w, phase, [1.0], x.dtype, to_zero_point=zero_point) for phase in sums])
        sums, join = _phases(w, x, dim, each, zero_point)
    centre = 0 if moving else zero_point

    def write(factor: float, dtype: str, to_zero_point: int = 0) -> TosaValue:
        """Rescale each phase by itself, which Vela fuses with its convolution."""
        rounded = [
            rescale(w, phase, [factor], dtype, zero_point=centre, to_zero_point=to_zero_point)
            for phase in sums
        ]
        return w.tiled(join(rounded), shape)

    total = taps[0].total * (1 if is_rounded else taps[1].total)
    scale = in_float32(of.scale) / total
    error = 2.0**-SHORT * of.reach * in_float32(of.scale) if sums[0].dtype == "INT48" else 0.0
    error = 2 * error + in_float32(of.scale) / 2 if is_rounded else error
    scales = torch.tensor(scale, dtype=torch.float64)
    made = Accumulator(write(1.0, "INT32"), scales, of.reach * total, error=error)

    def write_integers(wanted: Accumulator, to: IntegerType) -> TosaValue:
        return write(float(wanted.scales) / in_float32(to.scale), DTYPES[to.dtype], to.zero_point)

    w.shortcuts[made.integers.tensor] = write_integers
    return made


def _alone(values: Sequence[TosaValue]) -> TosaValue:
    (value,) = values
    return value


def _with_edges(w: W, x: TosaValue, dim: int, taps: Taps) -> TosaValue:
    before, after = taps.edges
    first, last = (w.slice(x, dim, at, 1) for at in (0, taps.old - 1))
    return w.concat([first] * before + [x] + [last] * after, dim)


def _phases(w: W, x: TosaValue, dim: int, taps: Taps, zero_point: int) -> tuple[list[TosaValue], Join]:
    """Return the sums of each phase along one dimension, and the function that joins them.

    Dimensions after it are channels. Phases are adjacent to each other as channels too, so that Vela writes
    each of them in its place.
    """
    outer, inner = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 :])
    image = w.reshape(x, (1, outer, x.shape[dim], inner))
    phases, stride = taps.period
    count = taps.new // phases
    sums = []
    for start, weights in zip(taps.starts[:phases], taps.weights[:phases], strict=True):
        length = stride * (count - 1) + len(weights)
        part = w.slice(image, 2, start + taps.edges[0], length)
        weight = torch.tensor(weights, dtype=torch.int8).expand(inner, 1, -1).unsqueeze(-1)
        shape = (1, outer, count, inner)
        made = spatial.convolve(
            w, part, weight, shape, stride=(1, stride), groups=inner, zero_point=zero_point
        )
        sums.append(made)

    def join(values: Sequence[TosaValue]) -> TosaValue:
        joined: TosaValue = w.reshape(w.concat(values, 3), (*x.shape[:dim], taps.new, *x.shape[dim + 1 :]))
        return joined

    return sums, join


# -- rows --------------------------------------------------------------------------------------------------


def _bilinear(w: W, a: Arguments) -> Accumulator:
    """Write a bilinear resize; the weights of each result add up to the product of the numerators."""
    x, of = as_integers(w, w.dense(a.x))
    axes = resize.bilinear_axes(a)
    taps = [Taps.bilinear(axis) for axis in axes]
    if not w.forms.resizes and all(each.fits for each in taps):
        for dim, axis in enumerate(axes, start=1):
            x = w.slice(x, dim, 0, axis.old)
        return in_phases(w, x, of, taps, a.shape)
    ones = math.prod(axis.n for axis in axes)
    sums = resize.bilinear(w, changed(a, x=whole(x)))
    centred = w.elementwise("SUB", sums, of.zero_point * ones) if of.zero_point else sums
    scale = torch.tensor(in_float32(of.scale) / ones, dtype=torch.float64)
    total = Accumulator(centred, scale, (255 if of.dtype == torch.int8 else of.reach) * ones)

    def write(wanted: Accumulator, to: IntegerType) -> TosaValue | None:
        """Write the result with the integers' own scale and zero point, which a mean of integers keeps."""
        ratio = float(wanted.scales) * ones / in_float32(to.scale)
        if abs(ratio - 1) > 2**-20 or to.zero_point != of.zero_point:
            return None
        return rescale(w, sums, [1 / ones], DTYPES[to.dtype])

    w.shortcuts[centred.tensor] = write
    return total


def _nearest(w: W, a: Arguments) -> Lookup:
    x, of = as_integers(w, w.dense(a.x))
    call = changed(a, dtype=of.dtype, x=whole(x))
    if w.forms.resizes:
        y = resize.nearest(w, call)
    elif resize.is_doubling(resize.factors_of(call)):
        # One image below the other: Vela doubles one image alone.
        images, (rows, columns) = x.shape[0], a.output_size
        tall = w.reshape(x, (1, images * x.shape[1], *x.shape[2:]))
        sizes = {"output_size": (images * rows, columns), "shape": (1, images * rows, *a.shape[2:])}
        y = resize.nearest(w, changed(call, x=whole(tall), **sizes))
    else:
        reads = zip(x.shape[1:3], nearest_reads(call), strict=True)
        taps = [Taps.nearest(old, each) for old, each in reads]
        y = quantize(w, in_phases(w, x, of, taps, a.shape), of)
    return Lookup.dequantize(w.reshape(y, a.shape), of)


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        dimorder.upsample_bilinear2d_nhwc.default: Row(_bilinear, resize.check_bilinear, kernel=INTEGERS),
        dimorder.upsample_nearest2d_nhwc.default: Row(_nearest, check_float, kernel=SELECTION),
    }
)
