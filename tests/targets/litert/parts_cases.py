"""Operators that LiteRT computes in parts: those of `dimorder.ops.parts`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers.integrations import moe

from tests.targets.cases import Case, Y, aten, r
from tests.targets.litert import linalg_cases

assert moe  # registers the operator of mixtures of experts
grouped = torch.ops.transformers.grouped_mm_fallback
I = torch.tensor([[[4, 0, 2, 2, 6, 1, 3], [1, 4, 0, 3, 2, 5, 2], [0, 3, 3, 1, 4, 2, 6]]]) % 5  # noqa: E741
B = Y > 0.3
BETWEEN = Y.sigmoid()
ABOVE = Y.abs() + 0.6
GAPS = torch.where(B, torch.nan, Y)
LONG = r(3, 201).where(torch.arange(3 * 201).reshape(3, 201) != 150, torch.nan)
EDGES = torch.sort(r(2, 5, 9)).values
EACH = torch.tensor([2, 0, 3, 1])

CASES: dict[str, Case] = {
    **linalg_cases.CASES,
    "in parts: bits": (
        lambda x, y: (*torch.frexp(x), torch.nextafter(x, y), torch.nextafter(y, x)),
        (Y.relu(), r(7)),
        (),
    ),
    "in parts: powers in float64": (
        lambda x, y: (
            torch.float_power(x.sigmoid() + 0.5, y.tanh()),
            torch.float_power(x, 3),
            torch.float_power(2.5, y.tanh()),
        ),
        (Y, r(7)),
        (),
    ),
    "in parts: hyperbolic": (
        lambda x, y, z: (torch.asinh(x * 3), torch.atanh(y * 2 - 1), torch.acosh(z + 0.5)),
        (Y, BETWEEN, ABOVE),
        (),
    ),
    "in parts: signs and angles": (
        lambda x, y: (
            torch.signbit(x),
            torch.copysign(y, x),
            torch.copysign(x, -2.0),
            torch.angle(x),
            torch.deg2rad(x),
            torch.rad2deg(x),
            torch.hypot(x, y),
            torch.sinc(x),
        ),
        (Y.relu() * Y.sign(), r(7)),
        (),
    ),
    "in parts: choices": (
        lambda x, y: (
            torch.heaviside(x, y),
            torch.fmax(x, y),
            torch.fmin(x, y),
            torch.frac(x * 3),
            torch.isposinf(1 / x),
            torch.isneginf(1 / x),
        ),
        (Y.relu() - 0.5, r(7)),
        (),
    ),
    "in parts: quotients and powers": (
        lambda x, y: (aten.true_divide.Tensor(x, y), torch.ldexp(x, y.round())),
        (Y, r(7) + 4),
        (),
    ),
    "in parts: between two values": (
        lambda x, y, z: (torch.lerp(x, y, 0.3), torch.lerp(x, y, 0.8), torch.lerp(x, y, z)),
        (Y, r(7), BETWEEN),
        (),
    ),
    "in parts: logarithms": (
        lambda x, y, p: (
            torch.logit(p),
            torch.logit(p, 0.4),
            torch.xlogy(x, y),
            torch.xlogy(2.5, y),
            torch.xlogy(x, 2.5),
            torch.special.xlog1py(x, y),
            torch.special.xlog1py(2.5, y),
            torch.special.xlog1py(x, 2.5),
            torch.special.entr(p),
            torch.logaddexp(x, y),
            torch.logaddexp2(x, y),
            torch.logcumsumexp(x, 1),
        ),
        (Y, ABOVE, BETWEEN),
        (),
    ),
    "in parts: error functions": (
        lambda x, p: (
            torch.erfc(x * 2),
            torch.special.erfcx(x),
            torch.special.log_ndtr(x * 4),
            torch.erfinv(p * 2 - 1),
            torch.special.ndtri(p),
        ),
        (Y, BETWEEN),
        (),
    ),
    "in parts: Bessel functions": (
        lambda x: (
            torch.special.i0(x * 3),
            torch.special.i0e(x * 3),
            torch.special.i1(x * 3),
            torch.special.i1e(x * 3),
        ),
        (Y,),
        (),
    ),
    "in parts: gamma functions": (
        lambda x, y: (
            torch.lgamma(x),
            torch.mvlgamma(y + 1, 3),
            torch.digamma(x),
            *(torch.polygamma(n, x) for n in range(4)),
        ),
        (Y * 3 + 0.03, ABOVE),
        (),
    ),
    "in parts: incomplete gamma functions": (
        lambda x, y: (torch.igamma(x, y), torch.igammac(y, x * 3)),
        (ABOVE * 9, ABOVE[0, 0] * 12),
        (),
    ),
    "in parts: elementary functions": (
        lambda x, y, s: (
            torch.atan(x),
            torch.asin(s),
            torch.acos(s),
            torch.atan2(x, y - 2),
            torch.expm1(x),
            torch.cosh(x),
            torch.sinh(x),
            torch.tan(s),
            torch.sign(x),
            torch.sgn(x),
            torch.pow(2.5, x),
            torch.nan_to_num(torch.log(x), 0.5, neginf=-3.0),
            torch.isfinite(torch.log(x.relu())),
            torch.isinf(torch.log(x.relu())),
            torch.nn.functional.softshrink(x, 0.25),
            torch.nn.functional.hardshrink(x),
            torch.clamp(x, y - 2, y),
            torch.diagonal(x, 1, 1, 2),
        ),
        (Y * 2, ABOVE, BETWEEN * 2 - 1),
        (),
    ),
    "in parts: remainders": (lambda i, j: (i % 3, i % -2, i % j), (I - 2, I % 2 * 3 - 4), ()),
    "in parts: scatters": (
        lambda x, i, y: (
            torch.scatter(x, 1, i, y),
            torch.scatter(x, 1, i, 0.5),
            torch.scatter(x, 1, i, y, reduce="add"),
            torch.scatter(x, 1, i, 1.5, reduce="multiply"),
            torch.scatter_add(x, 1, i, y),
        ),
        (Y, I[:, :, :6], r(2, 4, 7)),
        (),
    ),
    "in parts: reducing scatters": (
        lambda x, i, y: tuple(
            torch.scatter_reduce(x, 1, i, y, how, include_self=own)
            for how in ("sum", "mean", "amax", "amin", "prod")
            for own in (True, False)
        ),
        (Y, I, r(1, 3, 7)),
        (),
    ),
    "in parts: a scatter of a row": (
        lambda x, i, y: (
            torch.scatter_reduce(x, 0, i, y, "amax"),
            torch.index_reduce(x, 0, i, y, "prod"),
            torch.put(x, i, y, True),
            torch.put(x, i - 9, y),
        ),
        (r(9), I[0, 0], r(7)),
        (),
    ),
    "in parts: places that are written": (
        lambda x, b, y: (
            torch.diagonal_scatter(x, y, 1, 1, 2),
            torch.masked_scatter(x, b, x * 2),
            aten.index_put(x, [b], torch.tensor(0.25)),
            aten.index_put(x, [None, b[0, :, 0]], torch.tensor(0.25), True),
        ),
        (Y, B, r(2, 5)),
        (),
    ),
    "in parts: gradients": (
        lambda x, g, b: (
            aten.max_pool2d_with_indices_backward(
                g, x, [2, 3], [2, 3], [0, 0], [1, 1], False, aten.max_pool2d_with_indices(x, [2, 3])[1]
            ),
            aten.native_dropout_backward(g, b, 1.25),
        ),
        (r(2, 3, 8, 9), r(2, 3, 4, 3), r(2, 3, 4, 3) > 0),
        (),
    ),
    "in parts: searches": (
        lambda s, v, e: (
            torch.searchsorted(s, v),
            torch.searchsorted(s, v, right=True, out_int32=True),
            torch.searchsorted(e, 0.25),
            torch.searchsorted(s.flip(2), v),
            torch.bucketize(v, e),
            torch.histc(v, 6, -1.0, 1.0),
            torch.histc(v, 5),
        ),
        (EDGES, Y, EDGES[0, 0]),
        (),
    ),
    "in parts: histograms": (
        lambda x, e, w: (
            *torch.histogram(x, 5),
            *torch.histogram(x, 4, range=(-0.5, 1.0), weight=w, density=True),
            *torch.histogram(x, e),
            *torch.histogramdd(x[..., :2], [3, 4])[:1],
            torch.histogramdd(x[..., :2], [e, e[2:] - 0.5], weight=w[..., 0])[0],
        ),
        (Y, EDGES[0, 0], BETWEEN),
        (),
    ),
    "in parts: segments": (
        lambda x, n, m: (
            *(torch.segment_reduce(x, how, lengths=n, axis=1) for how in ("sum", "max", "prod")),
            torch.segment_reduce(x, "mean", lengths=m, axis=1),
            torch.segment_reduce(x, "min", offsets=torch.cumsum(n, 1), axis=1, initial=0.5),
        ),
        (r(2, 7, 3), torch.tensor([[0, 3, 1, 3], [0, 2, 5, 0]]), torch.tensor([[2, 5], [4, 3]])),
        (),
    ),
    "in parts: counts": (
        lambda n, b: (
            torch.repeat_interleave(n, output_size=6),
            torch.nonzero_static(b, size=9),
        ),
        (EACH, B[0]),
        (),
    ),
    "in parts: in order": (
        lambda x: (
            *torch.sort(x, 1),
            *torch.sort(x, 0, True),
            *torch.sort(x, dim=1, stable=True, descending=True),
            *torch.topk(x, 2, 1),
            *torch.kthvalue(x, 3, 1),
            *torch.kthvalue(x, 2, 2, True),
        ),
        (Y,),
        (),
    ),
    "in parts: groups of rows": (
        lambda x, few, w, v, ends: (
            grouped(x, w, ends),
            grouped(x, v.transpose(1, 2), torch.clamp_max(ends, 5)),
            grouped(few, v.transpose(1, 2), torch.clamp_max(ends, 2)),
            grouped(few, w, torch.clamp_max(ends, 1)),
        ),
        (r(9, 4), r(2, 4), r(6, 4, 5), r(6, 3, 4), torch.tensor([2, 2, 5, 6, 6, 9], dtype=torch.int32)),
        (),
    ),
    "in parts: the most frequent": (
        lambda x, y: (*torch.mode(x, 2), torch.nanmedian(y), *torch.nanmedian(y, 1)),
        (I.float() + 0.5, GAPS),
        (),
    ),
    "in parts: medians": (
        lambda x, n, y: (
            *torch.median(x, 1),
            *torch.median(n, 2, True),
            n.median(),
            torch.nan_to_num(torch.median(y, 1)[0], 9.5),
        ),
        (r(2, 301, 3), torch.randperm(42).reshape(2, 3, 7), LONG),
        (),
    ),
    "in parts: running extrema": (lambda x: (*torch.cummax(x, 1), *torch.cummin(x, 2)), (Y,), ()),
    "in parts: extrema of a number and of truth": (
        lambda x, b: (
            *aten.max.dim(x, 0),
            *aten.min.dim(x, 0),
            *aten.max.dim(b, 1),
            aten.max(x),
            aten.min(x),
            x.prod(),
        ),
        (torch.tensor(0.75), B),
        (),
    ),
    "in parts: norms and their means": (
        lambda x, w, v: (
            *aten.native_layer_norm(x, [7], v, None, 1e-5),
            *aten.native_group_norm(x, w, w, 2, 6, 35, 3, 1e-5),
            *aten._native_batch_norm_legit.no_stats(x, w, None, True, 0.1, 1e-5),
            aten.native_batch_norm(x, w, w, w, w.abs() + 1, False, 0.1, 1e-5)[0],
            F.batch_norm(x, w, w.abs() + 1, w, None),
        ),
        (r(2, 6, 5, 7), r(6), r(7)),
        (),
    ),
    "in parts: lengths": (
        lambda x, y: (
            *(torch.linalg.vector_norm(x, p, 1) for p in (0, 1, 2, 3, torch.inf, -torch.inf)),
            torch.dist(x, y),
            torch.linalg.vector_norm(x.sum()),
            torch.cdist(x, x[:, :3] * 2),
            torch.cdist(x, x[:, :3] * 2, 1.0),
        ),
        (Y, r(7)),
        (),
    ),
    "in parts: a bilinear form": (
        lambda x, y, w, b: F.bilinear(x, y, w, b),
        (r(3, 5), r(3, 7), r(4, 5, 7), r(4)),
        (),
    ),
    "in parts: convolutions with computed weights": (
        lambda x, w, b, z, t: (
            F.conv1d(x[:, :, 0], w[:, :, 0], b),
            F.conv2d(x, w, b, (2, 1), (1, 2), (1, 2)),
            F.conv_transpose2d(z, t, None, (2, 1), (1, 0), (1, 0), 3, (1, 2)),
        ),
        (r(2, 4, 7, 9), r(5, 4, 3, 2), r(5), r(2, 6, 5, 4), r(6, 2, 3, 2)),
        (),
    ),
    "in parts: a sampled grid": (
        lambda x, g: (
            F.grid_sample(x, g, align_corners=False),
            F.grid_sample(x, g, "nearest", "border", True),
            F.grid_sample(x, g * 2, "bicubic", "zeros", False),
            F.grid_sample(x, g * 3, "bicubic", "reflection", True),
        ),
        (r(2, 3, 5, 7), r(2, 4, 6, 2)),
        (),
    ),
    "in parts: a sampled grid in three dimensions": (
        lambda x, g: (
            F.grid_sample(x, g * 2, padding_mode="reflection", align_corners=False),
            F.grid_sample(x, g, "nearest", align_corners=True),
        ),
        (r(2, 3, 4, 5, 6), r(2, 3, 2, 7, 3)),
        (),
    ),
}

# These become hundreds of operators each, or thousands.
MATRICES = {
    f"in parts: {name}"
    for name in (
        *("singular values", "eigenvalues of symmetric matrices", "solutions", "reflections"),
        *("Cholesky's factor", "incomplete gamma functions", "the exponential of a matrix"),
        *("factors with pivots", "given factors", "a matrix without an inverse", "norms of a matrix"),
    )
}
