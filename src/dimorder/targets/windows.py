"""Define what several targets ask of convolutions, pools and resizes in NHWC."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dimorder.graph.quantized import Scaled
from dimorder.ops.dialect import OPS
from dimorder.targets.table import Arguments, shape_of

# A depthwise kernel of more taps has no fast XNNPACK kernel: 7 x 7 takes 10.1 ms at 56 x 56 x 96. Three
# kernels of at most 25 taps and two additions take under 2 ms.
PART_TAPS = 25


def is_depthwise(groups: int, weight_ohwi: Sequence[int]) -> bool:
    return groups > 1 and weight_ohwi[3] == 1


def spans(dilation: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Return how many elements of the input a dilated kernel covers along each dimension.

    >>> spans([2, 1], [3, 5])
    [5, 5]
    """
    return [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]


def unfit_taps(a: Arguments) -> str | None:
    """Return that a depthwise kernel has too many taps, or None (see PART_TAPS)."""
    weight = shape_of(a.weight_ohwi)
    taps = math.prod(weight[1:3])
    if is_depthwise(a.groups, weight) and taps > PART_TAPS:
        return f"a depthwise kernel of {taps} taps; XNNPACK is fast up to {PART_TAPS}"
    return None


def unfit_dilation(a: Arguments, operator: str) -> str | None:
    """Return that a pool is dilated, which an operator of the target is not, or None."""
    return None if set(a.dilation) <= {1} else f"dilation {a.dilation}; {operator} has none"


def is_whole_picture(a: Arguments, shape: Sequence[int]) -> bool:
    """Return whether a mean over windows of a picture of this shape is one mean of several pixels."""
    taps = math.prod(a.kernel_size)
    is_whole = tuple(a.kernel_size) == tuple(shape[1:3]) and not any(a.padding)
    return is_whole and taps > 1 and a.divisor_override in (None, taps)


def mean_taps(a: Arguments, channels: int) -> Scaled:
    """Return the depthwise kernel (1, KH, KW, channels) that computes a mean over windows."""
    ones = torch.ones(1, *a.kernel_size, channels, dtype=torch.int8)
    return Scaled.of(ones, torch.tensor(1 / math.prod(a.kernel_size)))


def pool_factors(a: Arguments, shape: Sequence[int], padding: Sequence[int]) -> Tensor | None:
    """Return what a mean over windows is, over that of all elements of the padded input; None if it is 1.

    `padding` is that before and after each dimension.
    """
    if not any(padding) and a.divisor_override is None:
        return None
    # The divisor may differ from place to place. The mean of ones gives it.
    ones = torch.ones(1, *shape[1:3], 1)
    window = (a.kernel_size, a.stride, a.padding, a.ceil_mode, a.count_include_pad, a.divisor_override)
    inside = torch.nn.functional.pad(ones, (0, 0, *padding[2:], *padding[:2]))
    counted = OPS.avg_pool2d_nhwc(inside, a.kernel_size, a.stride, [0, 0], False, True, None)
    factors: Tensor = OPS.avg_pool2d_nhwc(ones, *window) / counted
    return None if torch.equal(factors, torch.ones_like(factors)) else factors


def resizes(a: Arguments) -> Iterable[tuple[int, int, float | None]]:
    """Return the old size, the new one and the given scale of each dimension that a call resizes."""
    return zip(shape_of(a.x)[1:3], a.output_size, (a.scales_h, a.scales_w), strict=True)


def nearest_reads(a: Arguments) -> list[list[int]]:
    """Return the rows and columns that torch's kernel reads, which computes in float32 (UpSample.h)."""
    reads = []
    for old, new, scale in resizes(a):
        step = torch.tensor(old / new if scale is None else 1 / scale, dtype=torch.float32)
        reads.append((torch.arange(new) * step).floor().long().clamp(max=old - 1).tolist())
    return reads


def unfit_scale(a: Arguments, runtime: str) -> str | None:
    """Return that a bilinear resize has another scale than the ratio of its sizes, or None."""
    for old, new, scale in resizes(a):
        if scale is not None and not a.align_corners and new != old * scale:
            return f"the scale {scale} from {old} to {new}; {runtime} takes the ratio of the sizes"
    return None


def unfit_multiple(a: Arguments) -> str | None:
    """Return that a nearest resize does not repeat all rows, and all columns, as often, or None."""
    for old, new, scale in resizes(a):
        if new % old or scale not in (None, new / old):
            return f"a nearest resize from {old} to {new}, which is no whole multiple"
    return None
