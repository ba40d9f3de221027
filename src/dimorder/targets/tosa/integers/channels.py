"""Write a multiplication or addition of per-channel constants as a depthwise convolution of one tap.

Vela fuses it with its RESCALE. For a MUL or an ADD with such a constant it makes several operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dimorder.graph.quantized import IntegerType, in_float32
from dimorder.targets.tosa import spatial
from dimorder.targets.tosa.integers.lookups import as_integers
from dimorder.targets.tosa.integers.numbers import BITS, Accumulator, IntegerWriter, Lookup, Operand, largest
from dimorder.targets.tosa.integers.products import limit_of
from dimorder.targets.tosa.integers.sums import quantize
from dimorder.targets.tosa.writer import TosaValue

LARGEST = 127  # of a weight
ERROR = 2**-7  # of a quantum: the allowed error of a sum, if no weight makes the constant an integer


def are_channels(x: Operand, constant: Operand) -> bool:
    """Return whether `constant` has a number for each element of the last dimensions of an int8 `x`."""
    if not isinstance(x, Lookup) or not isinstance(constant, Tensor) or constant.dim() > len(x.shape):
        return False
    last = tuple(constant.shape)
    while last[:1] == (1,):
        last = last[1:]
    is_last = last != () and x.shape[-len(last) :] == last
    return is_last and x.of.dtype == torch.int8 and x.exact_type is not None


def multiply_channels(w: IntegerWriter, x: Lookup, constant: Tensor) -> Accumulator:
    """Return x · constant: its signs are weights, its magnitudes scales. Negligible numbers become 0."""
    integers, of = as_integers(w, x)
    factors = constant.detach().double().flatten()
    nothing = factors.abs() <= largest(factors) * 2.0**-BITS
    scales = torch.where(nothing, 1.0, factors.abs()) * in_float32(of.scale)
    return _depthwise(w, integers, of, torch.where(nothing, 0.0, factors.sign()), None, scales)


def add_channels(w: IntegerWriter, total: Accumulator, x: Lookup, constant: Tensor) -> None:
    """Let `total`, which is x + constant, become one convolution if it is quantised next.

    Each channel gets the weight that makes its constant most nearly an integer.
    """
    step = float(total.scales)
    scale = in_float32(as_integers(w, x)[1].scale)
    offsets = constant.detach().double().flatten() / scale  # finite, since `total` is their sum
    weights = torch.arange(1, LARGEST + 1, dtype=torch.float64)[:, None]
    sums = (weights * offsets).round()
    error, best = ((sums / weights - offsets).abs()).min(0)
    if float(sums.abs().max()) >= 2**30:
        return
    bias = sums.gather(0, best[None])[0].to(torch.int32)

    def write(wanted: Accumulator, to: IntegerType) -> TosaValue | None:
        factor = float(wanted.scales) / step
        if factor * scale * float(error.max()) > ERROR * in_float32(to.scale):
            return None
        integers, of = as_integers(w, x)
        scales = factor * scale / (best + 1).double()
        return quantize(w, _depthwise(w, integers, of, (best + 1).double(), bias, scales), to)

    w.shortcuts[total.integers.tensor] = write


def _depthwise(
    w: IntegerWriter, x: TosaValue, of: IntegerType, weights: Tensor, bias: Tensor | None, scales: Tensor
) -> Accumulator:
    """Write a depthwise convolution over any shape, whose last dimensions are the channels."""
    channels, space = weights.numel(), x.shape[:-1]
    if len(space) != 3 or x.shape[-1] != channels:
        space = (1, 1, math.prod(x.shape) // channels)
    image = w.reshape(x, (*space, channels))
    total = depthwise(w, image, of, weights.to(torch.int8).reshape(channels, 1, 1, 1), image.shape, bias)
    made: Accumulator = w.reshape(Accumulator(total.integers, scales, total.limit), x.shape)
    return made


def depthwise(
    w: IntegerWriter,
    x: TosaValue,
    of: IntegerType,
    weight: Tensor,
    shape: Sequence[int],
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
) -> Accumulator:
    """Write a depthwise convolution of int8 (N, H, W, C) with an integer weight (C, height, width, 1).

    The result has `shape`.
    """
    sides = spatial.both_sides(padding)
    channels, zero_point = weight.shape[0], of.zero_point
    sums = spatial.convolve(
        w, x, weight, shape, bias=bias, stride=stride, padding=sides, groups=channels, zero_point=zero_point
    )
    scale = torch.tensor([in_float32(of.scale)], dtype=torch.float64)
    return Accumulator(sums, scale, limit_of(weight, bias, of))
