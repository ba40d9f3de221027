"""Compute the matrix of a resize along one dimension: the weight of each element in each one of the result.

Each call computes it from the sizes, which may be dynamic. The weight is 1 less the distance between the two
places, and 0 from a distance of 1 on. In a bicubic resize it is a cubic function of the distance. With
antialiasing the distance is in elements of the smaller side. In an adaptive pool the weight is the same for
all elements of a window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

# Its arguments are the sizes of a dimension before and after, a factor or None, and the operand's rank.
Matrix: TypeAlias = Callable[[Any, Any, "float | None", int], Tensor]

_COEFFICIENT = -0.75  # of torch's bicubic resize
_ANTIALIASED = -0.5  # of torch's bicubic resize with antialiasing


def nearest(old: Any, new: Any, factor: float | None, rank: int) -> Tensor:
    """Return the matrix of a nearest resize."""
    return _weights((_range(new) * _step(old, new, factor)).floor(), old, rank)


def nearest_exact(old: Any, new: Any, factor: float | None, rank: int) -> Tensor:
    """Return the matrix of a nearest resize by the centres of elements."""
    return _weights(_centres(old, new, factor).floor(), old, rank)


def linear(aligned: bool) -> Matrix:
    """Return what computes the matrix of a linear resize."""
    return lambda old, new, factor, rank: _weights(_places(old, new, factor, aligned), old, rank)


def cubic(aligned: bool) -> Matrix:
    """Return what computes the matrix of a bicubic resize.

    The four elements that it reads beyond an end are the one at the end.
    """

    def matrix(old: Any, new: Any, factor: float | None, rank: int) -> Tensor:
        places = _places(old, new, factor, aligned)
        low = places.floor()

        def neighbour(k: int) -> Tensor:
            element = torch.minimum((low + k).clamp(min=0.0), last_of(old))
            share = _cubic((places - low - k).abs(), _COEFFICIENT, is_near=k in (0, 1))
            return near(element, old, rank) * share.view(*[1] * (rank - 2), -1, 1)

        return neighbour(-1) + neighbour(0) + neighbour(1) + neighbour(2)

    return matrix


def antialiased_linear(old: Any, new: Any, factor: float | None, rank: int) -> Tensor:
    """Return the matrix of a linear resize with antialiasing, which is not aligned."""
    return _normalized((1 - _spread(old, new, factor, rank)).clamp(min=0.0))


def antialiased_cubic(old: Any, new: Any, factor: float | None, rank: int) -> Tensor:
    """Return the matrix of a bicubic resize with antialiasing, which is not aligned."""
    distance = _spread(old, new, factor, rank)
    inner = _cubic(distance.clamp(max=1.0), _ANTIALIASED, is_near=True)
    outer = _cubic(distance.clamp(1.0, 2.0), _ANTIALIASED, is_near=False)
    return _normalized(inner + outer)


def windows(old: Any, new: int, rank: int) -> Tensor:
    """Return the matrix of a mean pool.

    Element j is in window i if (j + 1) new > i old and j new < (i + 1) old. The lesser difference of these
    integers is clamped to 0 … 1, times the old size. This factor makes the matrices of two sizes differ. The
    matrix of an odd size could else be taken for the middle of a larger one, which even sizes do not have.
    """
    i, j, count = _range(new).unsqueeze(-1), _range(old), last_of(old) + 1
    begun, ended = (j + 1) * float(new) - i * count, (i + 1) * count - j * float(new)
    inside = torch.minimum(torch.minimum(begun, ended).clamp(min=0.0) * count, count)
    return _normalized(inside).view(*[1] * (rank - 2), *inside.shape)


def near(places: Tensor, old: Any, rank: int) -> Tensor:
    """Return 1 less the distance of each place to each element, at least 0."""
    return (1 - _distances(places, old, rank)).clamp(min=0.0)


def last_of(size: Any) -> Tensor:
    """Return size - 1 as a tensor: a number would be another constant for each size."""
    return _range(size)[-1:]


def _weights(places: Tensor, old: Any, rank: int) -> Tensor:
    """Return the matrix for these places. At an end one neighbour is missing, and the other counts alone."""
    return _normalized(near(places, old, rank))


def _normalized(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def _distances(places: Tensor, old: Any, rank: int) -> Tensor:
    ones = [1] * (rank - 2)
    return (places.view(*ones, -1, 1) - _range(old).view(*ones, 1, -1)).abs()


def _spread(old: Any, new: Any, factor: float | None, rank: int) -> Tensor:
    """Return distances in elements of the smaller side."""
    step = _step(old, new, factor)
    width = step.clamp(min=1.0) if isinstance(step, Tensor) else max(step, 1.0)
    return _distances(_centres(old, new, factor) - 0.5, old, rank) / width


def _cubic(distance: Tensor, a: float, is_near: bool) -> Tensor:
    """Return the weight at a distance of at most 1, or of 1 to 2."""
    if is_near:
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1
    return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a


def _places(old: Any, new: Any, factor: float | None, aligned: bool) -> Tensor:
    """Return where each element of a result lies among those of the operand."""
    if aligned:
        return _range(new) * (last_of(old) / last_of(new).clamp(min=1.0))
    return _centres(old, new, factor) - 0.5


def _centres(old: Any, new: Any, factor: float | None) -> Tensor:
    centres: Tensor = (_range(new) + 0.5) * _step(old, new, factor)
    return centres


def _step(old: Any, new: Any, factor: float | None) -> Any:
    return (last_of(old) + 1) / (last_of(new) + 1) if factor is None else 1 / factor


def _range(size: Any) -> Tensor:
    return torch.arange(size, dtype=torch.float32)
