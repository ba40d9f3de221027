"""Write scatters, searches and counts in index_put, comparisons and sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

MOST_PAIRS = 1 << 24  # that an operator compares; a larger one stays


# -- scatters


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def _flat_places(shape: Sequence[int], dim: int, index: Tensor) -> Tensor:
    """Return the place in a tensor of `shape` of each element that an index along `dim` selects."""
    if not shape:
        return index.reshape(-1)
    dim, own = dim % len(shape), index.shape
    strides = _strides(shape)
    at = index * strides[dim]
    for d, stride in enumerate(strides):
        if d != dim and own[d] > 1:
            along = torch.arange(own[d]) * stride
            at = at + along.reshape([-1 if e == d else 1 for e in range(len(own))])
    return at.reshape(-1)


def _put(x: Tensor, at: Tensor, values: Tensor, accumulate: bool = False) -> Tensor:
    """Write values at flat places."""
    return torch.index_put(x.reshape(-1), [at], values.reshape(-1), accumulate).reshape(x.shape)


def _used(source: Tensor, index: Tensor) -> Tensor:
    for d, size in enumerate(index.shape):
        source = source.narrow(d, 0, size)
    return source


def _scatter(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _put(x, _flat_places(x.shape, dim, index), _used(source, index))


def _of_number(scatter: Callable[..., Any]) -> Callable[..., Any]:
    """Return a scatter of one number."""
    return lambda x, dim, index, value, **how: scatter(
        x, dim, index, torch.full(index.shape, value, dtype=x.dtype), **how
    )


def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    if x.dtype == torch.bool:
        return NotImplemented
    return _put(x, _flat_places(x.shape, dim, index), _used(source, index), True)


_NAMED = {"add": "sum", "multiply": "prod"}


def _scatter_with(x: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str) -> Any:
    return torch.scatter_reduce(x, dim, index, source, _NAMED[reduce])


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Any:
    if x.dtype == torch.bool or (reduce == "mean" and not x.is_floating_point()):
        return NotImplemented
    if reduce in ("amax", "amin", "prod"):
        if x.dim() == 1 and source.shape == index.shape:
            return NotImplemented
        flat = _flat_places(x.shape, dim, index), _used(source, index).reshape(-1)
        y = torch.scatter_reduce(x.reshape(-1), 0, *flat, reduce, include_self=include_self)
        return y.reshape(x.shape)
    at, values = _flat_places(x.shape, dim, index), _used(source, index).reshape(-1)
    counts = _put(torch.zeros(x.shape, dtype=x.dtype), at, torch.ones(values.shape, dtype=x.dtype), True)
    base = x if include_self else torch.where(counts > 0, 0, x)
    total = _put(base, at, values, True)
    if reduce == "sum":
        return total
    return total / (counts + 1 if include_self else counts.clamp(min=1))


def _index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    shape = [-1 if d == dim % max(x.dim(), 1) else 1 for d in range(source.dim())]
    places = index.reshape(shape).expand(source.shape)
    return torch.scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


def _diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    places = torch.arange(x.numel()).reshape(x.shape).diagonal(offset, dim1, dim2)
    return _put(x, places.reshape(-1), source)


def _max_pool_backward(grad: Tensor, x: Tensor, *given: Any) -> Tensor:
    indices, planes = given[-1], math.prod(x.shape[:-2])
    offsets = torch.arange(planes).reshape(-1, 1) * math.prod(x.shape[-2:])
    at = (indices.reshape(planes, -1) + offsets).reshape(-1)
    return _put(torch.zeros(x.shape, dtype=x.dtype), at, grad, True)


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """Write values that do not depend on how many elements a mask selects."""
    masks = [each for each in indices if each is not None]
    if len(masks) != 1 or masks[0].dtype != torch.bool or x.dtype == torch.bool:
        return NotImplemented
    before = [each is None for each in indices].index(False)
    after = x.dim() - before - masks[0].dim()
    if values.dim() > after or (before and values.numel() > 1):
        return NotImplemented
    mask = masks[0].reshape(*masks[0].shape, *[1] * after)
    return x + torch.where(mask, values, 0) if accumulate else torch.where(mask, values, x)


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    mask = mask.expand(shape)
    at = torch.cumsum(mask.reshape(-1).to(torch.int64), 0) - 1
    values = source.reshape(-1)[at.clamp(0, source.numel() - 1)]
    return torch.where(mask, values.reshape(shape), x)


# -- searches


def places_among(values: Tensor, ordered: Tensor, is_right: bool, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return how many elements of an ascending row come before each value, by a comparison of each pair."""
    values, ordered = values.unsqueeze(-1), ordered if ordered.dim() == 1 else ordered.unsqueeze(-2)
    before = ordered <= values if is_right else ordered < values
    return before.sum(-1, dtype=dtype)


