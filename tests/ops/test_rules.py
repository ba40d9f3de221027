"""Every operator rule and every lowering, by numbers: against eager, under contracts of random orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dimorder.ops.dialect import OPS
from tests.layout.lowering import Net, lower_everywhere
from tests.zoo import perturb


@dataclass(frozen=True)
class Case:
    """One use of an operator: a function of a `Net` and of inputs of these shapes (or these tensors)."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]

    def tensors(self) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(7)
        return tuple(x if isinstance(x, Tensor) else torch.randn(x, generator=generator) for x in self.inputs)

    def net(self) -> nn.Module:
        return perturb(Net(self.function, **self.attributes)).eval()


def case(function: Callable[..., Any], *inputs: Any, **attributes: Any) -> Case:
    return Case(function, inputs, attributes)


def conv(layer: nn.Module, *shape: int) -> Case:
    return case(lambda m, x: m.layer(x), shape, layer=layer)


def unary(function: Callable[[Tensor], Any], *shape: int) -> Case:
    return case(lambda m, x: function(x), shape)


class Joined(nn.Module):
    """Several networks side by side, each with inputs of its own."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.nets = nn.ModuleList([c.net() for c in cases])
        self.counts = [len(c.inputs) for c in cases]

    def forward(self, *inputs: Tensor) -> Any:
        feed = iter(inputs)
        return tuple(
            net(*[next(feed) for _ in range(count)])
            for net, count in zip(self.nets, self.counts, strict=True)
        )


X = (2, 6, 5, 7)


def dynamic(dims: list[int], mode: str) -> Case:
    return unary(lambda x: OPS.fake_quantize_dynamic(x, dims, -128, 127, 1e-6, mode), *X)


IMAGE = (2, 12, 9, 7)


def ints(*shape: int, below: int = 10, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(3), dtype=dtype)


def constant(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


FAMILIES: dict[str, dict[str, Case]] = {
    "convolution": {
        "plain": conv(nn.Conv2d(12, 10, 3), *IMAGE),
        "no bias": conv(nn.Conv2d(12, 10, (3, 2), bias=False), *IMAGE),
        "strided, padded": conv(nn.Conv2d(12, 10, (3, 5), stride=(2, 1), padding=(1, 2)), *IMAGE),
        "dilated": conv(nn.Conv2d(12, 10, 3, dilation=(2, 1)), *IMAGE),
        "pointwise": conv(nn.Conv2d(12, 10, 1), *IMAGE),
        "pointwise, strided": conv(nn.Conv2d(12, 10, 1, stride=(1, 2)), *IMAGE),
        "grouped": conv(nn.Conv2d(12, 8, 3, groups=4), *IMAGE),
        "grouped pointwise": conv(nn.Conv2d(12, 20, 1, groups=2), *IMAGE),
        "depthwise": conv(nn.Conv2d(12, 12, 3, groups=12), *IMAGE),
        "depthwise, multiplier": conv(nn.Conv2d(12, 36, (3, 2), groups=12), *IMAGE),
        "groups with one output": conv(nn.Conv2d(12, 4, 3, groups=4), *IMAGE),
        "same, odd": conv(nn.Conv2d(12, 10, (3, 5), padding="same"), *IMAGE),
        "same, even": conv(nn.Conv2d(12, 10, (2, 4), padding="same"), *IMAGE),
        "valid": conv(nn.Conv2d(12, 10, 3, padding="valid"), *IMAGE),
        "reflect": conv(nn.Conv2d(12, 10, 3, padding=1, padding_mode="reflect"), *IMAGE),
        "1-D": conv(nn.Conv1d(6, 10, 3, stride=2, padding=1), 2, 6, 11),
        "1-D grouped, dilated": conv(nn.Conv1d(6, 9, 2, groups=3, dilation=2), 2, 6, 11),
        "1-D same, even": conv(nn.Conv1d(6, 9, 4, padding="same"), 2, 6, 11),
        "unbatched": conv(nn.Conv2d(12, 10, 3), *IMAGE[1:]),
        "to one channel": conv(nn.Conv2d(12, 1, 3), *IMAGE),
        "from one channel": conv(nn.Conv2d(1, 12, 3), 2, 1, 9, 7),
        "to one place": conv(nn.Conv2d(12, 10, (9, 7)), *IMAGE),
        "3-D": conv(nn.Conv3d(3, 4, (2, 3, 1), padding=(0, 1, 0)), 2, 3, 5, 6, 7),
        "3-D, transposed": conv(
            nn.ConvTranspose3d(4, 6, (3, 2, 4), (2, 3, 1), (1, 0, 2), (1, 2, 0), 2, dilation=(2, 3, 1)),
            *(2, 4, 4, 5, 3),
        ),
        "weight computed": case(lambda m, x, w: F.conv2d(x, w), IMAGE, (10, 12, 3, 2)),
        "bias computed": case(lambda m, x, b: F.conv2d(x, m.w, b), IMAGE, (10,), w=constant(10, 12, 3, 2)),
        "shared weight": case(
            lambda m, x, y: (m.layer(x), m.layer(y)), IMAGE, (2, 12, 8, 3), layer=nn.Conv2d(12, 10, 3)
        ),
    },
    "transposed convolution": {
        "plain": conv(nn.ConvTranspose2d(12, 10, 3), *IMAGE),
        "strided, output padding": conv(
            nn.ConvTranspose2d(12, 10, (3, 2), stride=(2, 3), padding=1, output_padding=(1, 2)), *IMAGE
        ),
        "grouped": conv(nn.ConvTranspose2d(12, 8, 3, groups=4, stride=2), *IMAGE),
        "grouped, no bias, dilated": conv(
            nn.ConvTranspose2d(12, 6, 2, groups=2, dilation=2, bias=False), *IMAGE
        ),
        "depthwise": conv(nn.ConvTranspose2d(12, 12, 2, stride=2, groups=12), *IMAGE),
        "1-D": conv(nn.ConvTranspose1d(6, 10, 3, stride=2, output_padding=1), 2, 6, 11),
        "3-D": conv(nn.ConvTranspose3d(3, 4, 2), 2, 3, 5, 6, 7),
    },
    "dense": {
        "linear": conv(nn.Linear(7, 4), *X),
        "linear, no bias": conv(nn.Linear(7, 4, bias=False), 3, 7),
        "linear of a vector": conv(nn.Linear(7, 4), 7),
        "linear to one": conv(nn.Linear(7, 1), *X),
        "linear from one": conv(nn.Linear(1, 7), 2, 6, 5, 1),
        "linear, weight computed": case(lambda m, x, w: F.linear(x, w), X, (4, 7)),
        "linear, bias computed": case(lambda m, x, b: F.linear(x, m.w, b), X, (4,), w=constant(4, 7)),
        "linear, weight a vector": case(lambda m, x: F.linear(x, m.w), X, w=constant(7)),
        "linear of a vector, weight computed": case(lambda m, x, w: F.linear(x, w), (7,), (4, 7)),
        "after flatten": case(lambda m, x: m.layer(x.flatten(1)), X, layer=nn.Linear(210, 11)),
        "after permute and flatten": case(
            lambda m, x: m.layer(x.permute(0, 3, 1, 2).flatten(1)), X, layer=nn.Linear(210, 11)
        ),
        "after conv": case(
            lambda m, x: m.dense(m.conv(x).flatten(1)), X, conv=nn.Conv2d(6, 4, 3), dense=nn.Linear(60, 11)
        ),
        "matmul": case(lambda m, x, y: x @ y, (2, 6, 5, 7), (2, 6, 7, 3)),
        "matmul, transposed": case(lambda m, x, y: x @ y.transpose(-1, -2), (2, 6, 5, 7), (2, 6, 3, 7)),
        "matmul, broadcast batch": case(lambda m, x, y: x @ y, (2, 6, 5, 7), (6, 7, 3)),
        "matmul, both broadcast": case(lambda m, x, y: x @ y, (2, 1, 5, 7), (6, 7, 3)),
        "matmul, 2-D by 3-D": case(lambda m, x, y: x @ y, (5, 7), (4, 7, 3)),
        "matmul, 3-D by 2-D": case(lambda m, x, y: x @ y, (4, 5, 7), (7, 3)),
        "matmul, 2-D": case(lambda m, x, y: x @ y, (5, 7), (7, 3)),
        "matmul by a column": case(lambda m, x, y: x @ y, (2, 6, 5, 7), (2, 6, 7, 1)),
        "row by matmul": case(lambda m, x, y: x @ y, (2, 6, 1, 7), (2, 6, 7, 5)),
        "matmul by a vector": case(lambda m, x, y: x @ y, (4, 5, 7), (7,)),
        "vector by matmul": case(lambda m, x, y: x @ y, (7,), (4, 7, 5)),
        "vector by a constant matrix": case(lambda m, x: x @ m.right, (7,), right=constant(7, 5)),
        "constant matrices by a vector": case(lambda m, x: m.left @ x, (5,), left=constant(4, 7, 5)),
        "vector by a vector": case(lambda m, x, y: x * (x @ y), (7,), (7,)),
        "dot": case(lambda m, x, y: x @ y, (7,), (7,)),
        "matmul by a constant": case(lambda m, x: x @ m.w, (2, 6, 5, 7), w=constant(7, 3)),
        "constant by matmul": case(lambda m, x: m.w @ x, (2, 6, 5, 7), w=constant(4, 5)),
        "batched constant": case(lambda m, x: x @ m.w, (2, 6, 5, 7), w=constant(6, 7, 3)),
        "batched constant first": case(lambda m, x: m.w @ x, (2, 6, 5, 7), w=constant(6, 4, 5)),
        "inner size 1": case(lambda m, x, y: x @ y, (2, 5, 1), (2, 1, 3)),
        "outer size 1": case(lambda m, x, y: x @ y, (2, 1, 5), (2, 5, 1)),
        "square of one value": case(lambda m, x: x @ x.transpose(-1, -2), (2, 6, 5, 7)),
        "bmm": case(lambda m, x, y: torch.bmm(x, y), (4, 5, 7), (4, 7, 3)),
        "addmm": case(lambda m, x: torch.addmm(m.b, x, m.w), (5, 7), b=constant(3), w=constant(7, 3)),
        "addmm, scaled": case(
            lambda m, x: torch.addmm(m.b, x, m.w, beta=0.5, alpha=2), (5, 7), b=constant(3), w=constant(7, 3)
        ),
        "addcmul": case(lambda m, x, a: torch.addcmul(m.b, x, a, value=0.5), (5, 7), (5, 1), b=constant(7)),
        "addcdiv": case(lambda m, x, a: torch.addcdiv(x, m.b, a.exp()), (5, 7), (5, 1), b=constant(7)),
        "addmm, all computed": case(lambda m, b, x, w: torch.addmm(b, x, w), (5, 3), (5, 7), (7, 3)),
        "baddbmm": case(lambda m, b, x, w: torch.baddbmm(b, x, w), (4, 5, 3), (4, 5, 7), (4, 7, 3)),
        "einsum, attention": case(
            lambda m, x, y: torch.einsum("bhid,bhjd->bhij", x, y), (2, 3, 5, 7), (2, 3, 6, 7)
        ),
        "einsum, mixed": case(
            lambda m, x, y: torch.einsum("bcij,bdij->bcd", x, y), (2, 3, 5, 7), (2, 6, 5, 7)
        ),
        "einsum, weight": case(lambda m, x: torch.einsum("bchw,oc->bohw", x, m.w), X, w=constant(4, 6)),
        "bilinear": case(lambda m, x, y: m.layer(x, y), (5, 3), (5, 4), layer=nn.Bilinear(3, 4, 6)),
    },
    "attention": {
        "plain": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
        ),
        "causal": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
        ),
        "constant mask": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=m.mask),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
            mask=constant(5, 6),
        ),
        "boolean mask": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=m.mask),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
            mask=torch.ones(5, 6, dtype=torch.bool).tril(1),
        ),
        "computed mask": case(
            lambda m, q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
            (2, 1, 5, 6),
        ),
        "computed boolean mask": case(
            lambda m, q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask > -1),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
            (2, 1, 5, 6),
        ),
        "scale": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
            (2, 3, 5, 8),
            (2, 3, 6, 8),
            (2, 3, 6, 7),
        ),
        "3-D": case(
            lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v), (3, 5, 8), (3, 6, 8), (3, 6, 7)
        ),
        "multihead": case(
            lambda m, x: m.layer(x, x, x)[0], (2, 5, 12), layer=nn.MultiheadAttention(12, 3, batch_first=True)
        ),
        "multihead, sequence first": case(
            lambda m, x: m.layer(x, x, x), (5, 2, 12), layer=nn.MultiheadAttention(12, 3)
        ),
        "encoder layer": conv(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), 2, 5, 12),
    },
    "softmax and norms": {
        **{f"softmax {d}": unary(lambda x, d=d: x.softmax(d), *X) for d in range(-1, 3)},
        **{f"log_softmax {d}": unary(lambda x, d=d: x.log_softmax(d), *X) for d in (1, 3)},
        "softmax of size 1": unary(lambda x: x.softmax(1), 2, 1, 5, 7),
        "softmax of a scalar": unary(lambda x: x.sum().softmax(0), *X),
        "softmax over merged dims": unary(lambda x: x.flatten(2).softmax(-1).reshape(X), *X),
        "softmax dtype": unary(lambda x: x.softmax(1, dtype=torch.float64), *X),
        "softmin": unary(lambda x: F.softmin(x, 1), *X),
        "quantised dynamically, by one scale": dynamic([0, 1, 2, 3], "asymmetric"),
        "quantised dynamically, by tokens": dynamic([3], "symmetric"),
        "quantised dynamically, by images": dynamic([1, 2, 3], "balanced"),
        "quantised dynamically, by channels": dynamic([0, 2], "asymmetric"),
        "layer_norm 1": conv(nn.LayerNorm(7), *X),
        "layer_norm 2": conv(nn.LayerNorm((5, 7)), *X),
        "layer_norm CHW": conv(nn.LayerNorm((6, 5, 7)), *X),
        "layer_norm all": conv(nn.LayerNorm(X), *X),
        "layer_norm without weights": conv(nn.LayerNorm((5, 7), elementwise_affine=False), *X),
        "layer_norm without bias": conv(nn.LayerNorm(7, bias=False), *X),
        "layer_norm eps": conv(nn.LayerNorm(7, eps=0.5), *X),
        "layer_norm of size 1": conv(nn.LayerNorm(1), 2, 5, 1),
        "layer_norm over channels": case(
            lambda m, x: m.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), X, norm=nn.LayerNorm(6)
        ),
        "layer_norm, weight computed": case(lambda m, x, w: F.layer_norm(x, (7,), w), X, (7,)),
        "rms_norm": conv(nn.RMSNorm(7), *X),
        "group_norm": conv(nn.GroupNorm(3, 6), *X),
        "group_norm of one group": conv(nn.GroupNorm(1, 6), *X),
        "group_norm per channel": conv(nn.GroupNorm(6, 6), *X),
        "group_norm 1-D": conv(nn.GroupNorm(2, 6), 3, 6, 11),
        "instance_norm": conv(nn.InstanceNorm2d(6), *X),
        "instance_norm affine": conv(nn.InstanceNorm2d(6, affine=True), *X),
        "instance_norm with statistics": conv(
            nn.InstanceNorm2d(6, affine=True, track_running_stats=True), *X
        ),
        "batch_norm": conv(nn.BatchNorm2d(6), *X),
        "batch_norm without weights": conv(nn.BatchNorm2d(6, affine=False), *X),
        "batch_norm 1-D": conv(nn.BatchNorm1d(6), 3, 6, 11),
        "batch_norm of 2-D": conv(nn.BatchNorm1d(6), 3, 6),
        "batch_norm 3-D": conv(nn.BatchNorm3d(6), 2, 6, 3, 5, 7),
        "batch_norm folded": conv(nn.Sequential(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4)), *X),
        "batch_norm folded, grouped, no bias": conv(
            nn.Sequential(nn.Conv2d(6, 4, 3, groups=2, bias=False), nn.BatchNorm2d(4)), *X
        ),
        "batch_norm folded, transposed": conv(
            nn.Sequential(nn.ConvTranspose2d(6, 4, 3, groups=2), nn.BatchNorm2d(4)), *X
        ),
        "batch_norm folded, 1-D": conv(nn.Sequential(nn.Conv1d(6, 4, 3), nn.BatchNorm1d(4)), 2, 6, 11),
        "batch_norm of a conv used twice": case(
            lambda m, x: (m.norm(m.conv(x)), m.conv(x)), X, conv=nn.Conv2d(6, 4, 3), norm=nn.BatchNorm2d(4)
        ),
        "batch_norm of a value used twice": case(
            lambda m, x: (lambda y: m.norm(y) + y)(m.conv(x)),
            X,
            conv=nn.Conv2d(6, 4, 3),
            norm=nn.BatchNorm2d(4),
        ),
        "shared batch_norm": case(
            lambda m, x: (m.norm(m.a(x)), m.norm(m.b(x))),
            X,
            a=nn.Conv2d(6, 4, 3),
            b=nn.Conv2d(6, 4, 3),
            norm=nn.BatchNorm2d(4),
        ),
        "normalize": unary(lambda x: F.normalize(x, dim=1), *X),
        "cosine_similarity": case(lambda m, x, y: F.cosine_similarity(x, y, dim=1), X, X),
        "local response": conv(nn.LocalResponseNorm(3), *X),
    },
    "reductions": {
        **{
            f"mean {d} {k}": unary(lambda x, d=d, k=k: x.mean(d, k), *X)
            for d in (0, 1, 3, (2, 3), (-1, 1), (0, 1, 2, 3))
            for k in (False, True)
        },
        **{f"sum {d}": unary(lambda x, d=d: x.sum(d), *X) for d in (1, (0, 2), (1, 2, 3))},
        **{
            f"amax {d} {k}": unary(lambda x, d=d, k=k: x.amax(d, k), *X)
            for d in (1, (2, 3))
            for k in (False, True)
        },
        **{f"amin {d}": unary(lambda x, d=d: x.amin(d), *X) for d in (0, (1, 3))},
        "mean of all": unary(lambda x: x.mean(), *X),
        "sum of all": unary(lambda x: x.sum(), *X),
        "amax of all": unary(lambda x: x.amax(), *X),
        "max of all": unary(lambda x: x.max(), *X),
        "max with indices": unary(lambda x: x.max(1), *X),
        "sum, dtype": unary(lambda x: x.sum((1, 2), dtype=torch.float64), *X),
        "mean, dtype": unary(lambda x: x.mean((1, 2), dtype=torch.float64), *X),
        "sum of integers": case(lambda m, x: x.sum(1), ints(*X)),
        "mean of size 1": unary(lambda x: x.mean((2, 3)), 2, 6, 1, 1),
        "sum of size 1 of integers": case(lambda m, x: x.sum(1), ints(2, 1, 5, dtype=torch.int32)),
        "mean over a part of a merged dim": unary(lambda x: x.reshape(2, 3, 2, 5, 7).mean(2), *X),
        "prod": unary(lambda x: x.prod(1), *X),
        "var": unary(lambda x: x.var((2, 3)), *X),
        "std": unary(lambda x: x.std(1, keepdim=True), *X),
        "norm": unary(lambda x: x.norm(dim=1), *X),
        "logsumexp": unary(lambda x: x.logsumexp(1), *X),
        "any, all": case(lambda m, x: ((x > 0).any(1), (x > -2).all(2)), X),
        **{
            f"argmax {d} {k}": unary(lambda x, d=d, k=k: x.argmax(d, k), *X)
            for d in (1, 3)
            for k in (False, True)
        },
        "argmin": unary(lambda x: x.argmin(2), *X),
        "argmax of all": unary(lambda x: x.argmax(), *X),
        "argmax of size 1": unary(lambda x: x.argmax(1), 2, 1, 5),
        "argmax over merged dims": unary(lambda x: x.flatten(1).argmax(1), *X),
        "argmax, ties": case(lambda m, x: x.argmax(1), ints(2, 9, 5, below=3).float()),
        **{f"cumsum {d}": unary(lambda x, d=d: x.cumsum(d), *X) for d in (0, 1, 3)},
        "cumsum of size 1": unary(lambda x: x.cumsum(1), 2, 1, 5),
        "cumsum over merged dims": unary(lambda x: x.flatten(1).cumsum(1).reshape(X), *X),
        "cumsum of integers": case(lambda m, x: x.cumsum(1), ints(*X, dtype=torch.int32)),
        "cumprod": unary(lambda x: x.cumprod(1), *X),
        "cummax": unary(lambda x: x.cummax(1), *X),
    },
    "joining": {
        **{
            f"cat {d}": case(
                lambda m, x, y, d=d: torch.cat([x, y], d), X, tuple(s + (d == i) for i, s in enumerate(X))
            )
            for d in range(4)
        },
        "cat of equal sizes": case(lambda m, x, y: torch.cat([x, y], 1), X, X),
        "cat of one value twice": unary(lambda x: torch.cat([x, x], 1), *X),
        "cat of three": case(lambda m, x, y, z: torch.cat([x, y, z], -3), X, (2, 3, 5, 7), (2, 9, 5, 7)),
        "cat with a constant": case(
            lambda m, x: torch.cat([m.a, x, m.b], 1), X, a=constant(2, 4, 5, 7), b=constant(2, 2, 5, 7)
        ),
        "cat of size 1": case(lambda m, x, y: torch.cat([x, y], 1), (2, 1, 5, 7), (2, 1, 5, 7)),
        "cat of convs": case(
            lambda m, x: m.c(torch.cat([m.a(x), m.b(x)], 1)),
            X,
            a=nn.Conv2d(6, 4, 3),
            b=nn.Conv2d(6, 8, 3),
            c=nn.Conv2d(12, 5, 2),
        ),
        "cat with an empty one": case(lambda m, x: torch.cat([m.none, x], 1), X, none=torch.zeros(0)),
        "cat of types": case(lambda m, x, y: torch.cat([x, y.double()], 1), X, X),
        **{f"stack {d}": case(lambda m, x, y, d=d: torch.stack([x, y, x], d), X, X) for d in (0, 1, -1)},
        "class token": case(
            lambda m, x: torch.cat([m.token.expand(2, -1, -1), x.flatten(2).transpose(1, 2)], 1),
            X,
            token=constant(1, 1, 6),
        ),
        "pad H and W": unary(lambda x: F.pad(x, (1, 2, 0, 3)), *X),
        "pad with a value": unary(lambda x: F.pad(x, (1, 0), value=2.5), *X),
        "pad C": unary(lambda x: F.pad(x, (0, 0, 0, 0, 2, 4)), *X),
        "pad C unevenly": unary(lambda x: F.pad(x, (0, 0, 0, 0, 1, 4)), *X),
        "pad all": unary(lambda x: F.pad(x, (1, 2, 3, 4, 1, 0, 0, 1), value=-1.0), *X),
        "crop by padding": unary(lambda x: F.pad(x, (-1, -2, 1, 0)), *X),
        "pad nothing": unary(lambda x: F.pad(x, (0, 0)), *X),
        "pad size 1": unary(lambda x: F.pad(x, (0, 0, 1, 2)), 2, 6, 1, 7),
        "reflect": unary(lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), *X),
        "replicate": unary(lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"), *X),
        "circular": unary(lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"), *X),
        "zero pad of integers": case(lambda m, x: F.pad(x, (1, 2)), ints(*X)),
    },
    "cutting": {
        "slice C": unary(lambda x: x[:, 2:4], *X),
        "slice C unevenly": unary(lambda x: x[:, 1:6], *X),
        "slice H, W": unary(lambda x: x[:, :, 1:-1, 2:], *X),
        "slice of one": unary(lambda x: x[:, 3:4], *X),
        "slice batch": unary(lambda x: x[1:], *X),
        "slice step": unary(lambda x: x[:, :, :, ::2], *X),
        "slice step that divides": unary(lambda x: x[:, 1::2], *X),
        "slice step of three": unary(lambda x: x[:, 2::3], *X),
        "slice step, late start": unary(lambda x: x[:, 3::2], *X),
        "slice steps everywhere": unary(lambda x: x[:, ::3, 1::2, 2:7:4], *X),
        "focus": unary(
            lambda x: torch.cat(
                [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1
            ),
            2,
            3,
            4,
            10,
        ),
        "patch merging": unary(
            lambda x: torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1),
            2,
            4,
            10,
            3,
        ),
        "empty slice": unary(lambda x: x[:, 2:2], *X),
        "select": unary(lambda x: (x[:, 2], x[0], x[..., -1]), *X),
        "split": unary(lambda x: x.split(4, 1), *X),
        "split sizes": unary(lambda x: x.split([1, 2, 3], 1), *X),
        "split last": unary(lambda x: x.split(3, -1), *X),
        "chunk": unary(lambda x: x.chunk(3, 1), *X),
        "chunk unevenly": unary(lambda x: x.chunk(4, -1), *X),
        "chunk and gate": unary(lambda x: (lambda a, b: a * b.sigmoid())(*x.chunk(2, 1)), *X),
        "glu": unary(lambda x: F.glu(x, 1), *X),
        "unbind": unary(lambda x: x.unbind(1), *X),
        "unbind last": unary(lambda x: x.unbind(-1), *X),
        "qkv": unary(lambda x: x.reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0), 2, 5, 24),
        "narrow": unary(lambda x: x.narrow(2, 1, 3), *X),
        "flip a prime": unary(lambda x: x.flip(1), 2, 37, 5),
        "flip C": unary(lambda x: x.flip(1), *X),
        "flip H, W": unary(lambda x: x.flip((2, -1)), *X),
        "flip size 1": unary(lambda x: x.flip(1), 2, 1, 5),
        "flip size 1 and another": unary(lambda x: x.flip((1, 2)), 2, 1, 5),
        "slice_scatter": case(lambda m, x, y: torch.slice_scatter(x, y, 1, -5, 4), X, (2, 3, 5, 7)),
        "slice_scatter to the end": case(lambda m, x, y: torch.slice_scatter(x, y, 3, 3), X, (2, 6, 5, 4)),
        "slice_scatter, all": case(lambda m, x, y: torch.slice_scatter(x, y, 2), X, X),
        "slice_scatter, step": case(lambda m, x, y: torch.slice_scatter(x, y, 1, 1, 6, 2), X, (2, 3, 5, 7)),
        "select_scatter": case(lambda m, x, y: torch.select_scatter(x, y, -2, -3), X, (2, 6, 7)),
        "copy of another shape": case(lambda m, x, y: torch.ops.aten.copy(x, y) + 1, X, (5, 1)),
        "copy of another type": case(lambda m, x, y: torch.ops.aten.copy(x, y.double()) + 1, X, X),
        "roll": unary(lambda x: x.roll((2, -3), (2, 3)), *X),
        "roll last": unary(lambda x: x.roll(1, -1), *X),
        "roll everything": unary(lambda x: x.roll(11), 2, 6, 5),
        "index by a list": unary(lambda x: x[:, [4, 0, 2]], *X),
        "index_select": case(lambda m, x: x.index_select(1, m.index), X, index=torch.tensor([4, 0, 2])),
        "gather": case(lambda m, x, i: x.gather(1, i), X, ints(2, 3, 5, 7, below=6)),
        "triu": unary(lambda x: x.triu(), *X),
        "unfold": unary(lambda x: F.unfold(x, 2), *X),
        "masked write": unary(lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 0, 2), *X),
        "select scatter": unary(lambda x: torch.select_scatter(x, x[:, 2] + 1, 1, 4), *X),
    },
    "views": {
        "flatten": unary(lambda x: x.flatten(1), *X),
        "flatten middle": unary(lambda x: x.flatten(1, 2), *X),
        "flatten all": unary(lambda x: x.flatten(), *X),
        "permute": unary(lambda x: x.permute(0, 2, 3, 1), *X),
        "permute twice": unary(lambda x: x.permute(2, 0, 3, 1).permute(1, 0, 3, 2), *X),
        "transpose": unary(lambda x: x.transpose(1, -1), *X),
        "mT": unary(lambda x: x.mT, *X),
        "t": unary(lambda x: x.t(), 5, 7),
        "squeeze": unary(lambda x: (x.squeeze(), x.squeeze(1), x.squeeze((0, 1)), x.squeeze(2)), 1, 1, 5, 7),
        "unsqueeze": unary(lambda x: (x.unsqueeze(0), x.unsqueeze(-1), x.unsqueeze(2)), *X),
        "movedim": unary(lambda x: x.movedim(1, 3), *X),
        "split a channel": unary(lambda x: x.unflatten(1, (3, 2)) * 2, *X),
        "merge across": unary(lambda x: x.permute(0, 2, 3, 1).reshape(2, 35, 6).relu(), *X),
        "channel shuffle": unary(lambda x: x.reshape(2, 3, 2, 5, 7).transpose(1, 2).reshape(X), *X),
        "nn.ChannelShuffle": conv(nn.ChannelShuffle(3), *X),
        "pixel shuffle": unary(lambda x: F.pixel_shuffle(x, 2), 2, 12, 5, 7),
        "pixel unshuffle": unary(lambda x: F.pixel_unshuffle(x, 2), 2, 3, 10, 6),
        "space to depth by hand": unary(
            lambda x: x.reshape(2, 3, 5, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(2, 12, 5, 3), 2, 3, 10, 6
        ),
        "window partition": unary(
            lambda x: x.view(2, 3, 4, 2, 4, 5).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 5).softmax(1),
            2,
            12,
            8,
            5,
        ),
        "window round trip": unary(
            lambda x: (
                x.view(2, 3, 4, 2, 4, 5)
                .permute(0, 1, 3, 2, 4, 5)
                .reshape(12, 16, 5)
                .relu()
                .view(2, 3, 2, 4, 4, 5)
                .permute(0, 1, 3, 2, 4, 5)
                .reshape(2, 12, 8, 5)
            ),
            2,
            12,
            8,
            5,
        ),
        "awkward": unary(lambda x: x.reshape(2, 4, 24).relu(), 2, 6, 16),
        "awkward and back": unary(lambda x: x.reshape(2, 4, 24).softmax(1).reshape(2, 6, 16), 2, 6, 16),
        "awkward, transposed": unary(lambda x: x.transpose(1, 2).reshape(2, 24, 4).mean(1), 2, 6, 16),
        "awkward after conv": case(
            lambda m, x: m.b(m.a(x).reshape(2, 4, 18, 6).relu()),
            X,
            a=nn.Conv2d(6, 12, 2, padding=(1, 0)),
            b=nn.Conv2d(4, 3, 2),
        ),
        "conflicting cuts": unary(
            lambda x: (x.reshape(2, 2, 48, 5).relu(), x.reshape(2, 3, 32, 5).softmax(1)), 2, 96, 5
        ),
        "conflicting cuts, both reduced": unary(
            lambda x: (x.reshape(2, 2, 6, 5).softmax(1), x.reshape(2, 3, 4, 5).amax(2)), 2, 12, 5
        ),
        "split and interleave": unary(lambda x: torch.stack([x[:, ::2], x[:, 1::2]], 2).flatten(1, 2), *X),
        "rotate halves": unary(lambda x: torch.cat([-x[..., 4:], x[..., :4]], -1), 2, 3, 5, 8),
        "rotate pairs": unary(
            lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2), 2, 3, 5, 8
        ),
        "to a scalar": unary(lambda x: x.reshape(()), 1, 1),
        "from a scalar": unary(lambda x: x.reshape(1, 1)),
        "of size 1 axes": unary(lambda x: x.reshape(1, 2, 1, 6, 35).relu(), *X),
        "view dtype free": unary(lambda x: x.view(x.shape) + 1, *X),
        "view as": case(lambda m, x, y: x.view_as(y) + y, (2, 30, 7), X),
        "conv, tokens, conv": case(
            lambda m, x: m.b((m.n(m.a(x).flatten(2).transpose(1, 2))).transpose(1, 2).reshape(2, 4, 3, 5)),
            X,
            a=nn.Conv2d(6, 4, 3),
            n=nn.LayerNorm(4),
            b=nn.Conv2d(4, 3, 2),
        ),
    },
    "broadcasting": {
        "bias": case(lambda m, x: x + m.b, X, b=constant(6, 1, 1)),
        "scale of the last dim": case(lambda m, x: x * m.b, X, b=constant(7)),
        "constant on the left": case(lambda m, x: m.b - x, X, b=constant(2, 6, 1, 7)),
        "full constant": case(lambda m, x: m.b / (x.abs() + 1), X, b=constant(*X)),
        "larger constant": case(lambda m, x: x + m.b, (6, 1, 7), b=constant(2, 1, 5, 1)),
        "0-d constant": case(lambda m, x: x * m.b, X, b=torch.tensor(2.5)),
        "two values": case(lambda m, x, y: x + y, X, (6, 1, 7)),
        "each broadcasts": case(lambda m, x, y: x * y, (2, 6, 1, 7), (2, 1, 5, 7)),
        "rank 2 and 4": case(lambda m, x, y: x * y[:, :, None, None], X, (2, 6)),
        "scalar value": case(lambda m, x, y: x * y, X, ()),
        "scalar of a wider type": case(
            lambda m, x, y: x * y + m.c,
            X,
            torch.ones((), dtype=torch.float64),
            c=torch.tensor(2.0, dtype=torch.float64),
        ),
        "slices of size 1": unary(lambda x: (x[::2], x[:, :, 2:3:2], x[:, 4::3]), 1, 6, 5, 7),
        "cat of sizes 1 with a constant": case(
            lambda m, x: torch.cat([x, m.c]), (1, 1, 1, 1), c=constant(1, 1, 1, 1)
        ),
        "scalars": case(lambda m, x, y: x * y + 1, (), ()),
        "outer product": case(lambda m, x, y: x[:, None] * y[None, :], (5,), (7,)),
        "outer difference": unary(lambda x: x[:, :, None] - x[:, None, :], 2, 5),
        "gate": unary(lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(), *X),
        "gate by linear": case(
            lambda m, x: x * m.l(x.mean((2, 3)))[:, :, None, None].sigmoid(), X, l=nn.Linear(6, 6)
        ),
        "spatial gate": unary(lambda x: x * x.mean(1, keepdim=True).sigmoid(), *X),
        "where": case(lambda m, x, y: torch.where(x > 0, x, y), X, (6, 1, 7)),
        "where with scalars": unary(lambda x: torch.where(x > 0, 1.5, x), *X),
        "where with constants": case(
            lambda m, x: torch.where(m.mask, x, m.other), X, mask=constant(5, 7) > 0, other=constant(6, 1, 1)
        ),
        "masked_fill": case(lambda m, x: x.masked_fill(m.mask, -3.0), X, mask=constant(5, 7) > 0),
        "masked_fill, computed": case(lambda m, x, y: x.masked_fill(y > 0, 2.0), X, (6, 1, 7)),
        "masked_fill, tensor value": case(
            lambda m, x, y: x.masked_fill(y > 0, m.v), X, (6, 1, 7), v=torch.tensor(0.5)
        ),
        "prelu": conv(nn.PReLU(6), *X),
        "prelu, one slope": conv(nn.PReLU(), *X),
        "prelu 1-D": conv(nn.PReLU(6), 2, 6, 7),
        "prelu of 2-D": conv(nn.PReLU(6), 2, 6),
        "prelu of a vector": conv(nn.PReLU(), 6),
        "prelu after conv": conv(nn.Sequential(nn.Conv2d(6, 4, 3), nn.PReLU(4), nn.Conv2d(4, 3, 2)), *X),
        "prelu, slope computed": case(lambda m, x, w: F.prelu(x, w.abs()), X, (6,)),
        "prelu flattened": case(lambda m, x: m.p(x.flatten(1)), X, p=nn.PReLU(210)),
        "expand": case(lambda m, x: x.expand(2, 6, 5, 7).relu(), (2, 1, 5, 7)),
        "expand new dims": unary(lambda x: x.expand(3, 4, 5, 7), 5, 7),
        "expand and multiply": case(lambda m, x, y: x.expand_as(y) * y, (1, 6, 1, 7), X),
        "expand, then cut": unary(lambda x: x.expand(2, 6, 5, 7)[:, 1:3], 2, 1, 5, 7),
        "expand, then merge": unary(
            lambda x: x[:, :, None].expand(2, 3, 4, 5).reshape(2, 12, 5).softmax(1), 2, 3, 5
        ),
        "repeat": unary(lambda x: x.repeat(1, 2, 1, 3), *X),
        "repeat, new dims": unary(lambda x: x.repeat(3, 1, 1, 2), 6, 5, 7),
        "repeat_interleave": unary(lambda x: x.repeat_interleave(2, 1), *X),
        "tile": unary(lambda x: x.tile((2, 1)), *X),
        "meshgrid": case(lambda m, x, y: torch.stack(torch.meshgrid(x, y, indexing="ij"), -1), (5,), (7,)),
        "addcmul": case(lambda m, x, y: torch.addcmul(x, y, m.b, value=0.5), X, (6, 1, 7), b=constant(5, 1)),
        "lerp": case(lambda m, x, y: torch.lerp(x, y, 0.3), X, X),
    },
    "elementwise": {
        "activations": unary(
            lambda x: tuple(
                f(x)
                for f in (
                    F.relu,
                    F.relu6,
                    F.gelu,
                    F.silu,
                    F.hardswish,
                    F.hardsigmoid,
                    F.hardtanh,
                    F.leaky_relu,
                    F.elu,
                    F.selu,
                    F.softplus,
                    F.mish,
                    F.logsigmoid,
                    F.tanhshrink,
                    F.softsign,
                    F.celu,
                    F.hardshrink,
                    F.softshrink,
                )
            ),
            *X,
        ),
        "functions": unary(
            lambda x: tuple(
                f(x)
                for f in (
                    torch.sigmoid,
                    torch.tanh,
                    torch.exp,
                    torch.sin,
                    torch.cos,
                    torch.floor,
                    torch.ceil,
                    torch.round,
                    torch.sign,
                    torch.neg,
                    torch.abs,
                    torch.erf,
                    torch.square,
                    torch.reciprocal,
                    torch.isnan,
                    torch.logical_not,
                    torch.atan,
                    torch.expm1,
                    torch.nan_to_num,
                )
            ),
            *X,
        ),
        "roots": unary(
            lambda x: (
                x.abs().sqrt(),
                (x.abs() + 1).rsqrt(),
                (x.abs() + 1).log(),
                x**2,
                x.abs() ** 1.5,
                2**x,
            ),
            *X,
        ),
        "scalars": unary(
            lambda x: (
                x + 1,
                1 - x,
                x * 2,
                3 / (x.abs() + 1),
                x / 2,
                x // 0.5,
                x % 0.7,
                torch.add(x, x, alpha=3),
                torch.rsub(x, 2),
            ),
            *X,
        ),
        "pairs": case(
            lambda m, x, y: (
                x + y,
                x - y,
                x * y,
                x / y,
                torch.maximum(x, y),
                torch.minimum(x, y),
                torch.atan2(x, y),
                torch.fmod(x, y),
            ),
            X,
            X,
        ),
        "comparisons": case(
            lambda m, x, y: (
                x > y,
                x >= y,
                x == y,
                x != 0,
                (x > 0) & (y > 0),
                (x > 0) | ~(y > 0),
                (x > 0) ^ (y > 0),
            ),
            X,
            X,
        ),
        "clamps": case(
            lambda m, x, y: (x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0.5), x.clamp(y - 1, y + 1)), X, X
        ),
        "casts": unary(
            lambda x: (
                x.double(),
                x.int(),
                x.to(torch.float16).float(),
                (x > 0).float(),
                x.to(torch.float32),
            ),
            *X,
        ),
        "integers": case(
            lambda m, x, y: (x + y, x * 2, x // 3, x & y, x % 4, x.float() / 2, x << 1), ints(*X), ints(*X)
        ),
        "mixed types": case(lambda m, x, y: (x + y, x * y), ints(*X), X),
        "dropout": conv(nn.Dropout(0.5), *X),
        "alpha dropout": conv(nn.AlphaDropout(0.5), *X),
        "clone, contiguous, detach": unary(
            lambda x: x.clone().contiguous().detach().contiguous(memory_format=torch.channels_last) + 1, *X
        ),
        "in place": unary(lambda x: (x + 1).relu_().add_(2).mul_(3), *X),
        "in place on a slice": unary(lambda x: _written(x), *X),
        "likes": unary(
            lambda x: (
                x
                + torch.zeros_like(x)
                + torch.ones_like(x) * x.new_full((6, 1, 1), 2.0)
                + torch.full_like(x, 3.0)
            ),
            *X,
        ),
    },
    "spatial": {
        "max pool": conv(nn.MaxPool2d(2), *IMAGE),
        "max pool, ceil": conv(nn.MaxPool2d(3, 2, 1, ceil_mode=True), *IMAGE),
        "max pool, dilated": conv(nn.MaxPool2d((2, 3), 1, dilation=(3, 2)), *IMAGE),
        "max pool with indices": conv(nn.MaxPool2d(2, return_indices=True), *IMAGE),
        "max pool 1-D": conv(nn.MaxPool1d(2), 2, 6, 11),
        "max pool 3-D": conv(nn.MaxPool3d(2), 2, 3, 5, 6, 7),
        "max pool, unbatched": conv(nn.MaxPool2d(2), *IMAGE[1:]),
        "avg pool": conv(nn.AvgPool2d((2, 3)), *IMAGE),
        "avg pool, ceil": conv(nn.AvgPool2d(3, 2, ceil_mode=True), *IMAGE),
        "avg pool, padding counted": conv(nn.AvgPool2d(3, 2, 1), *IMAGE),
        "avg pool, padding not counted": conv(nn.AvgPool2d(3, 2, 1, count_include_pad=False), *IMAGE),
        "avg pool, divisor": conv(nn.AvgPool2d(3, 2, 1, divisor_override=5), *IMAGE),
        "avg pool 1-D": conv(nn.AvgPool1d(2), 2, 6, 11),
        "avg pool 3-D": conv(nn.AvgPool3d(2), 2, 3, 5, 6, 7),
        "lp pool": conv(nn.LPPool2d(2, 2), *IMAGE),
        "global avg pool": conv(nn.AdaptiveAvgPool2d(1), *IMAGE),
        "adaptive avg pool that divides": conv(nn.AdaptiveAvgPool2d((3, 7)), *IMAGE),
        "adaptive avg pool": conv(nn.AdaptiveAvgPool2d((4, 3)), *IMAGE),
        "adaptive avg pool up": conv(nn.AdaptiveAvgPool2d((18, 14)), *IMAGE),
        "adaptive avg pool 1-D": conv(nn.AdaptiveAvgPool1d(1), 2, 6, 11),
        "adaptive avg pool 3-D": conv(nn.AdaptiveAvgPool3d(1), 2, 3, 5, 6, 7),
        "adaptive avg pool 3-D that does not divide": conv(nn.AdaptiveAvgPool3d((3, 1, 4)), 2, 3, 5, 6, 7),
        "adaptive avg pool along a size of 1": conv(nn.AdaptiveAvgPool3d((4, 3, 5)), 2, 3, 1, 6, 7),
        "adaptive avg pool of one element": conv(nn.AdaptiveAvgPool2d((4, 3)), 2, 5, 1, 1),
        "adaptive avg pool of a row": conv(nn.AdaptiveAvgPool1d(4), 2, 5, 1),
        "adaptive max pool with indices": unary(
            lambda x: F.adaptive_max_pool2d(x, (3, 7), return_indices=True), *IMAGE
        ),
        "max pool with indices, ceil": unary(
            lambda x: F.max_pool2d(x, (3, 2), 2, (1, 0), ceil_mode=True, return_indices=True), *IMAGE
        ),
        "adaptive avg pool, one side": conv(nn.AdaptiveAvgPool2d((None, 1)), *IMAGE),
        "adaptive max pool": conv(nn.AdaptiveMaxPool2d((3, 2)), *IMAGE),
        "adaptive max pool 1": conv(nn.AdaptiveMaxPool2d(1), *IMAGE),
        "nearest": unary(lambda x: F.interpolate(x, scale_factor=2), *IMAGE),
        "nearest, size": unary(lambda x: F.interpolate(x, size=(5, 13)), *IMAGE),
        "nearest, factors": unary(lambda x: F.interpolate(x, scale_factor=(1.5, 2.3)), *IMAGE),
        "nearest, factors recomputed": unary(
            lambda x: F.interpolate(x, scale_factor=(1.5, 2.3), recompute_scale_factor=True), *IMAGE
        ),
        "nearest exact": unary(lambda x: F.interpolate(x, size=(5, 13), mode="nearest-exact"), *IMAGE),
        "bilinear": unary(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), *IMAGE),
        "bilinear, aligned": unary(
            lambda x: F.interpolate(x, size=(5, 13), mode="bilinear", align_corners=True), *IMAGE
        ),
        "bilinear, size": unary(lambda x: F.interpolate(x, size=(5, 13), mode="bilinear"), *IMAGE),
        "bilinear, factors": unary(
            lambda x: F.interpolate(x, scale_factor=(1.5, 2.3), mode="bilinear"), *IMAGE
        ),
        "bilinear, antialias": unary(
            lambda x: F.interpolate(x, size=(5, 4), mode="bilinear", antialias=True), *IMAGE
        ),
        "bicubic": unary(lambda x: F.interpolate(x, size=(5, 13), mode="bicubic"), *IMAGE),
        "linear": unary(lambda x: F.interpolate(x, size=13, mode="linear"), 2, 6, 11),
        "nearest 1-D": unary(lambda x: F.interpolate(x, size=13), 2, 6, 11),
        "trilinear": unary(lambda x: F.interpolate(x, size=(3, 4, 5), mode="trilinear"), 2, 3, 5, 6, 7),
        "grid sample": case(
            lambda m, x, g: F.grid_sample(x, g.tanh(), align_corners=False), IMAGE, (2, 4, 5, 2)
        ),
        "one place": conv(nn.Sequential(nn.Conv2d(12, 5, 1), nn.MaxPool2d(1), nn.AvgPool2d(1)), 2, 12, 1, 1),
    },
    "opaque": {
        "embedding": case(lambda m, x: m.e(x), ints(2, 5), e=nn.Embedding(10, 6)),
        "embedding bag": case(
            lambda m, x, o: m.e(x, o),
            ints(9),
            torch.tensor([0, 4, 4]),
            e=nn.EmbeddingBag(10, 6, mode="mean"),
        ),
        "median": unary(lambda x: (x.median(1), x.median()), 2, 5, 7),
        "embedding, then conv": case(
            lambda m, x: m.c(m.e(x).transpose(1, 2)), ints(2, 5), e=nn.Embedding(10, 6), c=nn.Conv1d(6, 4, 3)
        ),
        "embedding of an image": case(
            lambda m, x: m.c(m.e(x).permute(0, 3, 1, 2)),
            ints(2, 5, 7),
            e=nn.Embedding(10, 6),
            c=nn.Conv2d(6, 4, 3),
        ),
        "topk": unary(lambda x: x.topk(3, 1), *X),
        "topk, one result": unary(lambda x: x.topk(3, -1)[0], *X),
        "sort": unary(lambda x: x.sort(1), *X),
        "svd": unary(lambda x: torch.linalg.svdvals(x), 2, 5, 7),
        "lstm": case(lambda m, x: m.l(x)[0], (5, 2, 6), l=nn.LSTM(6, 4)),
        "gru": case(lambda m, x: m.l(x), (2, 5, 6), l=nn.GRU(6, 4, batch_first=True)),
        "between convs": case(
            lambda m, x: m.b(m.a(x).sort(1)[0]), X, a=nn.Conv2d(6, 4, 3), b=nn.Conv2d(4, 3, 2)
        ),
        "one hot": case(lambda m, x: F.one_hot(x, 10).float(), ints(2, 5)),
        "bincount free scatter": case(
            lambda m, x, i: torch.zeros_like(x).scatter_add(1, i, x), X, ints(*X, below=6)
        ),
        "cdist": case(lambda m, x, y: torch.cdist(x, y), (2, 5, 3), (2, 7, 3)),
        "complex": unary(lambda x: torch.fft.rfft2(x).abs(), *X),
        "outer index": unary(lambda x: x[:, torch.tensor([0, 3])][:, :, torch.tensor([1])], *X),
        "nothing": case(lambda m, x: x.new_tensor([1.0, 2.0]) + x[0, 0, 0, :2], X),
    },
    "boundary": {
        "an output twice": case(lambda m, x: (lambda y: (y, y, y))(m.c(x)), X, c=nn.Conv2d(6, 4, 3)),
        "an output and its views": case(
            lambda m, x: (lambda y: (y, y.flatten(1), y.permute(0, 2, 3, 1)))(m.c(x)), X, c=nn.Conv2d(6, 4, 3)
        ),
        "an input": case(lambda m, x: (x, x + 1), X),
        "an input and its view": case(lambda m, x: (x.permute(0, 2, 3, 1), x.flatten(1)), X),
        "a constant": case(lambda m, x: (m.c, x + 1, m.c * 2, m.c), X, c=constant(3, 4)),
        "a 4-D constant": case(lambda m, x: (m.c, x + 1), X, c=constant(2, 4, 5, 3)),
        "an unused input": case(lambda m, x, y: x + 1, X, X),
        "an unused result": case(lambda m, x: (x.sort(1)[1], x * 2)[0], X),
        "an input used twice": case(
            lambda m, x: m.c(x) + m.d(x), X, c=nn.Conv2d(6, 4, 3), d=nn.Conv2d(6, 4, 3)
        ),
        "0-d": case(lambda m, x: (x * 2, x.sigmoid()), ()),
        "batch 1": case(lambda m, x: m.c(x).flatten(1), (1, 6, 5, 7), c=nn.Conv2d(6, 4, 3)),
        "one channel": case(
            lambda m, x: m.c(x) * m.d(x), (2, 1, 5, 7), c=nn.Conv2d(1, 4, 3), d=nn.Conv2d(1, 1, 3)
        ),
        "one place": case(
            lambda m, x: (m.c(x), x.softmax(1), x.mean((2, 3)), torch.cat([x, x], 2)),
            (2, 6, 1, 1),
            c=nn.Conv2d(6, 4, 1),
        ),
        "all sizes 1": case(
            lambda m, x: (m.c(x), x + 1, x.flatten(), x.mean((2, 3)), x.softmax(1), F.layer_norm(x, (1, 1))),
            (1, 1, 1, 1),
            c=nn.Conv2d(1, 1, 1),
        ),
        "5-D": unary(lambda x: (x + 1, x.permute(0, 2, 3, 4, 1).relu(), x.mean((2, 4))), 2, 3, 5, 4, 7),
        "6-D": unary(lambda x: (x.transpose(1, 4) * 2, x.sum(3)), 2, 3, 5, 4, 7, 6),
        "8-D": unary(
            lambda x: x.reshape(2, 2, 3, 2, 2, 3, 5, 2).permute(7, 0, 6, 1, 5, 2, 4, 3).relu(), 4, 6, 6, 10
        ),
        "booleans": case(lambda m, x: ~x, ints(*X) > 4),
        "structure": case(lambda m, x, y: {"sum": x + y, "both": [x * y, (y - x,)]}, X, X),
    },
}


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :2] = 0.5
    y[..., 1:] += 1
    return y


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_family_gives_eagers_numbers(family: str) -> None:
    cases = list(FAMILIES[family].values())
    lower_everywhere(Joined(cases), [x for c in cases for x in c.tensors()])
