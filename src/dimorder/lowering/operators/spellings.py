"""Decides how each operator is spelt in the normal form: reshapes `reshape` and `permute`, splits `slice`,
convolutions `convolution`; batch-norms are folded, group-norm and attention built from parts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dimorder.errors import UnsupportedError
from dimorder.lowering.capture.tracing import Tracer, Value, dtype_of, shape_of

aten = torch.ops.aten


def _same(n: Tracer, x: Value, *_args: Value, **_kwargs: Value) -> Value:
    return x


def _dropout(n: Tracer, x: Value, p: float, train: bool) -> Value:
    return x if not train or p == 0 else n.emit(aten.dropout.default, x, p, train)


def _to_copy(n: Tracer, x: Value, **kwargs: Value) -> Value:
    dtype = kwargs.get("dtype")
    return x if dtype in (None, dtype_of(x)) else n.emit(aten._to_copy.default, x, dtype=dtype)


def _view(n: Tracer, x: Value, shape: Sequence[int]) -> Value:
    sizes = [int(size) for size in shape]
    if -1 in sizes:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(shape_of(x)) // max(known, 1)
    if tuple(sizes) == shape_of(x):
        return x
    if isinstance(x, torch.Tensor):
        return x.reshape(sizes)
    return n.emit(aten.reshape.default, x, sizes)


def _permute(n: Tracer, x: Value, dims: Sequence[int]) -> Value:
    rank = len(shape_of(x))
    dims = [dim % rank for dim in dims]
    return x if dims == list(range(rank)) else n.emit(aten.permute.default, x, dims)


def _transpose(n: Tracer, x: Value, dim0: int, dim1: int) -> Value:
    dims = list(range(len(shape_of(x))))
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return _permute(n, x, dims)


def _t(n: Tracer, x: Value) -> Value:
    return _permute(n, x, list(reversed(range(len(shape_of(x))))))


def _unsqueeze(n: Tracer, x: Value, dim: int) -> Value:
    shape = list(shape_of(x))
    shape.insert(dim % (len(shape) + 1), 1)
    return _view(n, x, shape)


def _squeeze(n: Tracer, x: Value, dim: int | Sequence[int] | None = None) -> Value:
    shape = shape_of(x)
    dims = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    drop = {d % max(len(shape), 1) for d in dims}
    return _view(n, x, [size for d, size in enumerate(shape) if not (d in drop and size == 1)])


def _flatten(n: Tracer, x: Value, start: int = 0, end: int = -1) -> Value:
    shape = list(shape_of(x))
    start, end = start % len(shape), end % len(shape)
    return _view(n, x, [*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]])


def _unflatten(n: Tracer, x: Value, dim: int, sizes: Sequence[int]) -> Value:
    shape = list(shape_of(x))
    dim = dim % len(shape)
    return _view(n, x, [*shape[:dim], *sizes, *shape[dim + 1 :]])


def _expand(n: Tracer, x: Value, shape: Sequence[int], implicit: bool = False) -> Value:
    old = (1,) * (len(shape) - len(shape_of(x))) + shape_of(x)
    sizes = [before if size == -1 else int(size) for before, size in zip(old, shape, strict=True)]
    x = _view(n, x, old)
    return x if tuple(sizes) == old else n.emit(aten.expand.default, x, sizes)


def _slice(
    n: Tracer, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    shape = shape_of(x)
    dim = dim % len(shape)
    begin, stop, step = slice(start, end, step).indices(shape[dim])
    kept = range(begin, stop, step)
    if len(kept) == shape[dim]:
        return x
    if len(kept) <= 1:
        return n.emit(aten.slice.Tensor, x, dim, begin, begin + len(kept), 1)
    return n.emit(aten.slice.Tensor, x, dim, begin, kept[-1] + 1, step)


def _select(n: Tracer, x: Value, dim: int, index: int) -> Value:
    dim = dim % len(shape_of(x))
    index = index % shape_of(x)[dim]
    return _squeeze(n, _slice(n, x, dim, index, index + 1), dim)


def _unbind(n: Tracer, x: Value, dim: int = 0) -> Value:
    return [_select(n, x, dim, index) for index in range(shape_of(x)[dim])]


def _split_sizes(n: Tracer, x: Value, sizes: Sequence[int], dim: int = 0) -> Value:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [_slice(n, x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _split(n: Tracer, x: Value, size: int, dim: int = 0) -> Value:
    total = shape_of(x)[dim]
    return _split_sizes(n, x, [min(size, total - begin) for begin in range(0, total, size)], dim)


def _chunk(n: Tracer, x: Value, chunks: int, dim: int = 0) -> Value:
    return _split(n, x, -(-shape_of(x)[dim] // chunks), dim)


def _getitem(n: Tracer, x: Value, index: int) -> Value:
    return x[index] if isinstance(x, (list, tuple)) else n.emit(operator.getitem, x, index)


def _cat(n: Tracer, tensors: Sequence[Value], dim: int = 0) -> Value:
    parts = [t for t in tensors if 0 not in shape_of(t)]
    dim = dim % len(shape_of(parts[0]))
    return parts[0] if len(parts) == 1 else n.emit(aten.cat.default, parts, dim)


def _stack(n: Tracer, tensors: Sequence[Value], dim: int = 0) -> Value:
    dim = dim % (len(shape_of(tensors[0])) + 1)
    return _cat(n, [_unsqueeze(n, t, dim) for t in tensors], dim)


def _roll(n: Tracer, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    if not dims:
        return _view(n, _roll(n, _view(n, x, [math.prod(shape_of(x))]), shifts, [0]), shape_of(x))
    for shift, dim in zip(shifts, dims, strict=True):
        size = shape_of(x)[dim]
        cut = -shift % size
        if cut:
            x = _cat(n, [_slice(n, x, dim, cut, size), _slice(n, x, dim, 0, cut)], dim)
    return x


def _pad(
    n: Tracer, x: Value, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Value:
    if not any(pad):
        return x
    if mode != "constant":
        return n.emit(aten.pad.default, x, pad, mode, value)
    return n.emit(aten.constant_pad_nd.default, x, list(pad), value or 0.0)


def _constant_pad(n: Tracer, x: Value, pad: Sequence[int], value: float = 0.0) -> Value:
    return _pad(n, x, pad, "constant", value)


def _new_filled(fill: float) -> Callable[..., Value]:
    def rewrite(
        n: Tracer,
        x: Value,
        size: Sequence[int],
        *_: Value,
        dtype: torch.dtype | None = None,
        **__: Value,
    ) -> Value:
        return torch.full(list(size), fill, dtype=dtype or dtype_of(x))

    return rewrite


def _like_filled(fill: float) -> Callable[..., Value]:
    def rewrite(n: Tracer, x: Value, *_: Value, dtype: torch.dtype | None = None, **__: Value) -> Value:
        return torch.full(list(shape_of(x)), fill, dtype=dtype or dtype_of(x))

    return rewrite


def _conv(rank: int, transposed: bool) -> Callable[..., Value]:
    def spread(value: Value) -> list[int]:
        values = [value] if isinstance(value, int) else list(value)
        return values * rank if len(values) == 1 else values

    def conv(
        n: Tracer,
        x: Value,
        w: Value,
        b: Value = None,
        stride: Value = 1,
        padding: Value = 0,
        *rest: Value,
    ) -> Value:
        if transposed:
            output_padding, groups, dilation = _filled(rest, (0, 1, 1))
        else:
            output_padding, (dilation, groups) = 0, _filled(rest, (1, 1))
        unbatched = len(shape_of(x)) == rank + 1
        if unbatched:
            x = _unsqueeze(n, x, 0)
        if isinstance(padding, str):
            x, padding = _named_padding(n, x, w, padding, spread(dilation))
        y = n.emit(
            aten.convolution.default,
            x,
            w,
            b,
            spread(stride),
            spread(padding),
            spread(dilation),
            transposed,
            spread(output_padding),
            groups,
        )
        return _squeeze(n, y, 0) if unbatched else y

    return conv


def _filled(given: Sequence[Value], defaults: Sequence[Value]) -> list[Value]:
    return [*given, *defaults[len(given) :]]


def _named_padding(
    n: Tracer, x: Value, w: Value, padding: str, dilation: list[int]
) -> tuple[Value, list[int]]:
    totals = [
        0 if padding == "valid" else d * (k - 1) for d, k in zip(dilation, shape_of(w)[2:], strict=True)
    ]
    if all(total % 2 == 0 for total in totals):
        return x, [total // 2 for total in totals]
    pads = [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return _pad(n, x, pads), [0] * len(totals)


def _batch_norm(
    n: Tracer, x: Value, weight: Value, bias: Value, mean: Value, var: Value, momentum: float, eps: float
) -> Value:
    if any(isinstance(v, torch.fx.Node) for v in (weight, bias, mean, var)):
        return [n.emit(aten.batch_norm.default, x, weight, bias, mean, var, False, momentum, eps, False)]
    scale = torch.rsqrt(var.double() + eps) * (1.0 if weight is None else weight.double())
    shift = (0.0 if bias is None else bias.double()) - mean.double() * scale
    folded = _fold_into_conv(n, x, scale, shift)
    if folded is not None:
        return [folded]
    shape = [-1] + [1] * (len(shape_of(x)) - 2)
    scaled = n.emit(aten.mul.Tensor, x, scale.to(dtype_of(x)).reshape(shape))
    return [n.emit(aten.add.Tensor, scaled, shift.to(dtype_of(x)).reshape(shape))]


def _fold_into_conv(n: Tracer, x: Value, scale: torch.Tensor, shift: torch.Tensor) -> Value:
    """The convolution before a batch-norm with the batch-norm's scale and shift in its constants, or None."""
    if x.target is not aten.convolution.default or len(n.node.args[0].users) > 1:
        return None
    source, w, b, *rest = x.args
    if w.op != "get_attr" or (b is not None and b.op != "get_attr"):
        return None
    transposed, groups = rest[3], rest[5]
    weight = n.attributes[w.target].double()
    if transposed:
        per_group = (
            scale.reshape(groups, 1, -1)
            .expand(groups, weight.shape[0] // groups, -1)
            .reshape(weight.shape[0], -1)
        )
        weight = weight * per_group.reshape(*per_group.shape, *[1] * (weight.dim() - 2))
    else:
        weight = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
    offset = shift if b is None else shift + n.attributes[b.target].double() * scale
    dtype = dtype_of(x)
    weight, offset = weight.to(dtype), offset.to(dtype)
    n.names[id(weight)], n.names[id(offset)] = f"{w.target}_folded", f"{w.target}_folded_bias"
    folded = n.emit(aten.convolution.default, source, weight, offset, *rest)
    folded.meta.update({key: x.meta[key] for key in ("stack_trace", "nn_module_stack") if key in x.meta})
    return folded


def _first_of_batch_norm(
    n: Tracer,
    x: Value,
    w: Value,
    b: Value,
    mean: Value,
    var: Value,
    training: bool,
    momentum: float,
    eps: float,
    _cudnn: bool,
) -> Value:
    if training:
        return n.emit(aten.batch_norm.default, x, w, b, mean, var, training, momentum, eps, False)
    return _batch_norm(n, x, w, b, mean, var, momentum, eps)[0]


def _group_norm(
    n: Tracer,
    x: Value,
    groups: int,
    weight: Value = None,
    bias: Value = None,
    eps: float = 1e-5,
    _cudnn: bool = True,
) -> Value:
    """From parts: its groups are pieces of the channels, which only axes can tell."""
    batch, channels, *rest = shape_of(x)
    grouped = _view(n, x, [batch, groups, channels // groups, *rest])
    dims = list(range(2, len(shape_of(grouped))))
    centred = n.emit(aten.sub.Tensor, grouped, n.emit(aten.mean.dim, grouped, dims, True))
    variance = n.emit(aten.mean.dim, n.emit(aten.mul.Tensor, centred, centred), dims, True)
    scaled = n.emit(
        aten.mul.Tensor, centred, n.emit(aten.rsqrt.default, n.emit(aten.add.Tensor, variance, eps))
    )
    y = _view(n, scaled, shape_of(x))
    for target, value in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
        if value is not None:
            y = n.emit(target, y, _view(n, value, [channels] + [1] * len(rest)))
    return y


def _instance_norm(
    n: Tracer,
    x: Value,
    weight: Value,
    bias: Value,
    mean: Value,
    var: Value,
    use_input: bool,
    momentum: float,
    eps: float,
    _cudnn: bool,
) -> Value:
    if not use_input:
        return _batch_norm(n, x, weight, bias, mean, var, momentum, eps)[0]
    return _group_norm(n, x, shape_of(x)[1], weight, bias, eps)


def _adaptive_avg_pool(rank: int) -> Callable[..., Value]:
    pool = {1: aten.avg_pool1d.default, 2: aten.avg_pool2d.default, 3: aten.avg_pool3d.default}[rank]
    same = {
        1: aten.adaptive_avg_pool1d.default,
        2: aten.adaptive_avg_pool2d.default,
        3: aten.adaptive_avg_pool3d.default,
    }[rank]

    def rewrite(n: Tracer, x: Value, size: Sequence[int]) -> Value:
        spatial = shape_of(x)[-rank:]
        if all(s == 1 for s in size):
            return n.emit(aten.mean.dim, x, list(range(-rank, 0)), True)
        if tuple(size) == spatial:
            return x
        if any(full % part for full, part in zip(spatial, size, strict=True)):
            return n.emit(same, x, list(size))
        kernel = [full // part for full, part in zip(spatial, size, strict=True)]
        return n.emit(pool, x, kernel, kernel)

    return rewrite


def _mean(n: Tracer, x: Value, dtype: torch.dtype | None = None) -> Value:
    return n.emit(aten.mean.dim, x, list(range(len(shape_of(x)))), False)


def _as_strided(
    n: Tracer, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Value:
    dense = [math.prod(size[i + 1 :]) for i in range(len(size))]
    moved = [(s, d) for s, d, extent in zip(stride, dense, size, strict=True) if extent != 1]
    if math.prod(size) == math.prod(shape_of(x)) and not offset and all(s == d for s, d in moved):
        return _view(n, x, size)
    raise UnsupportedError(
        "aten.as_strided",
        f"sizes {list(size)}, strides {list(stride)} read memory directly",
        "write it as view, permute or slice",
    )


def _addmm(n: Tracer, bias: Value, x: Value, w: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    if beta != 1 or alpha != 1 or isinstance(w, torch.fx.Node) or len(shape_of(bias)) != 1:
        return n.emit(aten.addmm.default, bias, x, w, beta=beta, alpha=alpha)
    return n.emit(aten.linear.default, x, w.t(), bias)


def _add_combined(combine: Any) -> Callable[..., Value]:
    """addcmul and addcdiv: x + value · combine(a, b)."""

    def spell(n: Tracer, x: Value, a: Value, b: Value, *, value: float = 1) -> Value:
        combined = n.call(combine, (a, b), {})
        scaled = combined if value == 1 else n.call(aten.mul.Tensor, (combined, value), {})
        return n.call(aten.add.Tensor, (x, scaled), {})

    return spell


def _attention(
    n: Tracer,
    q: Value,
    k: Value,
    v: Value,
    mask: Value = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout_p or enable_gqa:
        raise UnsupportedError(
            "aten.scaled_dot_product_attention",
            f"dropout_p={dropout_p}, enable_gqa={enable_gqa}",
            "export in eval mode, repeat the keys",
        )
    factor = 1.0 / math.sqrt(shape_of(q)[-1]) if scale is None else scale
    scores = n.call(
        aten.matmul.default, (n.call(aten.mul.Tensor, (q, factor), {}), _transpose(n, k, -2, -1)), {}
    )
    if is_causal:
        mask = torch.ones(shape_of(q)[-2], shape_of(k)[-2], dtype=torch.bool).tril()
    if mask is not None and dtype_of(mask) == torch.bool:
        if isinstance(mask, torch.fx.Node):
            blocked = torch.tensor(float("-inf"), dtype=dtype_of(q))
            scores = n.emit(aten.where.self, mask, scores, blocked)
            mask = None
        else:
            mask = torch.zeros(mask.shape, dtype=dtype_of(q)).masked_fill(~mask, float("-inf"))
    if mask is not None:
        scores = n.emit(aten.add.Tensor, scores, mask)
    weights = n.emit(aten.softmax.int, scores, -1)
    return n.call(aten.matmul.default, (weights, v), {})


def _matmul(n: Tracer, a: Value, b: Value) -> Value:
    rank_a, rank_b = len(shape_of(a)), len(shape_of(b))
    if isinstance(b, torch.Tensor) and rank_b == 2 and rank_a >= 2:
        return n.emit(aten.linear.default, a, b.t())
    if min(rank_a, rank_b) < 2:
        return n.emit(aten.matmul.default, a, b)
    rank = max(rank_a, rank_b)
    a, b = (
        _view(n, a, (1,) * (rank - rank_a) + shape_of(a)),
        _view(n, b, (1,) * (rank - rank_b) + shape_of(b)),
    )
    return n.emit(aten.matmul.default, a, b)


def _max_pool_with_indices(n: Tracer, x: Value, *args: Value) -> Value:
    if any(user.args[1] == 1 for user in n.node.users):
        return n.emit(aten.max_pool2d_with_indices.default, x, *args)
    return [n.emit(aten.max_pool2d.default, x, *args)]


def _prelu(n: Tracer, x: Value, w: Value) -> Value:
    rank = len(shape_of(x))
    if rank > 1:
        w = _view(n, w, [-1] + [1] * (rank - 2))
    return n.emit(aten._prelu_kernel.default, x, w)


SPELLINGS: dict[Any, Callable[..., Value]] = {
    **dict.fromkeys(
        (
            aten.clone.default,
            aten.alias.default,
            aten.detach.default,
            aten.contiguous.default,
            aten.lift_fresh_copy.default,
            aten.detach_.default,
        ),
        _same,
    ),
    aten.dropout.default: _dropout,
    aten._to_copy.default: _to_copy,
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.reshape.default: _view,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.default: _squeeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.flatten.using_ints: _flatten,
    aten.unflatten.int: _unflatten,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.unbind.int: _unbind,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_sizes,
    aten.chunk.default: _chunk,
    operator.getitem: _getitem,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.roll.default: _roll,
    aten.pad.default: _pad,
    aten.constant_pad_nd.default: _constant_pad,
    aten.new_zeros.default: _new_filled(0),
    aten.new_ones.default: _new_filled(1),
    aten.zeros_like.default: _like_filled(0),
    aten.ones_like.default: _like_filled(1),
    aten.conv1d.default: _conv(1, transposed=False),
    aten.conv2d.default: _conv(2, transposed=False),
    aten.conv3d.default: _conv(3, transposed=False),
    aten.conv1d.padding: _conv(1, transposed=False),
    aten.conv2d.padding: _conv(2, transposed=False),
    aten.conv3d.padding: _conv(3, transposed=False),
    aten.conv_transpose1d.default: _conv(1, transposed=True),
    aten.conv_transpose2d.input: _conv(2, transposed=True),
    aten.conv_transpose3d.input: _conv(3, transposed=True),
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.batch_norm.default: _first_of_batch_norm,
    aten.group_norm.default: _group_norm,
    aten.instance_norm.default: _instance_norm,
    aten.adaptive_avg_pool1d.default: _adaptive_avg_pool(1),
    aten.adaptive_avg_pool2d.default: _adaptive_avg_pool(2),
    aten.adaptive_avg_pool3d.default: _adaptive_avg_pool(3),
    aten._adaptive_avg_pool2d.default: _adaptive_avg_pool(2),
    aten._adaptive_avg_pool3d.default: _adaptive_avg_pool(3),
    aten.mean.default: _mean,
    aten.as_strided.default: _as_strided,
    aten.addmm.default: _addmm,
    aten.addcmul.default: _add_combined(aten.mul.Tensor),
    aten.addcdiv.default: _add_combined(aten.div.Tensor),
    aten.scaled_dot_product_attention.default: _attention,
    aten.matmul.default: _matmul,
    aten.bmm.default: _matmul,
    aten.mm.default: _matmul,
    aten.max_pool2d_with_indices.default: _max_pool_with_indices,
    aten.prelu.default: _prelu,
}
