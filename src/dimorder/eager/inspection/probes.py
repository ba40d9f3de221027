"""List the operators to probe: name → rank → function, or None for a rank at which there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dimorder.eager.channels_last import RANKS

Make = Callable[[int], Callable[[Tensor], Any] | None]


def _any_rank(function: Callable[[Tensor], Any]) -> Make:
    return lambda rank: function


def _per_rank(make: Callable[[int], Callable[[Tensor], Any]], *ranks: int) -> Make:
    """Return a row for some ranks; `make` gets the number of dims after the channels."""
    return lambda rank: make(rank - 2) if rank in (ranks or RANKS) else None


def _like(x: Tensor, *shape: int) -> Tensor:
    """Return fixed numbers of a shape, on the tensor's device: weights and the like."""
    count = int(torch.Size(shape).numel())
    values = torch.linspace(-0.5, 0.6, count, device=x.device)
    return values[(torch.arange(count, device=x.device) * 7) % max(1, count)].reshape(shape)


def _conv(name: str, inner: int, kernel: int = 3, **options: Any) -> Callable[[int], Callable[[Tensor], Any]]:
    """Return a convolution of 12 channels with a channels-last weight, whose dimension 1 is `inner`."""
    outer = 12 if "transpose" in name or options.get("groups") == 12 else 8

    def make(dims: int) -> Callable[[Tensor], Any]:
        return lambda x: getattr(F, f"{name}{dims}d")(
            x, _like(x, outer, *([kernel] * dims), inner).movedim(-1, 1), None, **options
        )

    return make


def _by_name(prefix: str, *args: Any, **kwargs: Any) -> Callable[[int], Callable[[Tensor], Any]]:
    return lambda dims: lambda x: getattr(F, f"{prefix}{dims}d")(x, *args, **kwargs)


def _binary(name: str) -> Make:
    function = getattr(torch, name)
    return _any_rank(lambda x: function(x, x.square()))


def _pad(mode: str) -> Make:
    return _per_rank(lambda dims: lambda x: F.pad(x, [1, 2] * dims, mode=mode))


def _interpolate(mode: str, **options: Any) -> Make:
    modes = {"linear": {1: "linear", 2: "bilinear", 3: "trilinear"}}.get(mode, {})
    return _per_rank(
        lambda dims: lambda x: F.interpolate(x, scale_factor=2, mode=modes.get(dims, mode), **options)
    )


