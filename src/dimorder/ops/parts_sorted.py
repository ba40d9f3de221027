"""Write operators that depend on the order of values in sorts of rows, comparisons, and doubling steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.ops.parts_indexed import MOST_PAIRS

aten = torch.ops.aten


def _along_rows(function: Callable[..., Any], x: Tensor, dim: int, keepdim: bool = True) -> Any:
    """Call a function of rows with `dim` last, and put the dimension of its results back."""
    last = x.dim() - 1
    y, at = function(x.transpose(dim, last))
    y, at = y.transpose(dim, last), at.transpose(dim, last)
    return (y, at) if keepdim else (y.squeeze(dim), at.squeeze(dim))


def _of_number(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, torch.zeros((), dtype=torch.int64)


def _moved_to_last(function: Callable[[Tensor], Any], x: Tensor, dim: int) -> Any:
    """Call a function of rows along a dimension other than the last one, which targets have themselves."""
    if not x.dim():
        return _of_number(x)
    return NotImplemented if dim % x.dim() == x.dim() - 1 else _along_rows(function, x, dim)


def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    return torch.topk(x, x.shape[dim], dim, descending) if x.dim() else _of_number(x)


def _sort_stable(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    return _moved_to_last(lambda y: torch.sort(y, dim=-1, descending=descending, stable=True), x, dim)


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return _moved_to_last(lambda y: torch.topk(y, k, -1, largest), x, dim)


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    def of_rows(y: Tensor) -> Any:
        return [each[..., k - 1 :] for each in torch.topk(y, k, -1, False)]

    return _along_rows(of_rows, x, dim, keepdim) if x.dim() else _of_number(x)


def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the least of the most frequent values, and its last place."""
    if x.dtype != torch.float32 or x.numel() * (x.shape[dim] if x.dim() else 1) > MOST_PAIRS:
        return NotImplemented

    def of_rows(y: Tensor) -> Any:
        counts = (y.unsqueeze(-1) == y.unsqueeze(-2)).sum(-1).to(torch.float32)
        is_most = counts == counts.amax(-1, True)
        value = torch.where(is_most, y, math.inf).amin(-1, True)
        places = torch.arange(y.shape[-1], dtype=torch.float32)
        return value, torch.where(y == value, places, -1.0).amax(-1, True).to(torch.int64)

    return _along_rows(of_rows, x, dim, keepdim) if x.dim() else _of_number(x)


def _median_of_rows(y: Tensor) -> tuple[Tensor, Tensor]:
    value, place = torch.kthvalue(y, (y.shape[-1] + 1) // 2, -1, True)
    if not y.is_floating_point():
        return value, place
    odd = torch.isnan(y)  # a NaN is the median
    has_odd, first = odd.any(-1, True), odd.to(torch.float32).argmax(-1, True)
    return torch.where(has_odd, math.nan, value), torch.where(has_odd, first, place)


def _nanmedian_of_rows(y: Tensor) -> tuple[Tensor, Tensor]:
    is_number = torch.logical_not(torch.isnan(y))
    values, places = torch.sort(torch.where(is_number, y, math.inf), -1)
    count = is_number.sum(-1, keepdim=True)
    middle = torch.div((count - 1).clamp(min=0), 2, rounding_mode="trunc")
    value = torch.where(count == 0, math.nan, torch.gather(values, -1, middle))
    return value, torch.gather(places, -1, middle)


def _of_all(of_rows: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Return a function of all elements as one row, from one of rows. It returns no place."""
    return lambda x: of_rows(x.reshape(-1))[0].reshape(())


def _of_dim(of_rows: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Return a function along one dimension from one of rows."""

    def compute(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
        return _along_rows(of_rows, x, dim, keepdim) if x.dim() else _of_number(x)

    return compute


def _of_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is not written for other types."""
    return lambda x, *args, **kwargs: (
        function(x, *args, **kwargs) if x.dtype == torch.float32 else NotImplemented
    )


def _shifted(x: Tensor, dim: int, by: int, fill: float | None = None) -> Tensor:
    """Move elements towards higher indices; the first ones stay, or have the value `fill`."""
    shape = list(x.shape)
    shape[dim] = by
    first = x.narrow(dim, 0, by) if fill is None else torch.full(shape, fill, dtype=x.dtype)
    return torch.cat([first, x.narrow(dim, 0, x.shape[dim] - by)], dim)


def _running_extreme(is_kept: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, int], Any]:
    def compute(x: Tensor, dim: int) -> Any:
        if not x.dim():
            return _of_number(x)
        if x.dtype == torch.bool:
            return NotImplemented
        dim = dim % x.dim()
        at = torch.arange(x.shape[dim]).reshape([-1 if d == dim else 1 for d in range(x.dim())])
        at, by = at.expand(x.shape), 1
        while by < x.shape[dim]:
            before, place = _shifted(x, dim, by), _shifted(at, dim, by)
            kept = is_kept(x, before)
            if x.is_floating_point():  # a NaN stays
                is_nan = torch.isnan(before)
                kept = torch.logical_or(torch.isnan(x), torch.logical_and(kept, torch.logical_not(is_nan)))
            x, at, by = torch.where(kept, x, before), torch.where(kept, at, place), 2 * by
        return x, at

    return compute


def _logcumsumexp(x: Tensor, dim: int) -> Any:
    if x.dtype != torch.float32:
        return NotImplemented
    by = 1
    while x.dim() and by < x.shape[dim]:
        x, by = torch.logaddexp(x, _shifted(x, dim % x.dim(), by, -math.inf)), 2 * by
    return x


def _extreme_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return NotImplemented if x.dim() else _of_number(x)


def of_truths(target: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose rows may be truth values: the numbers 1 and 0 have the same order."""

    def compute(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.dtype != torch.bool:
            return function(x, *args, **kwargs)
        values, at = target(x.to(torch.float32), *args, **kwargs)
        return values != 0, at

    return compute


def _product(x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    if x.dtype != torch.float32 or dtype not in (None, x.dtype):
        return NotImplemented
    return torch.prod(x.reshape(-1), 0) if x.dim() else x


SORTED: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        **{
            target: of_truths(target, function)
            for target, function in (
                (aten.sort.default, _sort),
                (aten.sort.stable, _sort_stable),
                (aten.mode.default, _mode),
                (aten.max.dim, _extreme_dim),
                (aten.min.dim, _extreme_dim),
            )
        },
        aten.topk.default: _topk,
        aten.kthvalue.default: _kthvalue,
        aten.median.default: _of_all(_median_of_rows),
        aten.median.dim: _of_dim(_median_of_rows),
        aten.nanmedian.default: _of_float32(_of_all(_nanmedian_of_rows)),
        aten.nanmedian.dim: _of_float32(_of_dim(_nanmedian_of_rows)),
        aten.cummax.default: _running_extreme(torch.ge),
        aten.cummin.default: _running_extreme(torch.le),
        aten.logcumsumexp.default: _logcumsumexp,
        aten.max.default: lambda x: NotImplemented if x.dim() else x,
        aten.min.default: lambda x: NotImplemented if x.dim() else x,
        aten.prod.default: _product,
    }
)
