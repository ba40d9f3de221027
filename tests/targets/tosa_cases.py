"""Cases that TOSA computes: calls of physical programs as they stand, and networks of one operator."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("tosa_serializer")

from tests.targets.cases import IMAGE, PHYSICAL, SHARED, Case, D, X, Y, aten, r
from tests.targets.tosa_pointwise_cases import ELEMENTWISE, B, I

V = r(2, 5, 9, 11, 6)
CALLS: dict[str, Case] = {
    **PHYSICAL,
    "prelu, slope given": (lambda x, w: D.prelu_last(x, w), (X, r(6)), ()),
    "conv, strides that do not divide, no padding": (
        lambda x, w: D.conv2d_nhwc(x, w, None, [3, 4], [0] * 4, [1, 1], 1),
        (X,),
        (r(5, 2, 2, 6),),
    ),
    "conv, strides that do not divide, padding": (
        lambda x, w: D.conv2d_nhwc(x, w, None, [3, 4], [1, 1, 2, 2], [1, 1], 1),
        (X,),
        (r(5, 3, 2, 6),),
    ),
    "conv, groups of one channel in, 70 of them": (
        lambda x, w: D.conv2d_nhwc(x, w, None, [1, 1], [0] * 4, [1, 1], 70),
        (r(1, 3, 4, 140),),
        (r(70, 2, 1, 2),),
    ),
    "depthwise, 5x7, dilation, stride": (
        lambda x, w: D.conv2d_nhwc(x, w, None, [1, 2], [5, 3, 4, 1], [2, 1], 6),
        (X,),
        (r(6, 5, 7, 1),),
    ),
    "conv3d": (
        lambda x, w, b: D.conv3d_ndhwc(x, w, b, [1, 2, 3], [1, 0, 2, 1, 0, 3], [2, 1, 1], 1),
        (V,),
        (r(7, 2, 3, 4, 6), r(7)),
    ),
    "conv3d, groups": (
        lambda x, w: D.conv3d_ndhwc(x, w, None, [1, 1, 2], [0] * 6, [1, 1, 1], 3),
        (V,),
        (r(9, 2, 3, 1, 2),),
    ),
    "transposed": (
        lambda x, w, b: D.conv_transpose2d_nhwc(x, w, b, [3, 2], [1, 0], [2, 1], [1, 1], 1),
        (X,),
        (r(5, 3, 2, 6), r(5)),
    ),
    "transposed, dilation": (
        lambda x, w, b: D.conv_transpose2d_nhwc(x, w, b, [1, 2], [1, 2], [0, 1], [3, 2], 1),
        (X,),
        (r(5, 3, 4, 6), r(5)),
    ),
    "transposed, depthwise": (
        lambda x, w, b: D.conv_transpose2d_nhwc(x, w, b, [2, 3], [0, 1], [1, 0], [1, 1], 6),
        (X,),
        (r(6, 3, 4, 1), r(6)),
    ),
    "max pool": (lambda x: D.max_pool2d_nhwc(x, [3, 2], [2, 3], [1, 0], [1, 1], False), (X,), ()),
    "max pool, ceil, padding": (
        lambda x: D.max_pool2d_nhwc(x, [3, 4], [2, 3], [1, 2], [1, 1], True),
        (r(2, 8, 11, 6),),
        (),
    ),
    **{
        f"bilinear {x.shape[1]}x{x.shape[2]} to {h}x{w}, align_corners={align}": (
            lambda x, h=h, w=w, align=align: D.upsample_bilinear2d_nhwc(x, [h, w], align, None, None),
            (x,),
            (),
        )
        for x, h, w in [
            (X, 14, 27),
            (X, 5, 4),
            (X, 18, 33),
            (X, 9, 1),
            (r(2, 1, 1, 6), 14, 13),
            (r(2, 1, 5, 6), 3, 17),
        ]
        for align in (False, True)
    },
    "bilinear, scales that leave a rest": (
        lambda x: D.upsample_bilinear2d_nhwc(x, [13, 17], False, 1.5, 1.6),
        (X,),
        (),
    ),
    **{
        f"nearest 9x11 to {h}x{w}": (
            lambda x, h=h, w=w: D.upsample_nearest2d_nhwc(x, [h, w], None, None),
            (X,),
            (),
        )
        for h, w in [(18, 33), (14, 25), (4, 7), (9, 11), (3, 55)]
    },
    "nearest, scales that leave a rest": (
        lambda x: D.upsample_nearest2d_nhwc(x, [13, 17], 1.5, 1.6),
        (X,),
        (),
    ),
    "nearest, scales beyond RESIZE": (
        lambda x: D.upsample_nearest2d_nhwc(x, [1031, 2], None, None),
        (r(1, 1033, 3, 2),),
        (),
    ),
}

CONVOLUTIONS: dict[str, Case] = {
    "conv3d": (
        lambda x, w, b: F.conv3d(x, w, b, (1, 2, 3), (1, 2, 0), (2, 1, 1)),
        (r(2, 6, 5, 9, 11),),
        (r(7, 6, 2, 3, 4), r(7)),
    ),
    "conv3d, groups": (
        lambda x, w: F.conv3d(x, w, None, (1, 1, 2), 0, 1, 3),
        (r(2, 6, 5, 9, 11),),
        (r(9, 2, 2, 3, 1),),
    ),
    "conv, strides that do not divide": (
        lambda x, w: F.conv2d(x, w, None, (3, 4), (1, 2)),
        (IMAGE,),
        (r(5, 6, 3, 2),),
    ),
    "transposed, dilation": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, (1, 2), (1, 2), (0, 1), 1, (3, 2)),
        (IMAGE,),
        (r(6, 5, 3, 4), r(5)),
    ),
    "max pools, unbatched": (
        lambda x, y, z: (
            F.max_pool1d(x, 3, 2, 1),
            F.max_pool2d(y, (3, 2), (2, 3), 1, ceil_mode=True),
            F.max_pool3d(z, (2, 3, 2), (1, 2, 3), (1, 0, 1)),
        ),
        (r(2, 5, 12), r(3, 8, 11), r(2, 3, 5, 8, 11)),
        (),
    ),
    "average pools, unbatched": (
        lambda x, y, z: (
            F.avg_pool1d(x, 3, 2, 1),
            F.avg_pool2d(y, (3, 2), (2, 3), 1, count_include_pad=False, divisor_override=4),
            F.avg_pool3d(z, (2, 3, 2), (1, 2, 3), 1),
            F.avg_pool3d(z, (2, 3, 2), (1, 2, 3), (1, 1, 0), count_include_pad=False, ceil_mode=True),
        ),
        (r(2, 5, 12), r(3, 8, 11), r(2, 3, 5, 8, 11)),
        (),
    ),
    "bilinear, aligned": (
        lambda x: F.interpolate(x, (14, 27), mode="bilinear", align_corners=True),
        (IMAGE,),
        (),
    ),
    "nearest, down": (lambda x: F.interpolate(x, (4, 7)), (IMAGE,), ()),
}

MATRICES: dict[str, Case] = {
    "linear": (F.linear, (Y,), (r(3, 7), r(3))),
    "linear, rank 5": (F.linear, (V,), (r(4, 6), r(4))),
    "mm, transposed": (lambda x, y: torch.mm(x, y.permute(1, 0)), (r(4, 7), r(3, 7)), ()),
    "matmul, rank 2 by 3": (torch.matmul, (r(4, 7), r(2, 7, 3)), ()),
    "matmul, constant left": (lambda x, c: torch.matmul(c, x), (r(7, 3),), (r(4, 7),)),
    "matmul, constant left, batch": (lambda x, c: torch.matmul(c, x), (r(2, 7, 3),), (r(4, 7),)),
    "matmul, batch of one right": (torch.matmul, (r(2, 5, 4, 7), r(1, 1, 7, 3)), ()),
    "matmul, batches that broadcast": (torch.matmul, (r(2, 1, 4, 7), r(5, 7, 3)), ()),
}

REDUCTIONS: dict[str, Case] = {
    "running sums of integers and of many elements": (
        lambda x, i, b: (
            i.cumsum(2),
            b.cumsum(1),
            i.cumprod(1),
            x.cumsum(1),
            i.cumsum(1, dtype=torch.float32),
        ),
        (r(3, 70, 2), I % 3, B),
        (),
    ),
    **{
        f"{name}, dim {dim}": (lambda x, f=f, d=dim: f(x * 9, d), (X,), ())
        for name, f in [("softmax", torch.softmax), ("log_softmax", torch.log_softmax)]
        for dim in (0, 2, -1)
    },
    "softmax, rank 1": (lambda x: torch.softmax(x, 0), (r(7),), ()),
    "softmax, a row of minus infinity": (
        lambda x, m: torch.softmax(x + m, -1),
        (Y,),
        (torch.zeros(7).masked_fill(B[0, 0], -math.inf),),
    ),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (7,), w, b, 1e-3), (Y,), (r(7), r(7))),
    "layer_norm, two dims": (lambda x, w, b: F.layer_norm(x, (5, 7), w, b), (Y,), (r(5, 7), r(5, 7))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), (r(2, 6, 5, 7),), (r(6), r(6))),
    "group_norm, rank 3, no affine": (lambda x: F.group_norm(x, 2), (r(2, 6, 5),), ()),
    **{
        f"mean, {dims}, keepdim={keep}": (lambda x, d=dims, k=keep: x.mean(d, k), (X,), ())
        for dims in [(1, 2), (3,), (0,), (-1, 1), (0, 2), (0, 1, 2, 3)]
        for keep in (False, True)
    },
    "sum, integers": (lambda x: (x.sum(1), x.sum()), (I,), ()),
    "sum, truth": (lambda x: x.sum(1), (B,), ()),
    "any, all": (lambda x: (x.any(), x.any(1), x.all(), x.all(2), x.any((0, 2))), (B,), ()),
    "argmax": (lambda x: (x.argmax(1), x.argmax(-1, True), x.argmax()), (X,), ()),
    "argmin": (lambda x: (x.argmin(2), x.argmin(), x.argmin(keepdim=True)), (X,), ()),
    "softmax and log_softmax of core ATen": (
        lambda x: (aten._softmax(x, 1, False), aten._log_softmax(x, 0, False)),
        (Y,),
        (),
    ),
}

INDICES = torch.tensor([[3, 0, 4], [1, 1, 2]])
MOVES: dict[str, Case] = {
    **{
        f"cat of {n} along {dim}": (
            lambda *xs, d=dim: torch.cat(xs, d),
            tuple(
                r(*(n + i if j == dim % 3 else size for j, size in enumerate((2, 5, 7)))) for i in range(n)
            ),
            (),
        )
        for n, dim in [(1, 0), (2, 1), (3, -1), (27, 1)]
    },
    "cat of one picture and several": (
        lambda x: torch.cat([x[:1] * 2, x], 0),
        (torch.randn(3, 2, 1, 5),),
        (),
    ),
    "cat of 70": (lambda x: torch.cat([x + i for i in range(70)], 1), (Y,), ()),
    "slice of truth": (lambda x: x[:, 1:4], (B,), ()),
    "pad, infinite": (lambda x: F.pad(x, (1, 2), value=float("-inf")), (Y,), ()),
    "pad, integers": (lambda x: F.pad(x, (1, 2), value=3), (I,), ()),
    "permute, rank 8": (
        lambda x: x.reshape(1, 2, 3, 4, 5, 1, 2, 3).permute(4, 6, 7, 0, 5, 1, 2, 3).reshape(15, 48) * 2,
        (r(2, 3, 4, 5, 6),),
        (),
    ),
    "permute, integers": (lambda x: x.permute(2, 0, 1).clone(), (I,), ()),
    "transpose": (lambda x: (x.transpose(0, -1) * 2, x.transpose(1, 2)[0] + 1), (Y,), ()),
    "constant permuted": (
        lambda x, c: x * c.permute(1, 0).contiguous().view(7, 5).permute(1, 0),
        (Y,),
        (r(7, 5).t().contiguous(),),
    ),
    "expand, rank 7": (
        lambda x: x.reshape(1, 2, 1, 5, 1, 7, 1).expand(2, 2, 3, 5, 2, 7, 2).reshape(60, 28) * 2,
        (Y,),
        (),
    ),
    "flip": (lambda x: (x.flip(1), x.flip(0, 2)), (Y,), ()),
    "embedding": (lambda i, w: F.embedding(i, w), (INDICES,), (r(5, 7),)),
    "embedding, constant indices": (lambda w, i: F.embedding(i, w), (r(5, 7),), (INDICES,)),
    "index_put": (
        lambda x, y, i, j: (
            torch.index_put(x, (i,), y[0, 0]),
            torch.index_put(x, (i, j), y[0, 0]),
            torch.index_put(x, (i, j), y[0, :1, :1], True),
            torch.index_put(x, (i - 5,), y[1, 2], True),
            torch.ops.aten.index_put(x, [i, None], y[0, 0]),
            torch.ops.aten.index_put(x, [None, j], y[0].unsqueeze(1)),
            torch.ops.aten.index_put(x, [j[:1], None, i[:2]], y[:, :4, 1]),
        ),
        (r(5, 4, 7), r(2, 5, 7), torch.tensor([1, 4, 1]), torch.tensor([3, 0, 3])),
        (),
    ),
    "index_put behind a dimension": (
        lambda x, y, i, j: (
            aten.index_put(x, [None, i], y),
            aten.index_put(x, [None, i, j], y[:, :, 0]),
            aten.index_put(x, [None, None, i], y[:, :1, :3]),
            aten.index_put(x, [None, i], y[0], True),
        ),
        (r(5, 4, 7), r(5, 3, 7), torch.tensor([1, -1, 1]), torch.tensor([3, 0, 3])),
        (),
    ),
    "index_put behind a dimension, large": (
        lambda x, y, i: aten.index_put(x, [None, i], y),
        (
            r(3, 300, 200),
            r(3, 200, 200),
            torch.randperm(300, generator=torch.Generator().manual_seed(1))[:200],
        ),
        (),
    ),
    "index": (
        lambda x, i, j: (x[i], x[:, j], x[i, j[:, None]], x[..., j, i[:1]], aten.index(x, [i, None])),
        (r(5, 4, 7), torch.tensor([1, -1, 4]), torch.tensor([3, 0, -4])),
        (),
    ),
    "index, one of them constant": (
        lambda x, j, i: x[i, j],
        (r(5, 4, 7), torch.tensor([3, 0, -4])),
        (torch.tensor([1, -1, 4]),),
    ),
    "gather": (
        lambda x, i: (torch.gather(x, 0, i), torch.gather(x, 1, i), torch.gather(x, -1, i)),
        (r(5, 4, 7), torch.randint(4, (3, 4, 6), generator=torch.Generator().manual_seed(3))),
        (),
    ),
    "index_put, large": (
        lambda x, y, i: torch.index_put(x, (i,), y),
        (r(300, 300), r(200, 300), torch.randperm(300, generator=torch.Generator().manual_seed(1))[:200]),
        (),
    ),
    "index, every dimension that may have none": (
        lambda x, i, j: (
            x[i],
            x[i - 5, j],
            x[:, j],
            x[i, :, j],
            x[:, j, i.unsqueeze(1)],
            torch.ops.aten.index.Tensor(x, [i, None, torch.tensor([[6], [2]])]),
        ),
        (r(5, 4, 7), torch.tensor([1, 4, 1]), torch.tensor([3, 0, 3])),
        (),
    ),
    "index, constant indices": (
        lambda x, i, j: (x[i, j], x[:, j, i], x[j, :, i.unsqueeze(1)]),
        (r(5, 4, 7),),
        (torch.tensor([1, 0, 2, 1]), torch.tensor([3, -4, 3, 1])),
    ),
    "gather, fewer than there are": (
        lambda x, i, j: (x.gather(1, i), x.gather(0, i), x.gather(-1, j)),
        (r(5, 4, 7), (torch.arange(36) * 7 % 11 % 4).reshape(3, 2, 6)),
        ((torch.arange(40) * 9 % 13 % 7).reshape(4, 2, 5),),
    ),
    "reductions of a number": (
        lambda x: (x.softmax(0), x.log_softmax(-1), x.amax(0), x.sum(0), x.mean(-1), x.argmax(0)),
        (r(),),
        (),
    ),
    "median": (lambda x: (x.median(), *x.median(1), *x.median(2, True)), (Y,), ()),
    "max pools with indices": (
        lambda x, y: (
            *F.max_pool2d(x, (3, 2), 2, (1, 0), return_indices=True),
            *F.max_pool2d(x, 2, 1, 1, (2, 3), return_indices=True),
            *F.max_pool1d(y, 3, 2, 1, return_indices=True),
            *F.adaptive_max_pool2d(x, (3, 11), return_indices=True),
        ),
        (IMAGE, r(2, 5, 12)),
        (),
    ),
    "embedding bags": (
        lambda i, o, w: (
            F.embedding_bag(i, w, o, mode="sum"),
            F.embedding_bag(i, w, o, mode="mean", padding_idx=2),
            F.embedding_bag(i, w, o, mode="max"),
        ),
        (torch.tensor([3, 1, 2, 2, 4, 0, 1]), torch.tensor([0, 3, 3, 5])),
        (r(5, 7),),
    ),
    "index_select": (
        lambda x, i: (x.index_select(1, i), x.index_select(0, i[:2] - i[:2]), x.index_select(-1, i)),
        (Y, INDICES[0]),
        (),
    ),
    "index_select of a scalar": (lambda x, i: x.mean().index_select(0, i[:1] - i[:1]), (Y, INDICES[0]), ()),
    "index_select, constant indices": (lambda x, i: x.index_select(1, i), (Y,), (INDICES[1],)),
    "an input and a constant given, and one result twice": (
        lambda x, c: (lambda y: (x, c, y, y))(x * 2),
        (Y,),
        (r(3, 5),),
    ),
    "extremes of truth values": (
        lambda x: ((x > 0).amax(1), (x > 0).amin((0, 2), keepdim=True), (x > 0).max(), (x > 9).min()),
        (r(3, 5, 7),),
        (),
    ),
}

CASES = {**SHARED, **CONVOLUTIONS, **ELEMENTWISE, **MATRICES, **REDUCTIONS, **MOVES}