_UNARY = (
    *("abs", "acos", "angle", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad", "digamma"),
    *("erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "i0", "isfinite", "isnan", "lgamma"),
    *("log", "log10", "log1p", "log2", "logical_not", "logit", "nan_to_num", "neg", "reciprocal", "round"),
    *("rsqrt", "sign", "signbit", "sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "sigmoid"),
)
_ACTIVATIONS = (
    *("relu", "relu6", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "hardtanh"),
    *("leaky_relu", "softplus", "softsign", "logsigmoid", "tanhshrink", "softshrink", "hardshrink"),
)
_BINARY = (
    *("add", "sub", "mul", "div", "pow", "maximum", "minimum", "fmod", "remainder", "atan2", "eq", "gt"),
    *("hypot", "copysign", "logaddexp", "floor_divide", "fmax", "xlogy"),
)


def _row_major(x: Tensor) -> Tensor:
    return _like(x, *x.shape)


def _index(x: Tensor) -> Tensor:
    return torch.tensor([5, 0, 3], device=x.device)


def _whole(x: Tensor) -> Tensor:
    """Return a channel index for each element, row-major."""
    return torch.arange(x.numel(), device=x.device).remainder(x.shape[1]).view(x.shape)


def _mask(x: Tensor) -> Tensor:
    return x > 0.5


def _bias(x: Tensor) -> Tensor:
    return _like(x, x.shape[1], *([1] * (x.dim() - 2)))


def _grid(x: Tensor) -> Tensor:
    dims = x.dim() - 2
    return _like(x, x.shape[0], *([5] * dims), dims)


PROBES: Mapping[str, Make] = MappingProxyType(
    {
        **{name: _any_rank(getattr(torch, name)) for name in _UNARY},
        **{name: _any_rank(getattr(F, name)) for name in _ACTIVATIONS},
        "threshold": _any_rank(lambda x: F.threshold(x, 0.5, 0.1)),
        "prelu": _any_rank(lambda x: F.prelu(x, _like(x, x.shape[1]))),
        "glu C": _any_rank(lambda x: F.glu(x, 1)),
        **{name: _binary(name) for name in _BINARY},
        "add a number": _any_rank(lambda x: x + 1.5),
        "add per channel": _any_rank(lambda x: x + _bias(x)),
        "add row-major second": _any_rank(lambda x: x + _row_major(x)),
        "add row-major first": _any_rank(lambda x: _row_major(x) + x),
        "add_": _any_rank(lambda x: x.add_(_row_major(x))),
        "relu_": _any_rank(lambda x: x.relu_()),
        "copy_": _any_rank(lambda x: x.copy_(_row_major(x))),
        "where": _any_rank(lambda x: torch.where(_mask(x), x, x.square())),
        "where a number": _any_rank(lambda x: torch.where(_mask(x), x, 0.0)),
        "lerp": _any_rank(lambda x: torch.lerp(x, x.square(), 0.3)),
        "addcmul": _any_rank(lambda x: torch.addcmul(x, x, x)),
        "addcdiv": _any_rank(lambda x: torch.addcdiv(x, x, x)),
        "clamp": _any_rank(lambda x: x.clamp(0.2, 0.7)),
        "masked_fill": _any_rank(lambda x: x.masked_fill(_mask(x), 0.3)),
        "dropout eval": _any_rank(lambda x: F.dropout(x, 0.5, training=False)),
        "mse_loss none": _any_rank(lambda x: F.mse_loss(x, x.square(), reduction="none")),
        "l1_loss none": _any_rank(lambda x: F.l1_loss(x, x.square(), reduction="none")),
        "huber_loss none": _any_rank(lambda x: F.huber_loss(x, x.square(), reduction="none")),
        "binary_cross_entropy none": _any_rank(lambda x: F.binary_cross_entropy(x, x, reduction="none")),
        # Normalization
        "batch_norm eval": _any_rank(
            lambda x: F.batch_norm(x, _like(x, x.shape[1]), _like(x, x.shape[1]).abs() + 1)
        ),
        "batch_norm train": _any_rank(lambda x: F.batch_norm(x, None, None, training=True)),
        "instance_norm": _any_rank(F.instance_norm),
        "group_norm": _any_rank(lambda x: F.group_norm(x, 3)),
        "group_norm of each channel": _any_rank(lambda x: F.group_norm(x, x.shape[1])),
        "layer_norm last": _any_rank(lambda x: F.layer_norm(x, x.shape[-1:])),
        "layer_norm all": _any_rank(lambda x: F.layer_norm(x, x.shape[1:])),
        "layer_norm C by permute": _any_rank(
            lambda x: F.layer_norm(x.movedim(1, -1), x.shape[1:2]).movedim(-1, 1)
        ),
        "rms_norm last": _any_rank(lambda x: F.rms_norm(x, x.shape[-1:])),
        "local_response_norm": _any_rank(lambda x: F.local_response_norm(x, 3)),
        "normalize": _any_rank(F.normalize),
        "softmax C": _any_rank(lambda x: x.softmax(1)),
        "softmax last": _any_rank(lambda x: x.softmax(-1)),
        "softmax C by permute": _any_rank(lambda x: x.movedim(1, -1).softmax(-1).movedim(-1, 1)),
        "log_softmax C": _any_rank(lambda x: x.log_softmax(1)),
        "softmin C": _any_rank(lambda x: F.softmin(x, 1)),
        # Convolution
        "conv": _per_rank(_conv("conv", 12, padding=1)),
        "conv 1x1": _per_rank(_conv("conv", 12, kernel=1)),
        "conv stride 2": _per_rank(_conv("conv", 12, stride=2, padding=1)),
        "conv dilated": _per_rank(_conv("conv", 12, dilation=2, padding=2)),
        "conv grouped": _per_rank(_conv("conv", 3, groups=4)),
        "conv depthwise": _per_rank(_conv("conv", 1, groups=12)),
        "conv_transpose": _per_rank(_conv("conv_transpose", 8, stride=2)),
        "conv_transpose grouped": _per_rank(_conv("conv_transpose", 2, groups=4)),
        "linear last": _any_rank(lambda x: F.linear(x, _like(x, 5, x.shape[-1]))),
        "linear C by permute": _any_rank(
            lambda x: F.linear(x.movedim(1, -1), _like(x, 8, 12)).movedim(-1, 1)
        ),
        "einsum C": _any_rank(lambda x: torch.einsum("nc...,oc->no...", x, _like(x, 8, 12))),
        # Pooling
        "max_pool": _per_rank(_by_name("max_pool", 2)),
        "max_pool overlapping": _per_rank(_by_name("max_pool", 3, stride=1, padding=1)),
        "max_pool with indices": _per_rank(_by_name("max_pool", 2, return_indices=True)),
        "max_unpool": _per_rank(
            lambda dims: (
                lambda x: getattr(F, f"max_unpool{dims}d")(
                    *getattr(F, f"max_pool{dims}d")(x, 2, return_indices=True), 2
                )
            )
        ),
        "avg_pool": _per_rank(_by_name("avg_pool", 2)),
        "lp_pool": _per_rank(_by_name("lp_pool", 2.0, 2)),
        "adaptive_avg_pool": _per_rank(_by_name("adaptive_avg_pool", 2)),
        "adaptive_avg_pool to 1": _per_rank(_by_name("adaptive_avg_pool", 1)),
        "adaptive_max_pool": _per_rank(_by_name("adaptive_max_pool", 2)),
        # Resizing
        "interpolate nearest": _interpolate("nearest"),
        "interpolate nearest-exact": _interpolate("nearest-exact"),
        "interpolate linear": _interpolate("linear"),
        "interpolate linear aligned": _interpolate("linear", align_corners=True),
        "interpolate area": _per_rank(lambda dims: lambda x: F.interpolate(x, size=[3] * dims, mode="area")),
        "interpolate bicubic": _per_rank(
            lambda dims: lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), 4
        ),
        "interpolate antialiased": _per_rank(
            lambda dims: lambda x: F.interpolate(x, size=(5, 6), mode="bilinear", antialias=True), 4
        ),
        "grid_sample": _per_rank(
            lambda dims: lambda x: F.grid_sample(x, _grid(x), align_corners=False), 4, 5
        ),
        "pixel_shuffle": _per_rank(lambda dims: lambda x: F.pixel_shuffle(x, 2), 4),
        "pixel_unshuffle": _per_rank(lambda dims: lambda x: F.pixel_unshuffle(x, 2), 4),
        "channel_shuffle": _any_rank(lambda x: F.channel_shuffle(x, 3)),
        "channel shuffle by view": _any_rank(
            lambda x: x.view(x.shape[0], 3, 4, *x.shape[2:]).transpose(1, 2).reshape(x.shape)
        ),
        "unfold and fold": _per_rank(
            lambda dims: lambda x: F.fold(F.unfold(x, 2, stride=2), x.shape[2:], 2, stride=2), 4
        ),
        # Padding
        "pad": _pad("constant"),
        "pad C": _per_rank(lambda dims: lambda x: F.pad(x, [0, 0] * dims + [1, 2])),
        **{f"pad {mode}": _pad(mode) for mode in ("reflect", "replicate", "circular")},
        # Joining, cutting, moving
        "cat C": _any_rank(lambda x: torch.cat([x, x.square()], 1)),
        "cat N": _any_rank(lambda x: torch.cat([x, x.square()], 0)),
        "cat last": _any_rank(lambda x: torch.cat([x, x.square()], -1)),
        "cat with row-major": _any_rank(lambda x: torch.cat([x, _row_major(x)], 1)),
        "cat with a slice": _any_rank(lambda x: torch.cat([x[:, :5], x], 1)),
        "stack N": _any_rank(lambda x: torch.stack([x, x.square()])[1]),
        "chunk C": _any_rank(lambda x: x.chunk(2, 1)[1]),
        "relu of a channel slice": _any_rank(lambda x: x[:, 2:7].relu()),
        "slice last": _any_rank(lambda x: x[..., 1:-1]),
        "index a list of C": _any_rank(lambda x: x[:, [5, 0, 3]]),
        "index a list of N": _any_rank(lambda x: x[[1, 0, 1]]),
        "index_select C": _any_rank(lambda x: x.index_select(1, _index(x))),
        "index_select last": _any_rank(lambda x: x.index_select(-1, _index(x))),
        "gather C": _any_rank(lambda x: x.gather(1, _whole(x))),
        "take_along_dim C": _any_rank(lambda x: torch.take_along_dim(x, _whole(x), 1)),
        "scatter C": _any_rank(lambda x: x.scatter(1, _whole(x)[:, :1], 0.3)),
        "scatter_add C": _any_rank(lambda x: x.scatter_add(1, _whole(x), x)),
        "index_add C": _any_rank(lambda x: x.index_add(1, _index(x), x[:, :3])),
        "index_fill C": _any_rank(lambda x: x.index_fill(1, _index(x), 0.3)),
        "masked_scatter": _any_rank(lambda x: x.masked_scatter(_mask(x), _row_major(x))),
        "flip last": _any_rank(lambda x: x.flip(-1)),
        "flip C": _any_rank(lambda x: x.flip(1)),
        "roll last": _any_rank(lambda x: x.roll(1, -1)),
        "roll C": _any_rank(lambda x: x.roll(1, 1)),
        "rot90": _per_rank(lambda dims: lambda x: x.rot90(1, (-2, -1)), 4, 5),
        "repeat N": _any_rank(lambda x: x.repeat(2, *([1] * (x.dim() - 1)))),
        "tile last": _any_rank(lambda x: x.tile(2)),
        "repeat_interleave last": _any_rank(lambda x: x.repeat_interleave(2, -1)),
        "tril": _any_rank(lambda x: x.tril()),
        "clone": _any_rank(lambda x: x.clone()),
        "contiguous": _any_rank(lambda x: x.contiguous()),
        "reshape to itself": _any_rank(lambda x: x.reshape(x.shape)),
        "flatten and back": _any_rank(lambda x: x.flatten(1).view(x.shape)),
        "flatten space and back": _any_rank(lambda x: x.flatten(2).unflatten(2, x.shape[2:])),
        "permute and back": _any_rank(lambda x: x.movedim(1, -1).movedim(-1, 1)),
        "to float16": _any_rank(lambda x: x.half()),
        "to bfloat16": _any_rank(lambda x: x.bfloat16()),
        "zeros_like": _any_rank(torch.zeros_like),
        "ones_like": _any_rank(torch.ones_like),
        "full_like": _any_rank(lambda x: torch.full_like(x, 0.3)),
        "new_zeros": _any_rank(lambda x: x.new_zeros(x.shape)),
        "new_full": _any_rank(lambda x: x.new_full(x.shape, 0.3)),
        # Along a dimension
        "cumsum C": _any_rank(lambda x: x.cumsum(1)),
        "cumsum last": _any_rank(lambda x: x.cumsum(-1)),
        "cumprod C": _any_rank(lambda x: x.cumprod(1)),
        "cummax C": _any_rank(lambda x: x.cummax(1)),
        "logcumsumexp C": _any_rank(lambda x: x.logcumsumexp(1)),
        "sort C": _any_rank(lambda x: x.sort(1)),
        "argsort C": _any_rank(lambda x: x.argsort(1)),
        "topk C": _any_rank(lambda x: x.topk(3, 1)),
        "diff C": _any_rank(lambda x: x.diff(dim=1)),
        "sum N kept": _any_rank(lambda x: x.sum(0, keepdim=True)),
        "mean last kept": _any_rank(lambda x: x.mean(-1, keepdim=True)),
        "amax last kept": _any_rank(lambda x: x.amax(-1, keepdim=True)),
        "var last kept": _any_rank(lambda x: x.var(-1, keepdim=True)),
        "std last kept": _any_rank(lambda x: x.std(-1, keepdim=True)),
        "logsumexp last kept": _any_rank(lambda x: x.logsumexp(-1, keepdim=True)),
        "median last kept": _any_rank(lambda x: x.median(-1, keepdim=True)),
        "matmul last": _any_rank(lambda x: x @ _like(x, x.shape[-1], 5)),
        "fake_quantize": _any_rank(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)),
        "fake_quantize per channel": _any_rank(
            lambda x: torch.fake_quantize_per_channel_affine(
                x, torch.full((12,), 0.1), torch.zeros(12, dtype=torch.int32), 1, -128, 127
            )
        ),
        # Gates
        "squeeze-excite": _per_rank(
            lambda dims: lambda x: x * x.mean(tuple(range(2, dims + 2)), True).sigmoid()
        ),
        "gate of C": _any_rank(lambda x: x * x.mean(1, True).sigmoid()),
    }
)
