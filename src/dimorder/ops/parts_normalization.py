"""Write norms, distances, and contractions whose weights are computed, in sums and matmuls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten
_NATIVE_BATCH_NORM = decomposition_table[aten.native_batch_norm.default]


# -- norms with their means


def _native_group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> Any:
    grouped = x.reshape(batch, groups, -1)
    mean = grouped.mean(2, True)
    centred = grouped - mean
    rest = torch.rsqrt((centred * centred).mean(2, True) + eps)
    y = (centred * rest).reshape(x.shape)
    return _scaled(y, weight, bias), mean.reshape(batch, groups), rest.reshape(batch, groups)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift channels, which are dimension 1."""
    shape = [-1, *[1] * (x.dim() - 2)]
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def _native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if training:
        if mean is not None:  # it would be written
            return NotImplemented
        return _NATIVE_BATCH_NORM(x, weight, bias, mean, variance, training, momentum, eps)
    assert mean is not None
    assert variance is not None
    rest, none = torch.rsqrt(variance + eps), torch.zeros(0)
    scale = rest if weight is None else rest * weight
    return _scaled(x - mean.reshape([-1, *[1] * (x.dim() - 2)]), scale, bias), none, none


def _batch_norm(*given: Any) -> Any:
    found = _native_batch_norm(*given[:-1])  # without cudnn_enabled
    return found if found is NotImplemented else found[0]


# -- lengths and distances


def _length_of_number(
    x: Tensor,
    power: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Write the length of a number as that of a row: `ops.moments` spells all others."""
    if x.dim() or x.dtype != torch.float32 or dtype not in (None, x.dtype):
        return NotImplemented
    return torch.linalg.vector_norm(x.reshape(1), power)


MOST_DIFFERENCES = 1 << 26  # of a distance between all pairs; a larger one stays


def _cdist(x: Tensor, y: Tensor, p: float, mode: int | None) -> Any:
    if x.shape[-2] * y.shape[-2] * x.numel() // x.shape[-2] > MOST_DIFFERENCES:
        return NotImplemented
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


# -- contractions of computed operands


def _trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    for dim in sorted(expand1):
        x = x.unsqueeze(dim)
    for dim in sorted(expand2):
        y = y.unsqueeze(dim)
    for dim in sorted(expand3):
        z = z.unsqueeze(dim)
    return (x * y * z).sum(list(sumdim))


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Write a convolution as a matmul: the pixels that each tap reads are gathered at constant places."""
    taps, pixels = weight.shape[2:], math.prod(x.shape[2:])
    out = [x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0]]
    for d, size in enumerate(x.shape[2:]):
        reach = dilation[d] * (taps[d] - 1)
        if transposed:
            out.append((size - 1) * stride[d] - 2 * padding[d] + reach + output_padding[d] + 1)
        else:
            out.append((size + 2 * padding[d] - reach - 1) // stride[d] + 1)
    places = _read_places(x.shape[2:], out[2:], taps, stride, padding, dilation, transposed)
    flat = F.pad(x.reshape(x.shape[0] * x.shape[1], pixels), [0, 1])  # the last one is padding
    inputs, outputs = x.shape[1] // groups, out[1] // groups
    columns = flat[:, places].reshape(x.shape[0], groups, inputs * math.prod(taps), -1)
    if transposed:
        weight = weight.reshape(groups, inputs, outputs, -1).transpose(1, 2)
    y = torch.matmul(weight.reshape(groups, outputs, inputs * math.prod(taps)), columns).reshape(out)
    return y if bias is None else y + bias.reshape(-1, *[1] * len(taps))


def _read_places(
    sizes: Sequence[int],
    out: Sequence[int],
    taps: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
) -> Tensor:
    """Return the flat place that each tap reads for each pixel of the result; one more is padding."""
    rank = len(sizes)
    place, is_inside = torch.zeros([1] * 2 * rank, dtype=torch.int64), torch.ones([], dtype=torch.bool)
    for d, size in enumerate(sizes):
        tap = torch.arange(taps[d]).reshape([-1 if e == d else 1 for e in range(2 * rank)])
        pixel = torch.arange(out[d]).reshape([-1 if e == rank + d else 1 for e in range(2 * rank)])
        if transposed:
            own = pixel + padding[d] - tap * dilation[d]
            is_inside = is_inside & (own % stride[d] == 0)
            own = torch.div(own, stride[d], rounding_mode="floor")
        else:
            own = pixel * stride[d] - padding[d] + tap * dilation[d]
        place, is_inside = place * size + own, is_inside & (own >= 0) & (own < size)
    return torch.where(is_inside, place, math.prod(sizes)).reshape(-1)


NORMALIZED: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        **{
            target: decomposition_table[target]
            for target in (
                aten.native_layer_norm.default,
                aten._native_batch_norm_legit.no_stats,
                aten.native_dropout_backward.default,
            )
        },
        aten.native_group_norm.default: _native_group_norm,
        aten.native_batch_norm.default: _native_batch_norm,
        aten.batch_norm.default: _batch_norm,
        aten.linalg_vector_norm.default: _length_of_number,
        aten._cdist_forward.default: _cdist,
        aten._trilinear.default: _trilinear,
        aten.convolution.default: _convolution,
    }
)
