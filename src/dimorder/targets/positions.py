"""Compute with indices as torch does, and read elements at them, for targets that gather rows of a matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dimorder.targets.graph_writer import N, NamedWriter, T
from dimorder.targets.table import Arguments, View

aten = torch.ops.aten

Indices: TypeAlias = "Sequence[View[N] | Tensor | None]"


def flat_positions(
    w: NamedWriter[N, T],
    sizes: Sequence[int],
    indices: Indices[N],
    dtype: torch.dtype,
    counted: Callable[[Tensor], N],
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
        counted: writes the numbers of all elements of a dimension, from 0 on.
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
            each = counted(torch.arange(length, dtype=dtype).reshape(length, *[1] * after))
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


def reads_at_indices(
    take: Callable[[Any, N, int, N | Tensor], N], places: Callable[[Any, Sequence[int], Indices[N]], N]
) -> Mapping[Any, Callable[[Any, Arguments], N]]:
    """Return what writes each operator that reads elements at indices.

    Args:
        take: writes the elements at 1-D indices of a dimension.
        places: writes the flat position of each element that indices select, as `flat_positions` does.
    """

    def embedding(w: NamedWriter[N, T], a: Arguments) -> N:
        return w.reshape(take(w, w.dense(a.weight), 0, flat(w, a.indices)), a.shape)

    def index_select(w: NamedWriter[N, T], a: Arguments) -> N:
        x = w.dense(a.self)
        x = w.reshape(x, x.shape or (1,))
        return w.reshape(take(w, x, a.dim % len(x.shape), flat(w, a.index)), a.shape)

    def gathered(w: NamedWriter[N, T], a: Arguments, indices: Indices[N]) -> N:
        x = w.dense(a.self)
        sizes, rest = x.shape[: len(indices)], x.shape[len(indices) :]
        at = places(w, sizes, indices)
        x = w.reshape(x, (math.prod(sizes), *rest))
        return w.reshape(take(w, x, 0, w.reshape(at, (at.size,))), a.shape)

    return {
        aten.embedding.default: embedding,
        aten.index_select.default: index_select,
        aten.index.Tensor: lambda w, a: gathered(w, a, a.indices),
        aten.gather.default: lambda w, a: gathered(w, a, _gather_indices(a)),
    }


def _gather_indices(a: Arguments) -> list[View[N] | Tensor]:
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
