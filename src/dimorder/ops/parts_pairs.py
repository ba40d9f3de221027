"""Write scatters and sorts in comparisons of all pairs, for targets that have no operator near them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dimorder.graph.nodes import bound, tensor_of
from dimorder.ops.parts_elementary import MOST_STEPS
from dimorder.ops.parts_indexed import MOST_PAIRS, scatter_reduce
from dimorder.ops.parts_sorted import of_truths

aten = torch.ops.aten


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Any:
    """Reduce by an extreme or a product what goes to each place; a row alone is left of other scatters."""
    if not index.numel():
        return x
    written = scatter_reduce(x, dim, index, source, reduce, include_self)
    if written is not NotImplemented or not x.is_floating_point() or x.numel() * index.numel() > MOST_PAIRS:
        return written
    goes_there = index == torch.arange(x.numel()).unsqueeze(-1)
    if reduce == "prod":
        found = torch.where(goes_there, source, 1.0).prod(-1)
        found = found * x if include_self else found
    else:
        is_largest = reduce == "amax"
        found = torch.where(goes_there, source, -torch.inf if is_largest else torch.inf)
        found = found.amax(-1) if is_largest else found.amin(-1)
        combine = torch.maximum if is_largest else torch.minimum
        found = combine(found, x) if include_self else found
    return torch.where(goes_there.any(-1), found, x)


def _sort_stable(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    """Put each value where it belongs: before it are the smaller ones, and equal ones of a lower index."""
    if not stable or not x.dim():
        return torch.sort(x, dim, descending)
    y = x.transpose(dim, -1)
    if y.numel() * y.shape[-1] > MOST_PAIRS:
        return NotImplemented
    places = torch.arange(y.shape[-1])
    own, other = y.unsqueeze(-1), y.unsqueeze(-2)
    less, more = (own, other) if descending else (other, own)
    is_before, is_equal = less < more, less == more
    if x.is_floating_point():
        is_before = torch.logical_or(is_before, _is_nan_alone(more, less))
        is_equal = torch.logical_or(is_equal, torch.logical_and(torch.isnan(less), torch.isnan(more)))
    is_earlier = torch.logical_and(is_equal, places < places.unsqueeze(-1))
    ranks = torch.logical_or(is_before, is_earlier).to(torch.int64).sum(-1, keepdim=True)
    found = torch.where(ranks == places, places.unsqueeze(-1), 0).sum(-2)
    return torch.gather(y, -1, found).transpose(dim, -1), found.transpose(dim, -1)


def unsorted(sort: Node) -> str:
    """Return why a sort stays a sort: the pairs to compare, and which calls need fewer."""
    x, dim = (bound(sort.target, sort.args, sort.kwargs)[name] for name in ("self", "dim"))
    shape = tensor_of(x).shape
    pairs = shape.numel() * shape[dim] if shape else 0
    count = shape[dim] if shape else 1
    return (
        f"and a sort of {count:,} values compares {pairs:,} pairs, at most {MOST_PAIRS:,}: "
        f"sort fewer values, or take the topk of {MOST_STEPS} or fewer"
    )


def _is_nan_alone(x: Tensor, other: Tensor) -> Tensor:
    return torch.logical_and(torch.isnan(x), torch.logical_not(torch.isnan(other)))


PAIRS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.scatter_reduce.two: _scatter_reduce,
        aten.sort.stable: of_truths(aten.sort.stable, _sort_stable),
    }
)
