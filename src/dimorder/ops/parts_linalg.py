"""Write factors, solutions and functions of small matrices in loops over rows and columns.

The steps, signs and pivots are LAPACK's, so that factors agree too. Its errors are not raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

MOST_ROWS = 16  # or columns, each of which is a step; a larger matrix stays


def _of_small(function: Callable[..., Any]) -> Callable[..., Any]:
    """Leave calls whose matrices are large or not of float32."""

    @functools.wraps(function)
    def compute(*args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in args if isinstance(x, Tensor) and x.is_floating_point()]
        if any(x.dtype != torch.float32 for x in tensors) or max(tensors[0].shape[-2:]) > MOST_ROWS:
            return NotImplemented
        return function(*args, **kwargs)

    return compute


def _rows(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-2]).unsqueeze(1)


def _columns(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1])


def _identity(x: Tensor) -> Tensor:
    return torch.eye(x.shape[-2]).expand(*x.shape[:-2], -1, -1)


def diagonal(x: Tensor) -> Tensor:
    return torch.diagonal(x, 0, -2, -1)


def _first(is_bad: Tensor) -> Tensor:
    """Return the number of the first true place of each row, counted from 1; or 0."""
    size = is_bad.shape[-1]
    at = torch.where(is_bad, torch.arange(1.0, size + 1), size + 1.0).amin(-1)
    return torch.where(at > size, 0.0, at).to(torch.int32)


# -- triangles


def _substituted(a: Tensor, b: Tensor, upper: bool, is_unit: bool) -> Tensor:
    """Return x such that a @ x is b, for a triangle a. The other triangle is not read."""
    size = a.shape[-1]
    for k in reversed(range(size)) if upper else range(size):
        row, column = b[..., k : k + 1, :], a[..., k : k + 1]
        row = row if is_unit else row / column[..., k : k + 1, :]
        rest = _rows(a) < k if upper else _rows(a) > k
        b = torch.where(_rows(a) == k, row, torch.where(rest, b - column * row, b))
    return b


def _solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    if not left:
        return _substituted(a.mT, b.mT, not upper, unitriangular).mT
    return _substituted(a, b, upper, unitriangular)


def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    return _substituted(a.mT if transpose else a, b, upper != transpose, unitriangular), a


# -- Cholesky's factor


def _cholesky(a: Tensor, upper: bool = False) -> Tensor:
    a, columns = a.mT if upper else a, []
    for k in range(a.shape[-1]):
        root = torch.sqrt(a[..., k : k + 1, k : k + 1])
        columns.append(torch.where(_rows(a) >= k, a[..., k : k + 1] / root, 0.0))
        a = a - columns[-1] * columns[-1].mT
    factor = torch.cat(columns, -1)
    return factor.mT if upper else factor


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mT if upper else factor
    return _substituted(lower.mT, _substituted(lower, b, False, False), True, False)


# -- the factors of a matrix whose rows are exchanged


def _exchanged(x: Tensor, k: int, other: Tensor) -> Tensor:
    """Exchange row k and another row, of which `other` has the number."""
    is_other = _rows(x) == other
    found = torch.where(is_other, x, 0.0).sum(-2, True)
    return torch.where(_rows(x) == k, found, torch.where(is_other, x[..., k : k + 1, :], x))


def _permuted(x: Tensor, pivots: Tensor, steps: Iterable[int]) -> Tensor:
    for k in steps:
        x = _exchanged(x, k, pivots[..., k : k + 1].unsqueeze(-1).to(torch.int64) - 1)
    return x


def _lu_factor(a: Tensor, pivot: bool = True) -> tuple[Tensor, Tensor]:
    """Return both factors in one matrix, and the row that each step chose, counted from 1."""
    pivots = []
    for k in range(min(a.shape[-2:])):
        sizes = torch.where(_rows(a) < k, -1.0, a[..., k : k + 1].abs())
        chosen = sizes.argmax(-2, True) if pivot else torch.full((*a.shape[:-2], 1, 1), k)
        a = _exchanged(a, k, chosen) if pivot else a
        pivots.append(chosen.squeeze(-1))
        row, column = a[..., k : k + 1, :], a[..., k : k + 1]
        divisor = column[..., k : k + 1, :]
        column = column / torch.where(divisor == 0, 1.0, divisor)
        rest = torch.where(_columns(a) > k, a - column * row, torch.where(_columns(a) == k, column, a))
        a = torch.where(_rows(a) > k, rest, a)
    return a, (torch.cat(pivots, -1) + 1).to(torch.int32)


def _lu_factor_ex(
    a: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots = _lu_factor(a, pivot)
    return lu, pivots, _first(diagonal(lu) == 0)


def _lu_unpack(
    lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    steps, none = min(lu.shape[-2:]), torch.zeros(0)
    order = _permuted(_identity(lu), pivots, range(steps)).mT if unpack_pivots else none
    if not unpack_data:
        return order, none, none
    lower = torch.where(_rows(lu) > _columns(lu), lu, (_rows(lu) == _columns(lu)).to(lu.dtype))
    return order, lower[..., :steps], torch.triu(lu)[..., :steps, :]


def _lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:
        return _lu_solve(lu, pivots, b.mT, adjoint=not adjoint).mT
    b = b.expand(*torch.broadcast_shapes(lu.shape[:-2], b.shape[:-2]), -1, -1)
    steps = range(lu.shape[-1])
    if adjoint:
        b = _substituted(lu.mT, _substituted(lu.mT, b, False, False), True, True)
        return _permuted(b, pivots, reversed(steps))
    return _substituted(lu, _substituted(lu, _permuted(b, pivots, steps), False, True), True, False)


def _solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots, info = _lu_factor_ex(a)
    is_vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    b = b.unsqueeze(-1) if is_vector else b
    x = _lu_solve(lu, pivots, b, left=left)
    return x.squeeze(-1) if is_vector else x, lu, pivots, info


def _inv_ex(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    lu, pivots, info = _lu_factor_ex(a)
    return _lu_solve(lu, pivots, _identity(a)), info


def _sign(pivots: Tensor) -> Tensor:
    """Return the determinant of a permutation."""
    own = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    return torch.where(pivots == own, 1.0, -1.0).prod(-1)


def _det(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots = _lu_factor(a.mT)
    return diagonal(lu).prod(-1) * _sign(pivots), lu, pivots


def _slogdet(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots = _lu_factor(a.mT)
    factors = diagonal(lu)
    return torch.sign(factors).prod(-1) * _sign(pivots), factors.abs().log().sum(-1), lu, pivots


# -- reflections


def _reflect(x: Tensor, vector: Tensor, tau: Tensor) -> Tensor:
    return x - tau * vector * (vector * x).sum(-2, True)


def _geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return R with the vectors of the reflections below it, and their factors."""
    taus = []
    for k in range(min(a.shape[-2:])):
        column, alpha = a[..., k : k + 1], a[..., k : k + 1, k : k + 1]
        below = torch.where(_rows(a) > k, column, 0.0)
        rest = (below * below).sum(-2, True)
        is_whole, length = rest == 0, torch.sqrt(alpha * alpha + rest)
        beta = torch.where(is_whole, alpha, torch.where(alpha < 0, length, -length))
        tau = torch.where(is_whole, 0.0, (beta - alpha) / beta)
        below = below / torch.where(is_whole, 1.0, alpha - beta)
        turned = _reflect(a, torch.where(_rows(a) == k, 1.0, below), tau)
        own = torch.where(_rows(a) > k, below, torch.where(_rows(a) == k, beta, column))
        a = torch.where(_columns(a) > k, turned, torch.where(_columns(a) == k, own, a))
        taus.append(tau.squeeze(-1))
    return a, torch.cat(taus, -1)


