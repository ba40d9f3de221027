"""Compute with indices as torch does, for writers of targets that gather rows of a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from dimorder.targets.graph_writer import N, NamedWriter, T
from dimorder.targets.table import Arguments, View

Indices: TypeAlias = "Sequence[View[N] | Tensor | None]"


def flat_positions(
    w: NamedWriter[N, T],
    sizes: Sequence[int],
    indices: Indices[N],
    dtype: torch.dtype,
    from_start: Callable[[View[N] | Tensor, int], N],
    multiply_add: Callable[[N, int, N], N],
) -> N:
    """Return the flat position of each element that `indices` select, in dimensions of these `sizes`.

    None stands for every index of its dimension. Its dimension of the result is where torch puts it: in its
    place, or after the other indices if these are not adjacent. Indices may be negative.

    Args:
        w: the writer.
        sizes: the sizes of the indexed dimensions.
        indices: an index, or None, for each of them.
        dtype: the integers in which the target computes positions.
        from_start: writes the indices of a dimension of this size, negative ones counted from its start.
        multiply_add: writes x * number + y.
    """
    if all(index is None or isinstance(index, Tensor) for index in indices):
        named = tuple(index if isinstance(index, Tensor) else slice(None) for index in indices)
        return w.constant(torch.arange(math.prod(sizes), dtype=dtype).reshape(tuple(sizes))[named])
    indexed = [dim for dim, index in enumerate(indices) if index is not None]
    rank = max(len(index.shape) for index in indices if index is not None)
    are_neighbours = indexed[-1] - indexed[0] + 1 == len(indexed)
    front = list(range(indexed[0])) if are_neighbours else []
    behind = [dim for dim, index in enumerate(indices) if index is None and dim not in front]
    order = [*front, *indexed[:1], *behind]  # of the result, where `rank` dimensions replace the indexed ones
    at = None
    for dim, (index, length) in enumerate(zip(indices, sizes, strict=True)):
        if index is None:
            after = sum(rank if d in indexed else 1 for d in order[order.index(dim) + 1 :])
            each = w.constant(torch.arange(length, dtype=dtype).reshape(length, *[1] * after))
        else:
            each = from_start(index, length)
            each = w.reshape(each, (*each.shape, *[1] * len(behind)))
        at = each if at is None else multiply_add(at, length, each)
    assert at is not None
    return at


def flat(w: NamedWriter[N, T], operand: View[N] | Tensor) -> N | Tensor:
    """Return an operand in one dimension."""
    if isinstance(operand, Tensor):
        return operand.reshape(-1)
    value = w.dense(operand)
    return w.reshape(value, (value.size,))


def gather_indices(a: Arguments) -> list[View[N] | Tensor]:
    """Return an index for each dimension of a gather: an element's own index for all dimensions but one."""
    rank = len(a.shape)
    indices: list[View[N] | Tensor] = [
        torch.arange(length).reshape([-1 if d == dim else 1 for d in range(rank)])
        for dim, length in enumerate(a.shape)
    ]
    if rank:
        indices[a.dim % rank] = a.index
    return indices


def check_indices(a: Arguments) -> str | None:
    """Return why a call's indices are none, or None."""
    if any(index.meta["val"].dtype in (torch.bool, torch.uint8) for index in a.indices if index is not None):
        return "a mask instead of indices"
    return None
