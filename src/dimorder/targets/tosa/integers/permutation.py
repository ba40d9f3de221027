"""Permute channels by a convolution with ones and zeros.

An NPU computes it in a small part of the cycles in which it writes elements one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dimorder.targets.table import View
from dimorder.targets.tosa import spatial
from dimorder.targets.tosa.rescale import rescale
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

MAX_CHANNELS = 512  # the matrix then has a quarter of a million elements, nearly all 0


def unmoved_dims(source: Sequence[int], target: Sequence[int], sizes: Sequence[int]) -> int | None:
    """Return how many first dimensions stay in place, if a matrix can permute the elements of the others.

    `sizes` are by dimension.

    >>> unmoved_dims((0, 1, 2, 3), (0, 1, 3, 2), (2, 7, 3, 5)), unmoved_dims((0, 1, 2), (1, 0, 2), (2, 7, 3))
    (2, None)
    """
    still = 0
    while still < len(source) and source[still] == target[still]:
        still += 1
    channels = math.prod(sizes[d] for d in source[still:])
    return still if 0 < still < len(source) and channels <= MAX_CHANNELS else None


def permute_channels(w: TosaWriter, view: View[TosaValue]) -> tuple[TosaValue, torch.Tensor] | None:
    """Return an int8 view dense in its own order, and its channels in sequence.

    Return None if not only channels change places.
    """
    value, order = view.value, view.order
    still = unmoved_dims(range(len(order)), order, value.shape)
    if still is None or value.dtype != "INT8":
        return None
    space, channels = value.shape[:still], math.prod(value.shape[still:])
    source = torch.arange(channels).reshape(value.shape[still:]).permute([d - still for d in order[still:]])
    weight = torch.nn.functional.one_hot(source.flatten(), channels).to(torch.int8)
    image = w.reshape(value, (*(space if still == 3 else (1, 1, math.prod(space))), channels))
    moved = spatial.convolve(w, image, weight.reshape(channels, 1, 1, channels), image.shape)
    moved = rescale(w, moved, [1.0], "INT8")
    return w.reshape(moved, view.shape), source.flatten()