def _searchsorted(
    ordered: Tensor,
    values: Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    if sorter is not None:
        ordered = torch.gather(ordered, -1, sorter)
    dtype, is_right = torch.int32 if out_int32 else torch.int64, right or side == "right"
    shape = values.shape if isinstance(values, Tensor) else ()
    if ordered.dim() == 1:
        values = values.reshape(-1) if isinstance(values, Tensor) else values
    found = _bisected(ordered, values, is_right)
    return found.reshape(shape).to(dtype)


def _bisected(ordered: Tensor, values: Tensor | float, is_right: bool) -> Tensor:
    """Return the place of each value by torch's own steps, which say where it is in a row without order."""
    length = ordered.shape[-1]
    shape = values.shape if isinstance(values, Tensor) else (1,)
    start, end = torch.zeros(shape, dtype=torch.int32), torch.full(shape, length, dtype=torch.int32)
    for _ in range(length.bit_length()):
        middle = start + torch.div(end - start, 2, rounding_mode="floor")
        at = middle.clamp(max=length - 1).to(torch.int64)
        found = ordered[at] if ordered.dim() == 1 else torch.gather(ordered, -1, at)
        is_behind = found > values if is_right else found >= values
        is_open = start < end
        end = torch.where(is_open & is_behind, middle, end)
        start = torch.where(is_open & torch.logical_not(is_behind), middle + 1, start)
    return start


def _repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Any:
    if output_size is None or output_size * repeats.numel() > MOST_PAIRS:
        return NotImplemented
    ends = torch.cumsum(repeats, 0)
    return places_among(torch.arange(output_size), ends, True)


def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    if x.dtype != torch.float32 or x.numel() * bins > MOST_PAIRS:
        return NotImplemented
    x = x.reshape(-1)
    low, high = (x.amin(), x.amax()) if min == max else (torch.full((), min), torch.full((), max))
    is_flat = low == high
    low, high = torch.where(is_flat, low - 1, low), torch.where(is_flat, high + 1, high)
    within = torch.logical_and(x >= low, x <= high)
    place = torch.floor((x - low) / (high - low) * bins).clamp(max=bins - 1)
    place = torch.where(within, place, -1.0)
    return (place.unsqueeze(1) == torch.arange(bins, dtype=torch.float32)).sum(0).to(torch.float32)


# -- histograms and segments


def _histogram_edges(x: Tensor, bins: int, between: Sequence[float] | None) -> Tensor:
    if between is not None:
        low, high = torch.full((), between[0]), torch.full((), between[1])
    else:
        low, high = x.amin(), x.amax()
    is_flat = low == high
    low, high = torch.where(is_flat, low - 0.5, low), torch.where(is_flat, high + 0.5, high)
    return torch.linspace(low, high, bins + 1)


def _in_bins(x: Tensor, edges: Tensor) -> Tensor:
    """Return for each element of a row which bin has it; the last edge belongs to the last bin."""
    bins = edges.shape[0] - 1
    place = (_bisected(edges, x, True) - 1).clamp(max=bins - 1)
    place = torch.where((x >= edges[0]) & (x <= edges[-1]), place, -1)
    return (place.unsqueeze(-1) == torch.arange(bins)).to(torch.float32)


def _counted(points: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Any:
    """Return the weights of the points, which are rows, in each box between the edges of each column."""
    sizes = [len(each) - 1 for each in edges]
    if points.dtype != torch.float32 or points.shape[0] * math.prod(sizes) > MOST_PAIRS:
        return NotImplemented
    total = torch.ones(points.shape[0], 1) if weight is None else weight.reshape(-1, 1)
    for column, each in enumerate(edges):
        total = (total.unsqueeze(-1) * _in_bins(points[:, column], each).unsqueeze(1)).flatten(1)
    found = total.sum(0)
    if density:
        volume = torch.ones(1)
        for each in edges:
            volume = (volume.unsqueeze(-1) * (each[1:] - each[:-1])).reshape(-1)
        found = found / (found.sum() * volume)
    return found.reshape(sizes)


def _histogram(
    x: Tensor,
    bins: int | Tensor = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Any:
    edges = bins if isinstance(bins, Tensor) else _histogram_edges(x, bins, range)
    found = _counted(x.reshape(-1, 1), [edges], weight, density)
    return found if found is NotImplemented else (found, edges.clone())


def _histogramdd_edges(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    points = x.flatten(0, -2)
    return [
        _histogram_edges(points[:, i], each, None if range is None else range[2 * i : 2 * i + 2])
        for i, each in enumerate(bins)
    ]


def _histogramdd_of_counts(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Any:
    return _counted(x.flatten(0, -2), _histogramdd_edges(x, bins, range=range), weight, density)


def _histogramdd_of_edges(
    x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Any:
    return _counted(x.flatten(0, -2), bins, weight, density)


_SEGMENTS: Mapping[str, tuple[float, Callable[..., Tensor], Callable[..., Tensor]]] = MappingProxyType(
    {  # where nothing is, how rows are reduced, and how with an initial value
        "sum": (0.0, torch.sum, torch.add),
        "mean": (0.0, torch.sum, torch.add),
        "prod": (1.0, torch.prod, torch.mul),
        "max": (-math.inf, torch.amax, torch.maximum),
        "min": (math.inf, torch.amin, torch.minimum),
    }
)


def _segment_reduce(
    x: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    if offsets is not None:
        starts, ends = offsets[..., :-1], offsets[..., 1:]
    elif lengths is not None:
        ends = torch.cumsum(lengths, -1)
        starts = ends - lengths
    if (lengths is None and offsets is None) or x.numel() * starts.shape[-1] > MOST_PAIRS:
        return NotImplemented
    none, reduced, combined = _SEGMENTS[reduce]
    places, inner = torch.arange(x.shape[axis]), [1] * (x.dim() - axis - 1)
    within = torch.logical_and(places >= starts.unsqueeze(-1), places < ends.unsqueeze(-1))
    y = reduced(torch.where(within.reshape(*within.shape, *inner), x.unsqueeze(axis), none), axis + 1)
    y = y if initial is None else combined(y, torch.full((), initial))
    if reduce != "mean":
        return y
    counts = (ends - starts).to(x.dtype).reshape(*ends.shape, *inner)
    return torch.where(counts > 0, y / counts, math.nan if initial is None else y)


def _nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Any:
    if not x.dim() or x.numel() * size > MOST_PAIRS:
        return NotImplemented
    counted = torch.cumsum((x != 0).reshape(-1).to(torch.int64), 0)
    numbers = torch.arange(1, size + 1)
    at = places_among(numbers, counted, False).clamp(max=x.numel() - 1)
    columns = [
        torch.div(at, stride, rounding_mode="floor") % length
        for stride, length in zip(_strides(x.shape), x.shape, strict=True)
    ]
    is_found = (numbers <= counted[-1]).unsqueeze(1)
    return torch.where(is_found, torch.stack(columns, 1), fill_value)


INDEXED: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.scatter.src: _scatter,
        aten.scatter.value: _of_number(_scatter),
        aten.scatter.reduce: _scatter_with,
        aten.scatter.value_reduce: _of_number(_scatter_with),
        aten.scatter_add.default: _scatter_add,
        aten.scatter_reduce.two: scatter_reduce,
        aten.index_reduce.default: _index_reduce,
        aten.put.default: lambda x, index, source, *accumulate: _put(
            x, index.reshape(-1), source, *accumulate
        ),
        aten.diagonal_scatter.default: _diagonal_scatter,
        aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
        aten.index_put.default: _index_put,
        aten.masked_scatter.default: _masked_scatter,
        aten.searchsorted.Tensor: _searchsorted,
        aten.searchsorted.Scalar: _searchsorted,
        aten.bucketize.Tensor: lambda values, bounds, **how: _searchsorted(bounds, values, **how),
        aten.repeat_interleave.Tensor: _repeat_interleave,
        aten.histc.default: _histc,
        aten.histogram.bin_ct: _histogram,
        aten.histogram.bins_tensor: _histogram,
        aten._histogramdd_bin_edges.default: _histogramdd_edges,
        aten._histogramdd_from_bin_cts.default: _histogramdd_of_counts,
        aten._histogramdd_from_bin_tensors.default: _histogramdd_of_edges,
        aten.segment_reduce.default: _segment_reduce,
        aten.nonzero_static.default: _nonzero_static,
    }
)
