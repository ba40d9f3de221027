"""Write singular values, eigenvalues, and what depends on them, in rotations of pairs of rows (Jacobi).

All rows turn in pairs at once, each with another partner at each step. The vectors have no sign of their own,
so that torch's cannot be computed: these results stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dimorder.ops.parts_linalg import diagonal

aten = torch.ops.aten

MOST_ROWS = 8  # of which each meets each several times; a larger matrix stays


def _steps(rows: int) -> range:
    """Return the steps until each row has met each often enough. `rows` is even."""
    return range((4 + rows // 4) * (rows - 1))


def _next_partners(rows: int) -> Tensor:
    """Return the permutation that gives each row another partner: the first stays, all others move on."""
    upper, lower = range(rows // 2), range(rows // 2, rows)
    one = torch.eye(rows)
    return torch.stack([one[i] for i in (0, *lower[:1], *upper[1:-1], *lower[1:], *upper[1:][-1:])])


def _tangent(apart: Tensor, common: Tensor) -> Tensor:
    """Return the tangents of the angles that turn pairs until they have nothing in common."""
    reach = apart.abs() + torch.sqrt(apart * apart + common * common)
    return torch.where(common == 0, 0.0, torch.where(apart < 0, -common, common) / reach)


def _turn(x: Tensor, tangent: Tensor) -> Tensor:
    """Turn each row of the upper half with the same row of the lower half."""
    u, v = x.chunk(2, -2)
    cosine = torch.rsqrt(tangent * tangent + 1)
    return torch.cat([u - tangent * v, tangent * u + v], -2) * torch.cat([cosine, cosine], -2)


def _with_orthogonal_rows(x: Tensor, length: int) -> Tensor:
    """Turn rows until the first `length` elements of each are orthogonal to those of all others."""
    rows = x.shape[-2]
    x = F.pad(x, [0, 0, 0, rows % 2])
    partners = _next_partners(x.shape[-2])
    for _ in _steps(x.shape[-2]):
        u, v = x[..., :length].chunk(2, -2)
        apart = (v * v).sum(-1, True) - (u * u).sum(-1, True)
        x = torch.matmul(partners, _turn(x, _tangent(apart, 2 * (u * v).sum(-1, True))))
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
    turned = _with_orthogonal_rows(_wide(a), max(a.shape[-2:]))
    return None, torch.sort(torch.linalg.vector_norm(turned, dim=-1), -1, True)[0], None


def _eigh(a: Tensor, uplo: str = "L", compute_v: bool = True) -> Any:
    if _stays(a):
        return NotImplemented
    a = _symmetric(a if uplo == "L" else a.mT)
    size = a.shape[-1]
    a = F.pad(a, [0, size % 2, 0, size % 2])
    partners = _next_partners(a.shape[-1])
    for _ in _steps(a.shape[-1]):
        first, second = diagonal(a).chunk(2, -1)
        common = 2 * diagonal(a[..., : len(partners) // 2, len(partners) // 2 :])
        tangent = _tangent(second - first, common).unsqueeze(-1)
        for _ in range(2):  # rows, then columns
            a = torch.matmul(partners, _turn(a, tangent)).mT
    return torch.sort(diagonal(a)[..., :size], -1)[0], None


def _symmetric(a: Tensor) -> Tensor:
    """Return a symmetric matrix of which only the lower triangle is read."""
    return torch.tril(a) + torch.tril(a, -1).mT


def _pinv(
    a: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Any:
    if _stays(a):
        return NotImplemented
    a = _symmetric(a) if hermitian else a
    wide, least = _wide(a), torch.zeros(()) if atol is None else atol
    rows, length = wide.shape[-2:]
    if rtol is None:
        rtol = torch.where(least > 0, 0.0, torch.finfo(a.dtype).eps * length)
    own = torch.eye(rows).expand(*wide.shape[:-1], -1)
    turned = _with_orthogonal_rows(torch.cat([wide, own], -1), length)
    wide, own = turned[..., :length], turned[..., length:]
    squares = (wide * wide).sum(-1, True)
    values = torch.sqrt(squares)
    tolerance = torch.maximum(least[..., None, None], rtol[..., None, None] * values.amax(-2, True))
    inverse = torch.matmul(wide.mT, own * torch.where(values > tolerance, 1 / squares, 0.0))
    return inverse if a.shape[-2] <= a.shape[-1] else inverse.mT


VALUES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten._linalg_svd.default: _svd,
        aten._linalg_eigh.default: _eigh,
        aten.linalg_pinv.atol_rtol_tensor: _pinv,
    }
)
