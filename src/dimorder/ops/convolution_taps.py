"""Lower a convolution with only those of its taps that read more than padding: at all, or at each place.

A dilation that is nearly as large as the image makes most taps read padding at most places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from dimorder.graph.nodes import args_of, dynamic_dims
from dimorder.graph.tracing import max_shape_of, shape_of
from dimorder.ops.call import Call
from dimorder.ops.convolution_kernels import SUMMED, Convolution, is_scaled, part_padding
from dimorder.ops.dialect import OPS
from dimorder.ops.operator import Implementation

aten = torch.ops.aten


def without_outer_taps(c: Call) -> None:
    """Lower a convolution without the first and last taps that read only padding.

    A kernel whose dilation is as large as its image keeps one tap.
    """
    conv = Convolution.of(c)
    weight, padding = conv.weight, list[int]()
    for d, kept in enumerate(_kernel_taps(c.node)):
        count = weight.shape[d + 1]
        weight = weight.narrow(d + 1, kept.start, len(kept))
        padding += part_padding(kept.start, 1, count, len(kept), conv.dilation[d], conv.padding[d])
    c.give(conv.write(c, c.take(0, conv.dims), padding, weight=weight), conv.dims)


def _kernel_taps(node: torch.fx.Node) -> list[range]:
    """Return the taps to keep in each dimension of the kernel as `Convolution` has it, which is never 1-D."""
    inner = _inner_taps(node)
    return [range(1)] * (2 - len(inner)) + inner


def _inner_taps(node: torch.fx.Node) -> list[range]:
    """Return, for each dimension, the taps to keep: without the others, only padding is cropped."""
    x, weight, _, stride, padding, dilation, *_ = args_of(node)
    sizes, results, kernel = (shape[2:] for shape in (max_shape_of(x), max_shape_of(node), shape_of(weight)))
    read = read_taps(sizes, results, kernel, stride, padding, dilation)
    fewer = [before // apart for before, apart in zip(padding, dilation, strict=True)]
    return [
        range(min(taps.start, some), max(taps.stop, count - some))
        for taps, some, count in zip(read, fewer, kernel, strict=True)
    ]


def read_taps(
    sizes: Sequence[int],
    results: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[range]:
    """Return, for each spatial dimension, the range of taps that read more than padding, or of all taps.

    `sizes` are those of the input, `results` those of the result, and `padding` is before the input.
    """
    found = []
    for size, windows, taps, step, before, apart in zip(
        sizes, results, kernel, stride, padding, dilation, strict=True
    ):
        # Each tap's place in the first window, and the first window in which that place can be in the input.
        first = ((at, max(0, -(at // step))) for at in (tap * apart - before for tap in range(taps)))
        reads = [window < windows and at + window * step < size for at, window in first]
        found.append(range(reads.index(True), taps - reads[::-1].index(True)) if any(reads) else range(taps))
    return found


def has_outer_taps(node: torch.fx.Node) -> bool:
    kernel, transposed = shape_of(args_of(node)[1])[2:], args_of(node)[6]
    return not transposed and list(kernel) != [len(taps) for taps in _inner_taps(node)]


def has_many_taps(node: torch.fx.Node, most_taps: int) -> bool:
    """Return whether a call is a 1-D or 2-D depthwise convolution of which more than `most_taps` taps read
    more than padding."""
    x, _, _, _, _, _, transposed, _, groups = args_of(node)
    depthwise = groups == shape_of(x)[1] > 1 and not transposed and len(shape_of(x)) < 5
    return depthwise and math.prod(map(len, _inner_taps(node))) > most_taps


def tap_by_tap(macs_per_byte: int) -> Implementation:
    """Return the implementation of convolutions as sums of kernels of one tap, each on what that tap reads.

    A target lists it as its own, with the number of multiplications that take as long as to move a byte.
    """
    return Implementation(
        "tap by tap",
        "n s.0 s.1 s.2 g c",
        _write_taps,
        (OPS.conv2d_nhwc.default, *SUMMED, aten.constant_pad_nd.default),
        partial(_saves_by_taps, macs_per_byte=macs_per_byte),
    )


def _write_taps(c: Call) -> None:
    """Write each row of taps on the rows that it reads, and add the results there; likewise in each row."""
    c.compute_in_float32()
    conv = Convolution.of(c)
    sizes = [c.size(0, dim) for dim in conv.dims[1:3]]
    taps = _kernel_taps(c.node)

    def added(x: torch.fx.Node, d: int, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.fx.Node:
        if d == 2:
            return conv.write(c, x, [0] * 4, weight=weight, bias=bias)

        def parts() -> Iterator[torch.fx.Node]:
            for tap in taps[d]:
                step = tap * conv.dilation[d] - conv.padding[d]
                before, after = max(-step, 0), max(step, 0)
                read = c.b.slice(x, d + 1, after, sizes[d] - before) if step else x
                y = added(read, d + 1, weight.narrow(d + 1, tap, 1), None if step else bias)
                sides = [0, 0] * (2 - d) + [before, after]
                yield c.b.call(aten.constant_pad_nd.default, y, sides, 0.0) if step else y

        return c.b.combine(aten.add.Tensor, parts())

    c.give(added(c.take(0, conv.dims), 0, conv.weight, conv.bias), conv.dims)


def _saves_by_taps(node: torch.fx.Node, macs_per_byte: int) -> bool:
    """Return whether fewer multiplications save more than slices, padding and additions cost."""
    x, weight, _, stride, padding, dilation, transposed, _, groups = args_of(node)
    sizes, kernel = shape_of(x)[2:], shape_of(weight)[2:]
    same = all(k % 2 and 2 * p == d * (k - 1) for p, d, k in zip(padding, dilation, kernel, strict=True))
    plain = not transposed and groups == 1 and set(stride) == {1} and len(kernel) < 3
    fixed = all(dim < 2 for dim in dynamic_dims(node))
    if not (same and plain and fixed) or is_scaled(weight):
        return False

    inner, (outputs, inputs) = _inner_taps(node), shape_of(weight)[:2]
    reads = 1  # places of the result in which a tap reads the input, summed over the taps
    for size, taps, apart, before in zip(sizes, inner, dilation, padding, strict=True):
        reads *= sum(size - abs(tap * apart - before) for tap in taps)
    pixels, count = math.prod(sizes), math.prod(map(len, inner))
    saved = (count * pixels - reads) * outputs * inputs
    # A slice reads and writes what its tap reads. Padding writes a whole result, and an addition moves three.
    moved = 4 * (2 * (reads - pixels) * inputs + 4 * (count - 1) * pixels * outputs)
    return saved > macs_per_byte * moved