def _ormqr(a: Tensor, tau: Tensor, x: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    if not left:
        return _ormqr(a, tau, x.mT, transpose=not transpose).mT
    steps = range(tau.shape[-1])
    for k in steps if transpose else reversed(steps):
        column = torch.where(_rows(a) > k, a[..., k : k + 1], (_rows(a) == k).to(a.dtype))
        x = _reflect(x, column, tau[..., k : k + 1].unsqueeze(-1))
    return x


def _qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    packed, tau = _geqrf(a)
    rows = a.shape[-2] if mode == "complete" else min(a.shape[-2:])
    factor = torch.triu(packed)[..., :rows, :]
    if mode == "r":
        return torch.zeros(0), factor
    return _ormqr(packed, tau, _identity(a)[..., :rows]), factor


# -- the exponential

_DEGREE, _REACH = 18, 3.0  # a Taylor polynomial, and the largest norm of which it is exact in float32
_SQUARINGS = 16  # above a norm of _REACH * 2**16, float32 has no digits left


def _matrix_exp(a: Tensor) -> Tensor:
    norm = a.abs().sum(-2, True).amax(-1, True)
    halvings = torch.ceil(torch.log2(norm / _REACH)).clamp(0, _SQUARINGS)
    a = a * torch.exp2(-halvings)
    one = _identity(a)
    y = one + a / _DEGREE
    for k in reversed(range(1, _DEGREE)):
        y = one + torch.matmul(a, y) / k
    for k in range(_SQUARINGS):
        y = torch.where(halvings > k, torch.matmul(y, y), y)
    return y


_OF_SMALL: Mapping[Any, Callable[..., Any]] = {
    aten.linalg_solve_triangular.default: _solve_triangular,
    aten.triangular_solve.default: _triangular_solve,
    aten.linalg_cholesky.default: _cholesky,
    **({aten.cholesky.default: _cholesky} if hasattr(aten, "cholesky") else {}),  # gone in torch 2.15
    aten.cholesky_solve.default: _cholesky_solve,
    aten.cholesky_inverse.default: lambda factor, upper=False: _cholesky_solve(
        _identity(factor), factor, upper
    ),
    aten.linalg_lu_factor_ex.default: _lu_factor_ex,
    aten.linalg_lu.default: lambda a, *, pivot=True: _lu_unpack(*_lu_factor(a, pivot)),
    aten.lu_unpack.default: _lu_unpack,
    aten.linalg_lu_solve.default: _lu_solve,
    aten._linalg_solve_ex.default: _solve_ex,
    aten.linalg_inv_ex.default: _inv_ex,
    aten._linalg_det.default: _det,
    aten._linalg_slogdet.default: _slogdet,
    aten.geqrf.default: _geqrf,
    aten.ormqr.default: _ormqr,
    aten.linalg_householder_product.default: lambda a, tau: _ormqr(a, tau, _identity(a)[..., : a.shape[-1]]),
    aten.linalg_qr.default: _qr,
    aten.linalg_matrix_exp.default: _matrix_exp,
}
LINALG: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {name: _of_small(function) for name, function in _OF_SMALL.items()}
)
