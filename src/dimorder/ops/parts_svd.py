"""Write singular values, and what depends on them, in rotations of pairs of rows (one-sided Jacobi).

All rows turn in pairs at once, each with another partner at each step. Singular vectors have no sign of their
own, so that torch's cannot be computed: these results stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

MOST_ROWS = 8  # of which each meets each several times; a larger matrix stays


def _turned(x: Tensor, length: int) -> Tensor:
    """Turn rows until the first `length` elements of each are orthogonal to those of all others."""
    rows = x.shape[-2]
    half = (rows + 1) // 2
    x = F.pad(x, [0, 0, 0, 2 * half - rows])
    upper, lower = range(half), range(half, 2 * half)
    order = [*upper[:1], *lower[:1], *upper[1:-1], *lower[1:], *upper[1:][-1:]]
    one = torch.eye(2 * half)
    moved = torch.stack([one[i] for i in order])
    for _ in range((4 + rows // 4) * (2 * half - 1)):
        u, v = x[..., :half, :], x[..., half:, :]
        squares = (x * x)[..., :length].sum(-1, True)
        apart = squares[..., half:, :] - squares[..., :half, :]
        common = (u * v)[..., :length].sum(-1, True) * 2
        reach = apart.abs() + torch.sqrt(apart * apart + common * common)
        tangent = torch.where(apart < 0, -common, common) / reach
        tangent = torch.where(common == 0, 0.0, tangent)
        turned = torch.cat([u - tangent * v, tangent * u + v], -2)
        cosine = torch.rsqrt(tangent * tangent + 1)
        x = torch.matmul(moved, turned * torch.cat([cosine, cosine], -2))
    return x[..., :rows, :]


def _wide(a: Tensor) -> Tensor:
    return a if a.shape[-2] <= a.shape[-1] else a.mT


def _stays(a: Tensor) -> bool:
    return a.dtype != torch.float32 or min(a.shape[-2:]) > MOST_ROWS


def _svd(
    a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> Any:
    if _stays(a):
        return NotImplemented
    turned = _turned(_wide(a), max(a.shape[-2:]))
    return None, torch.sort(torch.linalg.vector_norm(turned, dim=-1), -1, True)[0], None


def _pinv(
    a: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Any:
    if _stays(a):
        return NotImplemented
    if hermitian:
        a = torch.tril(a) + torch.tril(a, -1).mT
    wide, least = _wide(a), torch.zeros(()) if atol is None else atol
    rows, length = wide.shape[-2:]
    if rtol is None:
        rtol = torch.where(least > 0, 0.0, torch.finfo(a.dtype).eps * length)
    own = torch.eye(rows).expand(*wide.shape[:-1], -1)
    turned = _turned(torch.cat([wide, own], -1), length)
    wide, own = turned[..., :length], turned[..., length:]
    squares = (wide * wide).sum(-1, True)
    values = torch.sqrt(squares)
    tolerance = torch.maximum(least[..., None, None], rtol[..., None, None] * values.amax(-2, True))
    inverse = torch.matmul(wide.mT, own * torch.where(values > tolerance, 1 / squares, 0.0))
    return inverse if a.shape[-2] <= a.shape[-1] else inverse.mT


SVD: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {aten._linalg_svd.default: _svd, aten.linalg_pinv.atol_rtol_tensor: _pinv}
)
