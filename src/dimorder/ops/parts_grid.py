"""Write samples at the places of a grid as gathers of neighbours and their weighted sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_LINEAR, _NEAREST, _CUBIC = range(3)  # torch's numbers of modes
_ZEROS, _EDGE, _REFLECTED = range(3)  # and of paddings


def _grid_sampler(
    x: Tensor, grid: Tensor, mode: int = 0, padding: int = 0, align_corners: bool = False
) -> Any:
    if x.dtype != torch.float32:
        return NotImplemented
    batch, channels, *sizes = x.shape
    new = grid.shape[1:-1]
    along = [
        [
            _read(*tap, size)
            for tap in _taps(grid[..., -1 - d].reshape(-1, 1), size, mode, padding, align_corners)
        ]
        for d, size in enumerate(sizes)
    ]
    rows = x.flatten(2).transpose(1, 2).reshape(-1, channels)
    first = torch.arange(batch).repeat_interleave(math.prod(new)).unsqueeze(1)
    total: Any = 0
    for taps in itertools.product(*along):
        at, weight = first, torch.ones(())
        for (place, share), size in zip(taps, sizes, strict=True):
            at, weight = at * size + place, share * weight
        total = total + rows[at.reshape(-1)] * weight
    return total.reshape(batch, -1, channels).transpose(1, 2).reshape(batch, channels, *new)


def _read(place: Tensor, share: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return a place as an index, and its weight, which is 0 outside."""
    inside = torch.logical_and(place >= 0, place <= size - 1)
    return torch.where(inside, place, 0.0).to(torch.int64), torch.where(inside, share, 0.0)


def _taps(at: Tensor, size: int, mode: int, padding: int, is_aligned: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the places along one dimension that are read for places between -1 and 1, and their weights."""
    at = (at + 1) * 0.5  # the size stays whole: a dynamic one is read when the program runs
    at = at * (size - 1) if is_aligned else at * size - 0.5
    if mode == _CUBIC:
        low = torch.floor(at)
        shares = [_cubic((at - low - k).abs()) for k in range(-1, 3)]
        return [(_padded(low + k, size, padding, is_aligned), shares[k + 1]) for k in range(-1, 3)]
    at = _padded(at, size, padding, is_aligned)
    if mode == _NEAREST:
        return [(torch.round(at), torch.ones(()))]
    low = torch.floor(at)
    return [(low, low + 1 - at), (low + 1, at - low)]


def _padded(at: Tensor, size: int, padding: int, is_aligned: bool) -> Tensor:
    """Return the place that is read for a place outside, which may stay outside."""
    if padding == _REFLECTED:
        edge, span = (0.0, size - 1) if is_aligned else (-0.5, size)
        apart = (at - edge).abs()
        turns = torch.floor(apart / max(span, 1))
        rest = apart - turns * span
        is_even = turns - 2 * torch.floor(turns * 0.5) == 0
        at = torch.where(is_even, rest, span - rest) + edge
    return at if padding == _ZEROS else at.clamp(0, size - 1)


def _cubic(apart: Tensor) -> Tensor:
    """Return the weight of a tap at that distance, by Keys' kernel with a slope of -0.75."""
    near = (1.25 * apart - 2.25) * apart * apart + 1
    far = ((-0.75 * apart + 3.75) * apart - 6) * apart + 3
    return torch.where(apart <= 1, near, far)


GRIDS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {aten.grid_sampler_2d.default: _grid_sampler, aten.grid_sampler_3d.default: _grid_sampler}
)
