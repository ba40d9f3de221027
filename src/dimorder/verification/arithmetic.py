"""Define the arithmetic that all integer kernels share: sums of products, windows, moves, and roundings.

Sums are exact if the operands are integers in float64, which holds each sum of products exactly. Pictures are
NHWC, and weights (O, *taps, I / groups). A target's table says which operator is which of these functions,
and how it rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch.nn.functional as functional
from torch import Tensor

from dimorder.ops.dialect import OPS

# -- sums and windows; a window's `pads` are those before and after each dimension ---------------------------


def pad(x: Tensor, pads: Iterable[Sequence[int]], value: float = 0) -> Tensor:
    """Pad each dimension before and after. Negative padding crops."""
    return functional.pad(x, [side for pair in reversed([*pads]) for side in pair], value=value)


def pad_window(x: Tensor, pads: Sequence[int], value: float = 0) -> Tensor:
    """Pad the dimensions of a picture or volume that are neither batch nor channels."""
    return pad(x, [(0, 0), *zip(pads[::2], pads[1::2], strict=True), (0, 0)], value)


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    pads: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
) -> Tensor:
    """Convolve pictures or volumes."""
    operator = OPS.conv2d_nhwc.default if x.dim() == 4 else OPS.conv3d_ndhwc.default
    y: Tensor = operator(pad_window(x, pads), weight, bias, stride, [0] * len(pads), dilation, groups)
    return y


def max_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> Tensor:
    """Return the largest element of each window."""
    padded = pad_window(x, pads, -math.inf)
    y: Tensor = OPS.max_pool2d_nhwc.default(padded, kernel, stride, (0, 0), dilation, False)
    return y


def sum_pool(x: Tensor, kernel: Sequence[int], stride: Sequence[int], pads: Sequence[int]) -> Tensor:
    """Return the sum of each window."""
    y: Tensor = OPS.avg_pool2d_nhwc.default(pad_window(x, pads), kernel, stride, (0, 0), False, True, 1)
    return y


def cut(x: Tensor, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Return a box of a tensor."""
    for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        x = x.narrow(dim, start, size)
    return x


# -- roundings -----------------------------------------------------------------------------------------------


def round_then_offset(x: Tensor, zero_point: int) -> Tensor:
    """Round to the nearest integer, halves to the even one, and add the zero point.

    >>> import torch
    >>> round_then_offset(torch.tensor([0.5, 1.5]), 1), offset_then_round(torch.tensor([0.5, 1.5]), 1)
    (tensor([1., 3.]), tensor([2., 2.]))
    """
    return x.round().add(zero_point)


def offset_then_round(x: Tensor, zero_point: int | Tensor) -> Tensor:
    """Add the zero point and round to the nearest integer.

    Halves go to the even integer, so an odd zero point sends them to the other side.
    """
    return x.add(zero_point).round()


def shift_right(x: Tensor, shift: Tensor | int) -> Tensor:
    """Return `x / 2**shift` for int64, with halves rounded up; `shift` is at least 1.

    >>> import torch
    >>> shift_right(torch.tensor([-3, -1, 1, 3]), 1)
    tensor([-1,  0,  1,  2])
    """
    return (x + (1 << (shift - 1))) >> shift
